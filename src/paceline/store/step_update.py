"""The updates that pushes of a step carry: one alone, or a group merged into one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, Protocol

import jax
import numpy as np

from paceline.store.rules import UpdateRule, group_scale, merge_weights, merged
from paceline.store.store_half import union
from paceline.types import VariableAggregation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.store.store import Push
    from paceline.store.store_half import StoreHalf, StoreHalves

Merge = Literal["mean", "sum"]


class RuleStates:
    """What update rules remember, per form of step and per worker.

    Args:
        rule: the rule.

    Attributes:
        is_stateless: whether that is nothing.
    """

    def __init__(self, rule: UpdateRule) -> None:
        self.rule = rule
        self.is_stateless = type(rule).init is UpdateRule.init
        self._shared: dict[Any, Any] = {}
        self._own: dict[Any, Any] = {}
        self._variables: dict[Any, Any] = {}  # kept alive: forms know them by id

    def of(self, half: StoreHalf, worker: int, current: Sequence[Any]) -> tuple[Any, Any]:
        """The state shared by all workers, and the one of `worker`."""
        form = half.form
        if form not in self._shared:
            self._variables[form] = [half.homes, half.updated]
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

    def draft(self) -> RuleStates:
        """A copy to try an update on."""
        copied = RuleStates(self.rule)
        copied.accept(self)
        return copied

    def accept(self, other: RuleStates) -> None:
        """Takes over what a copy has come to remember."""
        self._shared = other._shared.copy()
        self._own = other._own.copy()
        self._variables = other._variables.copy()


@dataclasses.dataclass(frozen=True, slots=True)
class StepUpdate:
    """What one run of a worker half asks of the store; its keys are the variables.

    Attributes:
        halves: the store half, in its parts.
        residuals: from the worker half, on the store's device or of the host.
        backups: for each part the weights that the worker read, where the rule needs them.
        worker: who computed it.
        states: the rule's memory.
        given: which of the residuals new values may take the memory of, where it is applied alone.
        probe: is told what the update did, where somebody wants to know.
    """

    halves: StoreHalves
    residuals: Sequence[Any]
    backups: Sequence[Sequence[Any]]
    worker: int
    states: RuleStates
    given: frozenset[int] = frozenset()
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
        with jax.default_device(self.halves.device):
            return self._applied(current, staleness)

    def _applied(self, current: Sequence[Any], staleness: int) -> list[Any]:
        if self.states.is_stateless and self.probe is None and len(self.halves.parts) == 1:
            (half,), (backup,) = self.halves.parts, self.backups
            updated, kept, _, _ = half.apply(
                current, self.residuals, self.given, np.float32(staleness), backup, (), ()
            )
            return [*updated, *kept]
        values = dict(zip(map(id, self.reads), current, strict=True))
        new: list[Any] = []
        learnt: list[Any] = []
        for half, backup in zip(self.halves.parts, self.backups, strict=True):
            own_values = half.of(values)
            shared, own = self.states.of(half, self.worker, own_values)
            updated, kept, shared, own = half.apply(
                own_values, self.residuals, self.given, np.float32(staleness), backup, shared, own
            )
            learnt.append((half, shared, own))
            new += [*updated, *kept]
        for half, shared, own in learnt:
            self.states.put(half, self.worker, shared, own)
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

    Writes to a variable that declares an aggregation MEAN or ONLY_FIRST_REPLICA are combined, as
    those of replicas in one step are: each is carried out on the value from before the group.

    Args:
        group: pushes of `StepUpdate`s with their staleness.
        merge: "mean" weighs gradients with the examples behind them; "sum" adds them.
    """

    def __init__(self, group: Sequence[tuple[Push, int]], merge: Merge) -> None:
        self._merge: Merge = merge
        self._members = [
            _Member(push.update, push.examples, np.float32(stale))  # pyright: ignore[reportArgumentType]
            for push, stale in group
        ]
        halves = [member.update.halves for member in self._members]
        self.reads = union(half.variables for half in halves)
        self.writes = union(half.writes for half in halves)

    def __call__(self, current: Sequence[Any], staleness: int) -> list[Any]:
        """Applies what is no optimizer's push by push, then merged gradients once for each form."""
        with jax.default_device(self._members[0].update.halves.device):
            return self._applied(current)

    def _applied(self, current: Sequence[Any]) -> list[Any]:
        values = dict(zip(map(id, self.reads), current, strict=True))
        known = self._members[0].update.states
        states = known.draft()
        alike: dict[Any, list[_Member]] = {}
        combined: dict[int, _Combined] = {}
        for member in self._members:
            before = values.copy()
            for half in member.update.halves.parts:
                new = half.keep(half.of(before), member.update.residuals) if half.kept else ()
                for variable, value in zip(half.kept, new, strict=True):
                    if _is_combined(variable):
                        written = combined.setdefault(id(variable), _Combined(variable))
                        written.add(value, member.examples)
                    else:
                        values[id(variable)] = value
            alike.setdefault(member.update.halves.form, []).append(member)
        values.update((key, written.value()) for key, written in combined.items())
        for members in alike.values():
            before = values.copy()
            for place, half in enumerate(members[-1].update.halves.parts):
                if half.updated:
                    new = self._updated(members, place, before, states)
                    values.update(zip(map(id, half.updated), new, strict=True))
        known.accept(states)
        return [values[id(variable)] for variable in self.writes]

    def _updated(
        self, members: Sequence[_Member], place: int, values: dict[int, Any], states: RuleStates
    ) -> list[Any]:
        """New values of what one part updates, from the gradients of all members."""
        grads, scales = [], []
        for member in members:
            update, staleness = member.update, member.staleness
            half, backup = update.halves.parts[place], update.backups[place]
            if half.corrects:
                current = half.of(values)
                shared, own = states.of(half, update.worker, current)
                corrected, shared, own = half.correct(
                    current, update.residuals, staleness, backup, shared, own
                )
                states.put(half, update.worker, shared, own)
                grads.append(corrected)
            else:
                grads.append(half.gradients_of(update.residuals))
            factor = states.rule.scale(staleness)
            scales.append(1.0 if factor is None else factor)
        weights = merge_weights(self._merge, [member.examples for member in members])
        weights, scale = group_scale(weights, np.asarray(scales, np.float32))
        last = members[-1].update
        half = last.halves.parts[place]
        shared, _ = states.of(half, last.worker, half.of(values))
        new, shared = half.update(
            half.of(values), last.residuals, merged(grads, weights), scale, shared
        )
        states.put_shared(half, shared)
        return new


def _is_combined(variable: Any) -> bool:
    declared = (VariableAggregation.MEAN, VariableAggregation.ONLY_FIRST_REPLICA)
    return variable.aggregation in declared and not variable.is_on_read


class _Combined:
    """What the pushes of a group wrote to a variable that says how writes combine."""

    def __init__(self, variable: Any) -> None:
        self._is_mean = variable.aggregation is VariableAggregation.MEAN
        self._values: list[Any] = []
        self._examples: list[int] = []

    def add(self, value: Any, examples: int) -> None:
        """Takes what one push wrote, on the value from before the group."""
        self._values.append(value)
        self._examples.append(examples)

    def value(self) -> Any:
        """The mean, weighted by examples, or the first push's value."""
        if not self._is_mean:
            return self._values[0]
        weights = merge_weights("mean", self._examples)
        return merged([[value] for value in self._values], weights)[0]


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """One push of a group."""

    update: StepUpdate
    examples: int
    staleness: Any  # float32 scalar
