"""Gradients moved to the current weights by a cheap guess of the curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from paceline.store.rules.base import UpdateRule, check_number, is_floating, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax import Array


@dataclass(frozen=True, kw_only=True)
class DelayCompensated(UpdateRule):
    """Adds to a gradient its expected change since the read (DC-ASGD).

    With w the current weights and b those that the worker read, elementwise:

        g' = g + strength * g * g * (w - b)

    The squared gradient stands for the diagonal of the Hessian. `DelayCompensated.adaptive()`
    divides the strength by the root of a running mean square m of the worker's own gradients:

        m  <- decay * m + (1 - decay) * g * g,   m = 0 at first
        g' =  g + strength / sqrt(m + epsilon) * g * g * (w - b)

    The square root keeps the correction in proportion to the gradient, whatever the scale of the
    loss; some published versions lack it. The mean starts at zero and isn't corrected for that,
    as in the authors' code, so that the first corrections of a worker are the strongest.

    Costs: the weights that each worker read, one copy per worker; the adaptive form holds m as
    well, one more copy per worker in float32 or wider.

    Args:
        strength: lambda of the paper.
        decay: weight of the past in the running mean square; None keeps the strength constant.
        epsilon: keeps the root from zero; unused where `decay` is None.

    Raises:
        InvalidType: an option that is no number.
        InvalidArgument: a negative strength, a decay outside [0, 1), an epsilon that isn't
            positive.

    References:
        Zheng, Meng, Wang, Chen, Yu, Ma and Liu, "Asynchronous Stochastic Gradient Descent with
        Delay Compensation", ICML 2017.
    """

    needs_backup: ClassVar[bool] = True

    strength: float = 0.04
    decay: float | None = None
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        check_number("DelayCompensated", "strength", self.strength, low=0)
        check_number("DelayCompensated", "epsilon", self.epsilon, low=0, is_open=True)
        if self.decay is not None:
            check_number("DelayCompensated", "decay", self.decay, low=0, below=1)

    @classmethod
    def adaptive(
        cls, *, strength: float = 2.0, decay: float = 0.95, epsilon: float = 1e-7
    ) -> DelayCompensated:
        """Returns the adaptive rule, with the defaults of the authors' code.

        Raises:
            InvalidType: an option that is no number.
            InvalidArgument: as for the class.
        """
        return cls(strength=strength, decay=decay, epsilon=epsilon)

    def init(self, weights: Sequence[Array]) -> tuple[Any, Any]:
        if self.decay is None:
            return (), ()
        return (), {"mean_square": [jnp.zeros_like(w, dtype=wide(w)) for w in weights]}

    def gradients(
        self,
        grads: Sequence[Array],
        weights: Sequence[Array],
        backup: Sequence[Array] | None,
        staleness: Array,
        shared: Any,
        own: Any,
    ) -> tuple[list[Array], Any, Any]:
        del staleness
        triples = list(zip(grads, weights, backup or (), strict=True))
        if self.decay is None:
            return [self._corrected(g, w, b, None) for g, w, b in triples], shared, own
        squares = [self._mean_square(g, m) for g, m in zip(grads, own["mean_square"], strict=True)]
        corrected = [
            self._corrected(g, w, b, m) for (g, w, b), m in zip(triples, squares, strict=True)
        ]
        return corrected, shared, {"mean_square": squares}

    def _mean_square(self, grad: Array, mean: Array) -> Array:
        if self.decay is None or not is_floating(grad):
            return mean
        decay, g = float(self.decay), grad.astype(mean.dtype)
        return decay * mean + (1 - decay) * g * g

    def _corrected(self, grad: Array, weight: Array, backup: Array, square: Array | None) -> Array:
        if not is_floating(grad):
            return grad
        dtype = wide(grad, weight)
        g = grad.astype(dtype)
        strength: Any = float(self.strength)
        if square is not None:
            strength = strength / jnp.sqrt(square.astype(dtype) + float(self.epsilon))
        delay = weight.astype(dtype) - backup.astype(dtype)
        return (g + strength * g * g * delay).astype(grad.dtype)
