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
import numpy as np

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
        form: which variables the gradients are for: pushes of one form make a pair.
        weights: what the worker read, one for each gradient.
        gradients: what it pushed.
        old, new: the weights before and after its update; empty for the first of a pair, and for
            a push that made no update alone.
        staleness: when it was applied.
    """

    form: Any
    weights: Sequence[Any]
    gradients: Sequence[Any]
    old: Sequence[Any] = ()
    new: Sequence[Any] = ()
    staleness: int = 0
    _is_whole: Sequence[bool] = dataclasses.field(default=(), init=False)

    def __post_init__(self) -> None:
        self._is_whole = [not is_rows(gradient) for gradient in self.gradients]
        self.weights, self.gradients = map(self._whole, (self.weights, self.gradients))

    def copy_gradients(self) -> None:
        """Makes the gradients its own: the update will take those that were pushed."""
        self.gradients = _copies(self.gradients)

    def goes_with(self, other: Probe) -> bool:
        """Whether both are of the same weights."""
        return self.form == other.form and self._is_whole == other._is_whole

    def _whole(self, values: Sequence[Any]) -> list[Any]:
        return list(itertools.compress(values, self._is_whole))

    def note(self, old: Sequence[Any], new: Sequence[Any], staleness: int) -> None:
        """Takes the weights before and after the update."""
        self.old, self.new, self.staleness = self._whole(old), self._whole(new), staleness


class Vigil:
    """Feeds a `StabilityWatch` from pairs of pushes and warns with what it says."""

    def __init__(self) -> None:
        self._watch = StabilityWatch()
        self._first: dict[int, Probe] = {}

    def wants(self, worker: int, sequence: int) -> bool:
        """Whether the push of a worker with this number is looked at: it is one of a pair."""
        return sequence % _EVERY == 0 or self.wants_steps(worker, sequence)

    def wants_steps(self, worker: int, sequence: int) -> bool:
        """Whether it is the second of its pair, of which the steps are looked at, too."""
        return sequence % _EVERY == 1 and worker in self._first

    def forget(self) -> None:
        """Lets go of first halves of pairs, which hold weights and gradients."""
        self._first.clear()

    def observe(self, worker: int, sequence: int, probe: Probe) -> None:
        """Takes a push that has ended; called by its worker."""
        if sequence % _EVERY == 0:
            self._first[worker] = probe
            return
        first = self._first.pop(worker, None)
        if first is None or not probe.new or not first.goes_with(probe):
            return
        numbers = _products(
            first.weights, probe.weights, first.gradients, probe.gradients, probe.old, probe.new
        )
        moved, bent, along, square = np.asarray(numbers).tolist()
        if square <= 0:
            return
        with handover:
            said = self._watch.observe(probe.staleness, -along / square, secant=(moved, bent))
        if said is not None:
            warnings.warn(said, stacklevel=2)


@jax.jit
def _copies(arrays: Any) -> Any:
    return jax.tree.map(jnp.copy, arrays)


@jax.jit
def _products(weights: Any, later: Any, gradients: Any, newer: Any, old: Any, new: Any) -> Any:
    """|dw|^2, dw.dg, step.g and |g|^2 over all weights."""

    def dot(left: Any, right: Any) -> Any:
        parts = [jnp.vdot(a, b) for a, b in zip(left, right, strict=True)]
        return jnp.sum(jnp.stack([part.astype(jnp.float32) for part in parts]))

    def difference(start: Any, end: Any) -> list[Any]:
        return [b - a for a, b in zip(start, end, strict=True)]

    dw, dg = difference(weights, later), difference(gradients, newer)
    steps = difference(old, new)
    return jnp.stack([dot(dw, dw), dot(dw, dg), dot(steps, newer), dot(newer, newer)])
