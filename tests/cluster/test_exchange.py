"""Store and pace as one machine, by event lists and under any interleaving."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paceline.cluster.exchange import Exchange, Outcome
from paceline.pace import Asynchronous, BoundedStaleness, Pace, Softsync, Synchronous
from paceline.store.store import AssignAdd, Push, Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.cluster.records import PushRecord


@dataclasses.dataclass(frozen=True)
class Sum:
    """Adds what all pushes of a group add."""

    group: Sequence[tuple[Push, int]]
    reads = writes = ("w",)

    def __call__(self, current: Sequence[Any], staleness: int) -> tuple[Any]:
        updates: list[Any] = [push.update for push, _ in self.group]
        return (current[0] + sum(update.delta for update in updates),)


class Run:
    """An exchange over one number, and the workers' side of its protocol."""

    def __init__(self, pace: Pace, num_workers: int) -> None:
        self.records: list[PushRecord] = []
        self.arrays = {"w": 0}
        self.groups: list[list[int]] = []
        self.exchange = Exchange(Store(self.arrays), pace, self._combine, self.records.append)
        self.read: dict[int, int] = {}
        self.sequence = 0
        for worker in range(num_workers):
            self.exchange.join(worker)

    def _combine(self, group: Sequence[tuple[Push, int]]) -> Sum:
        self.groups.append([push.worker for push, _ in group])
        return Sum(group)

    @property
    def value(self) -> int:
        return self.arrays["w"]

    @property
    def version(self) -> int:
        return self.exchange.store.version

    def pull(self, worker: int, at: float = 0.0) -> int:
        permission = self.exchange.may_pull(worker)
        assert permission.is_granted, permission.reason
        snapshot = self.exchange.pull(worker, ["w"], at)
        assert snapshot.values == (self.value,)
        self.read[worker] = snapshot.version
        return snapshot.values[0]

    def made(self, worker: int, delta: int, incarnation: int = 0) -> Push:
        self.sequence += 1
        update = AssignAdd("w", delta)
        return Push(worker, incarnation, self.sequence, self.read[worker], update, None, 7)

    def push(self, worker: int, delta: int = 1, at: float = 0.0) -> Outcome:
        return self.exchange.push(self.made(worker, delta), at)

    def step(self, worker: int, delta: int = 1, at: float = 0.0) -> Outcome:
        self.exchange.ask(worker, at)
        self.pull(worker, at)
        return self.push(worker, delta, at)

    def told(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(getattr(record, name) for name in names) for record in self.records]


# Outcomes and records --------------------------------------------------------------------------


def test_a_record_says_what_happened_and_when() -> None:
    run = Run(Asynchronous(), 2)
    run.exchange.ask(0, 1.0)
    run.exchange.ask(1, 2.0)
    run.pull(0, 1.5)
    run.pull(1, 4.0)
    assert run.push(1, 5, at=4.25).kind == "applied"
    assert run.push(0, 3, at=9.5).kind == "applied"
    assert run.value == 8
    names = "worker", "outcome", "read_version", "apply_version", "staleness"
    assert run.told(*names) == [(1, "applied", 0, 0, 0), (0, "applied", 0, 1, 1)]
    times = "wait", "compute", "finished_at", "examples"
    assert run.told(*times) == [(2.0, 0.25, 4.25, 7), (0.5, 8.0, 9.5, 7)]


def test_free_running_drops_what_is_too_stale() -> None:
    run = Run(Asynchronous(max_staleness=1), 3)
    for worker in range(3):
        run.pull(worker)
    assert [run.push(worker, 10**worker).kind for worker in range(3)] == [
        "applied",
        "applied",
        "dropped",
    ]
    assert (run.value, run.version) == (11, 2)
    (reason,) = [record.reason for record in run.records if record.outcome == "dropped"]
    assert "Worker 2" in reason
    assert "staleness 2" in reason
    assert run.step(2, 100).kind == "applied"


def test_lockstep_holds_pushes_and_applies_them_as_one() -> None:
    run = Run(Synchronous(), 3)
    for worker in range(3):
        run.pull(worker)
    held = [run.push(worker, 10**worker, at=worker) for worker in (2, 0)]
    assert [outcome.kind for outcome in held] == ["held", "held"]
    assert "waits for worker 1" in held[1].reason
    assert not run.exchange.may_pull(0).is_granted
    assert (run.value, run.version, run.records) == (0, 0, [])
    assert run.push(1, 10, at=5.0).kind == "applied"
    assert (run.value, run.version, run.groups) == (111, 1, [[2, 0, 1]])
    assert run.told("worker", "staleness", "finished_at") == [(2, 0, 5.0), (0, 0, 5.0), (1, 0, 5.0)]
    assert run.exchange.may_pull(0).is_granted


