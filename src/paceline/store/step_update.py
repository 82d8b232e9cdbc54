"""The updates that pushes of a step carry: one alone, or a group merged into one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from paceline.store.rules import group_scale, merge_weights, merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.store.rules import UpdateRule
    from paceline.store.store import Push
    from paceline.store.store_half import StoreHalf

Merge = Literal["mean", "sum"]


class RuleStates:
    """What update rules remember, per form of step and per worker.

    Args:
        rule: the rule.
    """

    def __init__(self, rule: UpdateRule) -> None:
        self.rule = rule
        self._shared: dict[Any, Any] = {}
        self._own: dict[Any, Any] = {}

    def of(self, half: StoreHalf, worker: int, current: Sequence[Any]) -> tuple[Any, Any]:
        """The state shared by all workers, and the one of `worker`."""
        form = half.form
        if form not in self._shared:
            self._shared[form], _ = half.initial_state(current)
        if (form, worker) not in self._own:
            _, self._own[form, worker] = half.initial_state(current)
        return self._shared[form], self._own[form, worker]

    def put(self, half: StoreHalf, worker: int, shared: Any, own: Any) -> None:
        """Remembers both."""
        self._shared[half.form], self._own[half.form, worker] = shared, own

    def put_shared(self, half: StoreHalf, shared: Any) -> None:
        """Remembers what all workers share."""
        self._shared[half.form] = shared


@dataclasses.dataclass(frozen=True, slots=True)
class StepUpdate:
    """What one run of a worker half asks of the store; its keys are the variables.

    Attributes:
        half: the store half.
        residuals: from the worker half, on the store's device.
        backup: the weights that the worker read, where the rule needs them.
        worker: who computed it.
        states: the rule's memory.
    """

    half: StoreHalf
    residuals: Sequence[Any]
    backup: Sequence[Any]
    worker: int
    states: RuleStates

    @property
    def reads(self) -> list[Any]:
        """The variables whose current values it takes."""
        return self.half.variables

    @property
    def writes(self) -> list[Any]:
        """The variables that it gives new values."""
        return [*self.half.updated, *self.half.kept]

    def __call__(self, current: Sequence[Any], staleness: int) -> list[Any]:
        """Runs the store half."""
        shared, own = self.states.of(self.half, self.worker, current)
        updated, kept, shared, own = self.half.apply(
            current, self.residuals, np.float32(staleness), self.backup, shared, own
        )
        self.states.put(self.half, self.worker, shared, own)
        return [*updated, *kept]


class GroupUpdate:
    """Several pushes as one update: their gradients merged, everything else one by one.

    Args:
        group: pushes of `StepUpdate`s with their staleness.
        merge: "mean" weighs gradients with the examples behind them; "sum" adds them.
    """

    def __init__(self, group: Sequence[tuple[Push, int]], merge: Merge) -> None:
        self._group = group
        self._merge: Merge = merge
        updates: list[StepUpdate] = [push.update for push, _ in group]  # pyright: ignore[reportAssignmentType]
        self.reads = _union(update.half.variables for update in updates)
        self.writes = _union(update.writes for update in updates)

    def __call__(self, current: Sequence[Any], staleness: int) -> list[Any]:
        """Applies what is no gradient in order, then each form's merged gradients once."""
        values = dict(zip(map(id, self.reads), current, strict=True))
        forms: dict[Any, list[tuple[Push, int]]] = {}
        for push, stale in self._group:
            update: Any = push.update
            half = update.half
            if half.kept:
                new = half.keep(_of(values, half.variables), update.residuals)
                values.update(zip(map(id, half.kept), new, strict=True))
            forms.setdefault(half.form, []).append((push, stale))
        for pushes in forms.values():
            if pushes[0][0].update.half.updated:  # pyright: ignore[reportAttributeAccessIssue]
                self._update(pushes, values)
        return [values[id(variable)] for variable in self.writes]

    def _update(self, pushes: Sequence[tuple[Push, int]], values: dict[int, Any]) -> None:
        grads, scales = [], []
        for push, stale in pushes:
            update: Any = push.update
            half, staleness = update.half, np.float32(stale)
            current = _of(values, half.variables)
            shared, own = update.states.of(half, update.worker, current)
            corrected, shared, own = half.correct(
                current, update.residuals, staleness, update.backup, shared, own
            )
            update.states.put(half, update.worker, shared, own)
            grads.append(corrected)
            factor = update.states.rule.scale(staleness)
            scales.append(1.0 if factor is None else factor)
        weights = merge_weights(self._merge, [push.examples for push, _ in pushes])
        weights, scale = group_scale(weights, np.asarray(scales, np.float32))
        last: Any = pushes[-1][0].update
        half = last.half
        new, shared = half.update(
            _of(values, half.variables), last.residuals, merged(grads, weights), scale,
            last.states.of(half, last.worker, [])[0],
        )  # fmt: skip
        values.update(zip(map(id, half.updated), new, strict=True))
        last.states.put_shared(half, shared)


def _union(groups: Any) -> list[Any]:
    return list({id(variable): variable for group in groups for variable in group}.values())


def _of(values: dict[int, Any], variables: Sequence[Any]) -> list[Any]:
    return [values[id(variable)] for variable in variables]
