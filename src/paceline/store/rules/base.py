"""What an update rule is, and the rule that changes nothing."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from paceline.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax import Array


@dataclass(frozen=True)
class UpdateRule:
    """How a push is corrected for the updates that its worker had not seen.

    A rule may change the gradients before the optimizer sees them, and may scale the step of the
    weights (new - old) that the optimizer then makes. It never touches the optimizer's slots. This
    base class does neither.

    All lists are parallel, one entry per trainable weight. Entries that are not floating point
    pass unchanged. State is a nest of arrays; `()` stands for none.

    Attributes:
        needs_backup: whether `gradients` needs the weights that the worker read. JAX arrays are
            immutable, so keeping them costs nothing while they are current, and otherwise one copy
            of the weights per worker in flight: the largest of all costs of a rule.
    """

    needs_backup: ClassVar[bool] = False

    def init(self, weights: Sequence[Array]) -> tuple[Any, Any]:
        """Returns `(shared, own)`: state kept once, and the state that each worker starts with."""
        del weights
        return (), ()

    def gradients(
        self,
        grads: Sequence[Array],
        weights: Sequence[Array],
        backup: Sequence[Array] | None,
        staleness: Array,
        shared: Any,
        own: Any,
    ) -> tuple[list[Array], Any, Any]:
        """Returns the gradients that the optimizer gets, and both states.

        Args:
            grads: what the worker pushed; each result has the dtype of its gradient.
            weights: the weights as they are now, before the update.
            backup: the weights that the worker read; unused where `needs_backup` is False.
            staleness: float32 scalar, the updates applied since the worker's read.
            shared: state kept once for all workers.
            own: state of the worker that pushed.
        """
        del weights, backup, staleness
        return list(grads), shared, own

    def scale(self, staleness: Array) -> Array | None:
        """Returns the float32 factor of the step of the weights; None leaves the step alone."""
        del staleness
        return None

    def finish(self, shared: Any, steps: Sequence[Array]) -> Any:
        """Returns the shared state after an update.

        Args:
            shared: the state that `gradients` returned.
            steps: new - old of each weight, as it was applied.
        """
        del steps
        return shared

    def effective_scale(self, staleness: float) -> float:
        """Returns about how much of a step survives this rule, as a number for reports.

        Exactly what `scale` gives for a rule that scales the step, and 1 for one that promises no
        smaller step.
        """
        del staleness
        return 1.0


@dataclass(frozen=True)
class Plain(UpdateRule):
    """Applies every push as if it were fresh: w <- w - rate * g. No state, no copies.

    With n equal workers the staleness is n - 1, and the last stable learning rate falls about as
    pi / (2n): see `paceline.store.stability.last_stable_rate`.
    """


def scaled(old: Sequence[Array], new: Sequence[Array], scale: Array | None) -> list[Array]:
    """Returns `old + scale * (new - old)`, the weights after a step that a rule scaled.

    Where the scale is 1 the result is `new` to the bit: otherwise a fresh push would round
    differently from the same push in lockstep.

    Args:
        old: the weights before the update; entries that are not floating point take `new`.
        new: the weights that the optimizer made of them.
        scale: float32 scalar from `UpdateRule.scale`, or None.
    """
    if scale is None:
        return list(new)
    return [_scaled(before, after, scale) for before, after in zip(old, new, strict=True)]


def _scaled(old: Array, new: Array, scale: Array) -> Array:
    if not is_floating(new):
        return new
    start = old.astype(wide(new))
    step = new.astype(start.dtype) - start
    moved = start + scale.astype(start.dtype) * step
    return jnp.where(scale == 1, new, moved.astype(new.dtype))


def is_floating(array: Array) -> bool:
    """Whether a rule may change this array."""
    return jnp.issubdtype(array.dtype, jnp.floating)


def wide(*arrays: Array) -> Any:
    """Returns the dtype to compute in: that of the arrays, float32 at least.

    Squares of half-precision gradients overflow, and running means of them stand still.
    """
    return jnp.result_type(jnp.float32, *(array.dtype for array in arrays))


def check_number(
    rule: str, name: str, value: Any, *, low: float, below: float = math.inf, is_open: bool = False
) -> None:
    """Checks an option of a rule when it is made.

    Args:
        rule: name of the rule, for the message.
        name: name of the option.
        value: what was received.
        low: the smallest allowed value.
        below: values must be smaller than this.
        is_open: whether `low` itself is refused.

    Raises:
        InvalidType: no real number.
        InvalidArgument: out of range, infinite or NaN.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InvalidType(f"The option {name} of {rule} is a number. Received: {name}={value!r}.")
    number = float(value)
    if low <= number < below and not (is_open and number == low):
        return
    at_least = f"above {low:g}" if is_open else f"{low:g} or more"
    limit = "finite" if math.isinf(below) else f"below {below:g}"
    raise InvalidArgument(
        f"The option {name} of {rule} is {at_least} and {limit}. Received: {name}={value!r}."
    )
