"""Watches whether training is near its stability limit, from what a few pushes show.

Two pushes of one worker in a row give the curvature along the path (by how much the gradient
changed with the weights) and the rate at which steps follow gradients, for any optimizer. One pair
in `_EVERY` pushes is looked at, which costs nearly nothing. Tables whose gradients come as rows are
left out: two batches have few rows in common, and a look at all the others would cost a lot.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from paceline.program.handover import handover
from paceline.program.sparse import is_rows
from paceline.store.stability import StabilityWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVERY = 16


@dataclasses.dataclass(slots=True)
class Probe:
    """What is kept of one push, about the weights whose gradients are whole arrays.

    Attributes:
        weights: what the worker read, one for each gradient.
        gradients: what it pushed.
        steps: what became of it, new - old of each weight; empty for the first of a pair, and for
            a push that made no update alone.
        staleness: when it was applied.
    """

    weights: Sequence[Any]
    gradients: Sequence[Any]
    steps: Sequence[Any] = ()
    staleness: int = 0
    _is_whole: Sequence[bool] = dataclasses.field(default=(), init=False)

    def __post_init__(self) -> None:
        self._is_whole = [not is_rows(gradient) for gradient in self.gradients]
        self.weights, self.gradients = map(self._whole, (self.weights, self.gradients))

    def _whole(self, values: Sequence[Any]) -> list[Any]:
        return list(itertools.compress(values, self._is_whole))

    def note(self, old: Sequence[Any], new: Sequence[Any], staleness: int) -> None:
        """Takes the weights before and after the update."""
        pairs = zip(self._whole(old), self._whole(new), strict=True)
        self.steps = [after - before for before, after in pairs]
        self.staleness = staleness


class Vigil:
    """Feeds a `StabilityWatch` from pairs of pushes and warns with what it says."""

    def __init__(self) -> None:
        self._watch = StabilityWatch()
        self._first: dict[int, Probe] = {}

    def wants(self, sequence: int) -> bool:
        """Whether the push with this number is looked at: it is one of a pair."""
        return sequence % _EVERY < 2

    def wants_steps(self, sequence: int) -> bool:
        """Whether it is the second of its pair, of which the steps are looked at, too."""
        return sequence % _EVERY == 1

    def forget(self) -> None:
        """Lets go of first halves of pairs, which hold weights and gradients."""
        self._first.clear()

    def observe(self, worker: int, sequence: int, probe: Probe) -> None:
        """Takes a push that has ended; called by its worker."""
        if not self.wants_steps(sequence):
            self._first[worker] = probe
            return
        first = self._first.pop(worker, None)
        if first is None or not probe.steps or len(first.gradients) != len(probe.gradients):
            return
        moved, bent, along, square = map(
            float, _products(first.weights, probe.weights, first.gradients, probe.gradients,
                             probe.steps)
        )  # fmt: skip
        if square <= 0:
            return
        with handover:
            said = self._watch.observe(probe.staleness, -along / square, secant=(moved, bent))
        if said is not None:
            warnings.warn(said, stacklevel=2)


@jax.jit
def _products(weights: Any, later: Any, gradients: Any, newer: Any, steps: Any) -> Any:
    """|dw|^2, dw.dg, step.g and |g|^2 over all weights."""

    def dot(left: Any, right: Any) -> Any:
        parts = [jnp.vdot(a, b) for a, b in zip(left, right, strict=True)]
        return jnp.sum(jnp.stack([part.astype(jnp.float32) for part in parts]))

    dw = [b - a for a, b in zip(weights, later, strict=True)]
    dg = [b - a for a, b in zip(gradients, newer, strict=True)]
    return dot(dw, dw), dot(dw, dg), dot(steps, newer), dot(newer, newer)