def test_a_backup_closes_the_round_and_the_late_push_is_dropped() -> None:
    run = Run(Synchronous(backups=1), 3)
    for worker in range(3):
        run.pull(worker)
    assert [run.push(worker).kind for worker in (0, 2)] == ["held", "applied"]
    late = run.push(1, 100)
    assert late.kind == "dropped"
    assert "round 1" in late.reason
    assert "orker 1" in late.reason
    assert (run.value, run.version) == (2, 1)


def test_softsync_groups_whoever_comes() -> None:
    run = Run(Softsync(2), 3)
    run.pull(1)
    assert [run.step(0, 1).kind, run.step(0, 10).kind] == ["held", "applied"]
    assert run.push(1, 100).kind == "held"
    run.exchange.flush(3.0)
    assert (run.value, run.version) == (111, 2)
    assert run.told("worker", "staleness") == [(0, 0), (0, 0), (1, 1)]


def test_a_flush_applies_what_is_held_and_does_nothing_twice() -> None:
    run = Run(Synchronous(), 2)
    run.step(0, 5)
    run.exchange.flush(1.0)
    run.exchange.flush(2.0)
    assert (run.value, run.version) == (5, 1)
    assert run.told("outcome", "finished_at") == [("applied", 1.0)]


@pytest.mark.parametrize("event", ["leave", "finish"])
def test_a_round_closes_when_the_one_it_waits_for_goes(event: str) -> None:
    run = Run(Synchronous(), 3)
    run.step(0, 1)
    run.step(1, 10)
    getattr(run.exchange, event)(2, 4.0)
    assert (run.value, run.version, run.groups) == (11, 1, [[0, 1]])


@pytest.mark.parametrize("event", ["leave", "finish"])
def test_what_a_worker_pushed_before_it_went_counts(event: str) -> None:
    run = Run(Synchronous(), 2)
    run.step(0, 1)
    getattr(run.exchange, event)(0, 1.0)
    assert run.version == 0
    assert run.step(1, 10).kind == "applied"
    assert (run.value, run.version, run.groups) == (11, 1, [[0, 1]])


# Repetitions, replaced and unknown workers -----------------------------------------------------


def test_a_push_counts_once() -> None:
    run = Run(Asynchronous(), 1)
    run.pull(0)
    push = run.made(0, 5)
    kinds = [run.exchange.push(push, at).kind for at in (1.0, 2.0)]
    assert kinds == ["applied", "duplicate"]
    assert (run.value, run.version) == (5, 1)
    assert run.told("outcome", "apply_version") == [("applied", 0), ("duplicate", 1)]


def test_a_push_that_is_held_counts_once() -> None:
    run = Run(Synchronous(), 2)
    run.pull(0)
    push = run.made(0, 5)
    assert [run.exchange.push(push, 1.0).kind for _ in range(2)] == ["held", "duplicate"]
    run.step(1, 10)
    assert (run.value, run.version) == (15, 1)


def test_the_push_of_a_replaced_worker_does_not_count() -> None:
    run = Run(Asynchronous(), 2)
    run.pull(0)
    late = run.made(0, 5)
    run.exchange.leave(0, 1.0)
    run.exchange.join(0, incarnation=1)
    outcome = run.exchange.push(late, 2.0)
    assert outcome.kind == "dropped"
    assert "replaced" in outcome.reason
    run.pull(0)
    assert run.exchange.push(run.made(0, 7, incarnation=1), 3.0).kind == "applied"
    assert (run.value, run.version) == (7, 1)


def test_the_push_of_a_worker_that_left_does_not_count() -> None:
    run = Run(Asynchronous(), 2)
    run.pull(0)
    run.exchange.leave(0, 1.0)
    outcome = run.push(0)
    assert outcome == Outcome("dropped", "worker:0 is no member")
    assert run.told("outcome", "reason") == [("dropped", "worker:0 is no member")]


