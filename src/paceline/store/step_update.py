"""The updates that pushes of a step carry: one alone, or a group merged into one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from paceline.store.rules import group_scale, merge_weights, merged
from paceline.store.store_half import union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.store.rules import UpdateRule
    from paceline.store.store import Push
    from paceline.store.store_half import StoreHalf, StoreHalves

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
        halves: the store half, in its parts.
        residuals: from the worker half, on the store's device.
        backups: for each part the weights that the worker read, where the rule needs them.
        worker: who computed it.
        states: the rule's memory.
        probe: is told what the update did, where somebody wants to know.
    """

    halves: StoreHalves
    residuals: Sequence[Any]
    backups: Sequence[Sequence[Any]]
    worker: int
    states: RuleStates
    probe: Probe | None = None

    @property
    def reads(self) -> list[Any]:
        """The variables whose current values it takes."""
        return self.halves.variables

    @property
    def writes(self) -> list[Any]:
        """The variables that it gives new values."""
        return self.halves.writes

    def __call__(self, current: Sequence[Any], staleness: int) -> list[Any]:
        """Runs the parts, each on the values as they were."""
        values = dict(zip(map(id, self.reads), current, strict=True))
        new: list[Any] = []
        for half, backup in zip(self.halves.parts, self.backups, strict=True):
            own_values = [values[id(variable)] for variable in half.variables]
            shared, own = self.states.of(half, self.worker, own_values)
            updated, kept, shared, own = half.apply(
                own_values, self.residuals, np.float32(staleness), backup, shared, own
            )
            self.states.put(half, self.worker, shared, own)
            new += [*updated, *kept]
        if self.probe is not None:
            after = values | dict(zip(map(id, self.writes), new, strict=True))
            homes = self.halves.homes
            old_homes = [values[id(variable)] for variable in homes]
            self.probe.note(old_homes, [after[id(variable)] for variable in homes], staleness)
        return new


class Probe(Protocol):
    """Somebody who wants to know what an update did to the weights."""

    def note(self, old: Sequence[Any], new: Sequence[Any], staleness: int) -> None:
        """Takes the weights before and after, in the order of the gradients."""
        ...


class GroupUpdate:
    """Several pushes as one update: their gradients merged, everything else one by one.

    Args:
        group: pushes of `StepUpdate`s with their staleness.
        merge: "mean" weighs gradients with the examples behind them; "sum" adds them.
    """

    def __init__(self, group: Sequence[tuple[Push, int]], merge: Merge) -> None:
        self._merge: Merge = merge
        self._members = [
            _Member(half, push.update, backup, push.examples, np.float32(stale))
            for push, stale in group
            for half, backup in zip(push.update.halves.parts, push.update.backups, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
        ]
        self.reads = union(member.half.variables for member in self._members)
        self.writes = union([*member.half.updated, *member.half.kept] for member in self._members)

    def __call__(self, current: Sequence[Any], staleness: int) -> list[Any]:
        """Applies what is no gradient in order, then each form's merged gradients once."""
        values = dict(zip(map(id, self.reads), current, strict=True))
        forms: dict[Any, list[_Member]] = {}
        for member in self._members:
            half = member.half
            if half.kept:
                new = half.keep(member.current(values), member.update.residuals)
                values.update(zip(map(id, half.kept), new, strict=True))
            if half.updated:
                forms.setdefault(half.form, []).append(member)
        before = values.copy()  # parts that share a variable read it as it was
        for members in forms.values():
            self._update(members, before, values)
        return [values[id(variable)] for variable in self.writes]

    def _update(
        self, members: Sequence[_Member], before: dict[int, Any], values: dict[int, Any]
    ) -> None:
        grads, scales = [], []
        for member in members:
            half, update = member.half, member.update
            current = member.current(before)
            shared, own = update.states.of(half, update.worker, current)
            corrected, shared, own = half.correct(
                current, update.residuals, member.staleness, member.backup, shared, own
            )
            update.states.put(half, update.worker, shared, own)
            grads.append(corrected)
            factor = update.states.rule.scale(member.staleness)
            scales.append(1.0 if factor is None else factor)
        weights = merge_weights(self._merge, [member.examples for member in members])
        weights, scale = group_scale(weights, np.asarray(scales, np.float32))
        last = members[-1]
        half, states = last.half, last.update.states
        current = last.current(before)
        shared, _ = states.of(half, last.update.worker, current)
        new, shared = half.update(
            current, last.update.residuals, merged(grads, weights), scale, shared
        )
        values.update(zip(map(id, half.updated), new, strict=True))
        states.put_shared(half, shared)


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """One push's part of a group, on one server."""

    half: StoreHalf
    update: Any
    backup: Sequence[Any]
    examples: int
    staleness: np.float32

    def current(self, values: dict[int, Any]) -> list[Any]:
        """What its half takes of the current values."""
        return [values[id(variable)] for variable in self.half.variables]
