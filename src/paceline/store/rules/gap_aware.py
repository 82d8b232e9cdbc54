"""Gradients divided by how many steps away from their weights they arrive."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from paceline.errors import InvalidType
from paceline.store.rules.base import UpdateRule, check_number, is_floating, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax import Array


@dataclass(frozen=True, kw_only=True)
class GapAware(UpdateRule):
    """Divides each element of a gradient by the gap that its weight moved since the read.

    With w the current weights, b those that the worker read, and s the running mean of the
    absolute step of each element:

        gap = 1 + |w - b| / s,   1 where s is still 0
        g'  = g / gap

    A push is thus damped where the weights have really moved, and not for its age alone. Momentum
    can be kept at 0.9. Adam and its relatives undo a division that is alike for all pushes; use
    `StalenessScaled` with them.

    s is the mean of all steps up to `window` of them, after which older steps fade out.

    Costs: the weights that each worker read, one copy per worker; and s, one copy for all, in
    float32 or wider.

    Args:
        window: over about how many updates the step is averaged; 100 to 1,000 are usual.

    Raises:
        InvalidType: `window` is no integer.
        InvalidArgument: `window` is below 1.

    References:
        Barkai, Hakimi and Schuster, "Gap Aware Mitigation of Gradient Staleness", ICLR 2020.
    """

    needs_backup: ClassVar[bool] = True

    window: int = 500

    def __post_init__(self) -> None:
        check_number("GapAware", "window", self.window, low=1)
        if not isinstance(self.window, numbers.Integral):
            raise InvalidType(
                "The option window of GapAware is a whole number of updates. Received: "
                f"window={self.window!r}."
            )

    def init(self, weights: Sequence[Array]) -> tuple[Any, Any]:
        means = [jnp.zeros_like(w, dtype=wide(w)) for w in weights]
        return {"mean_step": means, "num_steps": jnp.zeros((), jnp.int32)}, ()

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
        entries = zip(grads, weights, backup or (), shared["mean_step"], strict=True)
        return [_damped(*entry) for entry in entries], shared, own

    def finish(self, shared: Any, steps: Sequence[Array]) -> Any:
        # Counted up to the window only, so that the count never overflows.
        count = jnp.minimum(shared["num_steps"] + 1, int(self.window))
        means = [
            mean + (jnp.abs(step.astype(mean.dtype)) - mean) / count.astype(mean.dtype)
            for mean, step in zip(shared["mean_step"], steps, strict=True)
        ]
        return {"mean_step": means, "num_steps": count}

    def effective_scale(self, staleness: float) -> float:
        """Returns 1 / (1 + staleness): the damping where steps keep their size and direction."""
        return 1 / (1 + staleness)


def _damped(grad: Array, weight: Array, backup: Array, mean: Array) -> Array:
    if not is_floating(grad):
        return grad
    dtype = wide(grad, weight)
    moved = jnp.abs(weight.astype(dtype) - backup.astype(dtype))
    step = mean.astype(dtype)
    # The inner `where` keeps the division from 0 / 0, which the outer one could not undo in a
    # derivative or under jax_debug_nans.
    gap = jnp.where(step > 0, 1 + moved / jnp.where(step > 0, step, 1), 1)
    return (grad.astype(dtype) / gap).astype(grad.dtype)