def test_joining_again_on_the_way_changes_nothing() -> None:
    run = Run(Asynchronous(), 1)
    run.exchange.ask(0, 1.0)
    run.pull(0, 2.0)
    run.exchange.join(0)
    run.push(0, at=5.0)
    assert run.told("wait", "compute") == [(1.0, 3.0)]


def test_a_worker_that_is_lost_while_it_rests_loses_its_lead() -> None:
    run = Run(BoundedStaleness(1), 2)
    run.step(0)
    run.step(0)
    run.exchange.finish(0, 1.0)
    run.exchange.leave(0, 1.0)
    run.exchange.join(0, incarnation=1)
    assert run.exchange.may_pull(0).is_granted


# Writes without gradients, and updates of code that is not compiled ----------------------------


def test_a_write_keeps_no_pace() -> None:
    run = Run(Synchronous(), 2)
    run.read[0] = 0
    push = run.made(0, 5)
    assert [run.exchange.write(push, 0.0).kind for _ in range(2)] == ["applied", "duplicate"]
    assert (run.value, run.version) == (5, 1)


def test_an_update_that_runs_itself_is_counted() -> None:
    run = Run(Asynchronous(), 1)
    run.pull(0)
    run.step(0)
    assert run.exchange.run(lambda: "done", 0) == "done"
    assert run.version == 2
    run.exchange.note_run(0, 0, 1, 0.5, 3.0)
    assert run.told("staleness", "compute", "finished_at")[-1] == (1, 0.5, 3.0)


def test_an_update_that_fails_is_not_counted() -> None:
    run = Run(Asynchronous(), 1)
    with pytest.raises(ZeroDivisionError):
        run.exchange.run(lambda: 1 / 0, 0)
    assert (run.version, run.records) == (0, [])


def test_a_push_that_fails_leaves_the_exchange_usable() -> None:
    run = Run(Asynchronous(), 2)
    for worker in (0, 1):
        run.pull(worker)
    with pytest.raises(TypeError):
        run.push(0, "no number")  # pyright: ignore[reportArgumentType]
    assert (run.version, run.value) == (0, 0)
    assert run.told("worker", "outcome") == [(0, "dropped")]
    assert "TypeError" in run.records[0].reason
    assert run.push(1, 4).kind == "applied"
    assert run.step(0, 5).kind == "applied"
    run.exchange.flush(0.0)
    assert (run.version, run.value) == (2, 9)


def test_all_pushes_of_a_group_that_fails_are_accounted_for() -> None:
    run = Run(Synchronous(), 2)
    run.step(0, 5)
    with pytest.raises(TypeError):
        run.step(1, "no number")  # pyright: ignore[reportArgumentType]
    assert (run.version, run.value) == (0, 0)
    assert run.told("worker", "outcome") == [(0, "dropped"), (1, "dropped")]
    assert [run.step(worker, 1).kind for worker in (0, 1)] == ["held", "applied"]
    assert (run.version, run.value) == (1, 2)


# Changing the pace -----------------------------------------------------------------------------


def test_a_new_pace_applies_what_the_old_one_held() -> None:
    run = Run(Softsync(3), 3)
    run.step(0, 1)
    run.step(1, 10)
    run.pull(2)
    run.exchange.set_pace(Asynchronous(), 2.0)
    assert (run.value, run.version, run.groups) == (11, 1, [[0, 1]])
    assert run.push(2, 100).kind == "applied"
    assert run.told("worker", "staleness") == [(0, 0), (1, 0), (2, 1)]


def test_what_was_on_its_way_is_too_late_for_a_round() -> None:
    run = Run(Asynchronous(), 2)
    run.pull(0)
    run.exchange.set_pace(Synchronous(), 0.0)
    assert run.push(0).kind == "dropped"
    assert [run.step(worker, 10).kind for worker in (0, 1)] == ["held", "applied"]
    assert (run.value, run.version) == (20, 1)


def test_a_worker_that_rests_takes_no_part_in_the_new_pace() -> None:
    run = Run(Asynchronous(), 2)
    run.exchange.finish(1, 0.0)
    run.exchange.set_pace(Synchronous(), 0.0)
    assert run.step(0).kind == "applied"
    run.exchange.join(1)
    assert [run.step(worker).kind for worker in (0, 1)] == ["held", "applied"]


# Any interleaving ------------------------------------------------------------------------------

