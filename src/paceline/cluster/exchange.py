"""Store and pace as one machine: who may pull, and what becomes of a push.

Pure: the driver tells it what happened and when, and carries out what it answers. It keeps no
time of its own; the seconds it notes are those that the driver passes.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Literal

from paceline.cluster.records import PushRecord
from paceline.pace import Apply, Drop

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from paceline.pace import Decision, Pace, Permission
    from paceline.store.store import Push, Refusal, Snapshot, Store, Update

    Combine = Callable[[Sequence[tuple[Push, int]]], Update]
    _Held = tuple[Push, float, float, float]


@dataclasses.dataclass(slots=True)
class Outcome:
    """What became of a push.

    Attributes:
        kind: "held" pushes wait for their group and count; "dropped" ones do not count; of a
            "duplicate" holds what became of it when it first came.
        reason: why.
    """

    kind: Literal["applied", "held", "dropped", "duplicate"]
    reason: str


@dataclasses.dataclass(slots=True)
class _Member:
    asked_at: float | None = None  # since when it has waited for its pull
    pulled_at: float = 0.0
    wait: float = 0.0  # what it waited for that pull


class _Effect:
    """An update that happens by being called."""

    reads = writes = ()

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.result: Any = None

    def __call__(self, current: Sequence[Any], staleness: int) -> tuple[()]:
        self.result = self._call()
        return ()


class Exchange:
    """The one place through which workers reach the store.

    Args:
        store: the store.
        pace: how far workers may drift apart.
        combine: makes one update of a group of pushes, given with their staleness.
        record: is told of every push that ended.
    """

    def __init__(
        self, store: Store, pace: Pace, combine: Combine, record: Callable[[PushRecord], None]
    ) -> None:
        self.store = store
        self._pace = pace.machine()
        self._combine = combine
        self._record = record
        self._members: dict[int, _Member] = {}
        self._held: dict[int, _Held] = {}  # with wait, computation and time of arrival
        self._tickets = itertools.count()

    def join(self, worker: int, incarnation: int = 0) -> None:
        """Makes `worker` a live member; of its earlier incarnations no more pushes count."""
        self.store.expect(worker, incarnation)
        self._members.setdefault(worker, _Member())
        self._pace.join(worker)

    def leave(self, worker: int, now: float) -> None:
        """Takes a lost worker out; what it pushed before counts."""
        self._members.pop(worker, None)
        self._carry_out(self._pace.leave(worker), now)

    def finish(self, worker: int, now: float) -> None:
        """Notes that `worker` has no work for now: nobody waits for it until it joins again."""
        if self._members.pop(worker, None) is not None:
            self._carry_out(self._pace.finish(worker), now)

    @property
    def holds_starts(self) -> bool:
        """Whether a worker may have to wait before it may pull."""
        return self._pace.holds_starts

    @property
    def barrier(self) -> Hashable:
        """While this stays equal, workers that must wait have to; None: ask after each event."""
        return self._pace.barrier

    @property
    def has_held(self) -> bool:
        """Whether pushes wait for their group."""
        return bool(self._held)

    def must_wait(self, worker: int) -> bool:
        """Whether `may_pull` refuses a worker."""
        return self._pace.must_wait(worker)

    def is_member(self, worker: int) -> bool:
        """Whether others may have to wait for `worker`."""
        return worker in self._members

    def ask(self, worker: int, now: float) -> None:
        """Notes that `worker` wants to pull from `now` on, if it was not noted before."""
        member = self._members[worker]
        if member.asked_at is None:
            member.asked_at = now

    def has_asked(self, worker: int) -> bool:
        """Whether `worker` waits for its pull, as far as is noted."""
        member = self._members.get(worker)
        return member is not None and member.asked_at is not None

    def may_pull(self, worker: int) -> Permission:
        """Whether `worker` may pull now; if not it is asked for again after the next event."""
        return self._pace.may_start(worker)

    def pull(self, worker: int, keys: Sequence[Hashable], now: float) -> Snapshot:
        """Gives `worker`, which may pull, a snapshot."""
        member = self._members[worker]
        member.wait = 0.0 if member.asked_at is None else now - member.asked_at
        member.pulled_at, member.asked_at = now, None
        snapshot = self.store.pull(keys)
        self._pace.started(worker, snapshot.version)
        return snapshot

    def push(self, push: Push, now: float) -> Outcome:
        """Takes a push: applies it, holds it for its group, or drops it."""
        refusal = self.store.refusal(push)
        if refusal is not None:
            return self._refused(push, refusal, now)
        member = self._members.get(push.worker)
        if member is None:
            return self.refuse(push, f"worker:{push.worker} is no member", now)
        ticket = next(self._tickets)
        self._held[ticket] = (push, member.wait, now - member.pulled_at, now)
        decisions = self._pace.push(push.worker, ticket, push.read_version, self.store.version)
        self._carry_out(decisions, now)
        for decision in decisions:
            if isinstance(decision, Apply):
                if ticket in decision.tickets:
                    return Outcome("applied", decision.reason)
            elif decision.ticket == ticket:
                kind = "dropped" if isinstance(decision, Drop) else "held"
                return Outcome(kind, decision.reason)
        raise ValueError(f"the pace {self._pace!r} said nothing about a push")

    def write(self, push: Push, now: float) -> Outcome:
        """Takes a push without gradients, such as a metric's: it keeps no pace."""
        refusal = self.store.refusal(push)
        if refusal is not None:
            return self._refused(push, refusal, now)
        self.store.apply(push.update, push.read_version)
        return Outcome("applied", "A write without gradients is applied at once.")

    def refuse(self, push: Push, reason: str, now: float) -> Outcome:
        """Drops a push that the driver does not want to count."""
        self._note(push, 0.0, 0.0, now, "dropped", self.store.version, now, reason)
        return Outcome("dropped", reason)

    def _refused(self, push: Push, refusal: Refusal, now: float) -> Outcome:
        if not refusal.is_repetition:
            return self.refuse(push, refusal.reason, now)
        self._note(push, 0.0, 0.0, now, "duplicate", self.store.version, now, refusal.reason)
        return Outcome("duplicate", refusal.reason)

    def run(self, update: Callable[[], Any], read_version: int) -> Any:
        """Carries out an update that reads and writes the variables itself; returns its result."""
        effect = _Effect(update)
        self.store.apply(effect, read_version)
        return effect.result

    def note_run(
        self, worker: int, read_version: int, version: int, compute: float, now: float
    ) -> None:
        """Notes an update that `run` applied to `version`."""
        stale = version - read_version
        self._record(PushRecord(worker, "applied", read_version, version, stale, 0.0, compute, now))

    def set_pace(self, pace: Pace, now: float) -> None:
        """Changes the pace: what was held is applied, and all clocks start anew."""
        self._carry_out(self._pace.close(), now)
        self._pace = pace.machine()
        for worker in self._members:
            self._pace.join(worker)

    def flush(self, now: float) -> None:
        """Applies what is held: there is no more to come."""
        self._carry_out(self._pace.close(), now)

    def _carry_out(self, decisions: Sequence[Decision], now: float) -> None:
        for decision in decisions:
            if isinstance(decision, Apply):
                self._apply(list(map(self._held.pop, decision.tickets)), now)
            elif isinstance(decision, Drop):
                held = self._held.pop(decision.ticket)
                self._note(*held, "dropped", self.store.version, now, decision.reason)

    def _apply(self, group: Sequence[_Held], now: float) -> None:
        version = self.store.version
        first = group[0][0]
        try:
            if len(group) == 1:
                self.store.apply(first.update, first.read_version)
            else:
                stale = [(push, version - push.read_version) for push, *_ in group]
                self.store.apply(self._combine(stale), first.read_version)
        except Exception as error:
            for held in group:
                self._note(*held, "dropped", version, now, f"Its update failed: {error!r}")
            raise
        for held in group:
            self._note(*held, "applied", version, now, "")

    def _note(
        self, push: Push, wait: float, compute: float, came_at: float, outcome: str, version: int,
        now: float, reason: str,
    ) -> None:  # fmt: skip
        staleness = version - push.read_version
        self._record(
            PushRecord(
                push.worker,
                outcome,
                push.read_version,
                version,
                staleness,
                wait,
                compute,
                now,
                push.examples,
                reason,
                now - came_at,
            )
        )
