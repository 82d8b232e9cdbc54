"""Steps divided by the staleness of their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax.numpy as jnp

from paceline.store.rules.base import UpdateRule, check_number

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True, kw_only=True)
class StalenessScaled(UpdateRule):
    """Divides the step by the staleness: rate(tau) = rate / max(1, tau).

    The factor falls on the step of the weights, after the optimizer: Adam and its relatives don't
    depend on the scale of a gradient, so that a scaled gradient would change nothing. Slots and
    step count see the whole gradient. No state, no copies.

    It widens the range of usable learning rates; it doesn't improve on a rate that was tuned for
    plain updates. To drop pushes above a hard limit, use `Asynchronous(max_staleness=...)`.

    Args:
        slope: None for 1 / max(1, tau). A number c gives 1 / (1 + c * tau), which already halves
            a step of staleness 1 where c = 1.

    Raises:
        InvalidType: `slope` is no number.
        InvalidArgument: `slope` is negative or not finite.

    References:
        Zhang, Gupta, Lian and Liu, "Staleness-aware Async-SGD for Distributed Deep Learning",
        IJCAI 2016.
    """

    slope: float | None = None

    def __post_init__(self) -> None:
        if self.slope is not None:
            check_number("StalenessScaled", "slope", self.slope, low=0)

    def scale(self, staleness: Array) -> Array | None:
        if self.slope is None:
            return 1 / jnp.maximum(staleness, 1)
        return 1 / (1 + float(self.slope) * staleness)

    def effective_scale(self, staleness: float) -> float:
        if self.slope is None:
            return 1 / max(staleness, 1.0)
        return 1 / (1 + self.slope * staleness)