WORKERS = st.integers(0, 3)
PACES = st.one_of(
    st.builds(Synchronous, st.integers(0, 4)),
    st.builds(Softsync, st.integers(1, 5)),
    st.builds(BoundedStaleness, st.integers(0, 3)),
    st.builds(Asynchronous, st.none() | st.integers(0, 4)),
)


class AnyInterleaving(RuleBasedStateMachine):
    """Every push adds a power of two of its own, so that the value says which were counted."""

    @initialize(pace=PACES, num_workers=st.integers(0, 4))
    def begin(self, pace: Pace, num_workers: int) -> None:
        self.run = Run(pace, num_workers)
        self.now = 0.0
        self.incarnation = [0] * 4
        self.pulled: dict[int, int] = {}  # worker: incarnation that pulled
        self.sent: dict[int, Push] = {}  # power: push
        self.expected: dict[int, str] = {}
        self.last: Push | None = None

    def _members(self) -> list[int]:
        return [worker for worker in range(4) if self.run.exchange.is_member(worker)]

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(worker=WORKERS)
    def join(self, worker: int) -> None:
        self.run.exchange.join(worker, self.incarnation[worker])

    @rule(worker=WORKERS)
    def finish(self, worker: int) -> None:
        if worker not in self.pulled:
            self.run.exchange.finish(worker, self.now)

    @rule(worker=WORKERS, delivers_late=st.booleans())
    def replace(self, worker: int, delivers_late: bool) -> None:
        self.run.exchange.leave(worker, self.now)
        old = self.incarnation[worker]
        self.incarnation[worker] += 1
        self.run.exchange.join(worker, self.incarnation[worker])
        if self.pulled.pop(worker, None) is not None and delivers_late:
            outcome = self._send(worker, old)
            assert outcome.kind == "dropped"

    @rule(worker=WORKERS)
    def pull(self, worker: int) -> None:
        exchange = self.run.exchange
        if worker not in self._members() or worker in self.pulled:
            return
        exchange.ask(worker, self.now)
        if exchange.may_pull(worker).is_granted:
            self.run.pull(worker, self.now)
            self.pulled[worker] = self.incarnation[worker]

    @rule(worker=WORKERS)
    def push(self, worker: int) -> None:
        if worker in self.pulled:
            del self.pulled[worker]
            self._send(worker, self.incarnation[worker])

    def _send(self, worker: int, incarnation: int) -> Outcome:
        power = len(self.sent)
        self.last = self.sent[power] = self.run.made(worker, 1 << power, incarnation)
        outcome = self.run.exchange.push(self.last, self.now)
        self.expected[power] = outcome.kind
        assert outcome.reason
        return outcome

    @rule()
    def repeat(self) -> None:
        if self.last is not None:
            before = self.run.value, self.run.version
            assert self.run.exchange.push(self.last, self.now).kind in ("duplicate", "dropped")
            assert (self.run.value, self.run.version) == before

    @rule(pace=PACES)
    def set_pace(self, pace: Pace) -> None:
        self.run.exchange.set_pace(pace, self.now)

    @rule()
    def flush(self) -> None:
        self.run.exchange.flush(self.now)
        assert self._counted() == {p for p, kind in self.expected.items() if kind != "dropped"}

    def _counted(self) -> set[int]:
        return {power for power in self.sent if self.run.value >> power & 1}

    @invariant()
    def what_is_counted_was_applied_or_held(self) -> None:
        counted = self._counted()
        for power, kind in self.expected.items():
            if kind != "held":
                assert (power in counted) == (kind == "applied")
        applied = [record for record in self.run.records if record.outcome == "applied"]
        assert len(applied) == len(counted)
        assert len({record.apply_version for record in applied}) == self.run.version
        assert self.run.value < 1 << len(self.sent)  # nothing was added twice

    @invariant()
    def records_make_sense(self) -> None:
        for record in self.run.records:
            assert record.staleness == record.apply_version - record.read_version >= 0
            assert record.wait >= 0
            assert record.compute >= 0
            assert record.finished_at <= self.now
            assert (record.reason == "") == (record.outcome == "applied")

    @invariant()
    def nobody_waits_forever(self) -> None:
        members = self._members()
        if members and not set(self.pulled) & set(members):
            assert any(self.run.exchange.may_pull(worker).is_granted for worker in members)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.flush()


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
