"""What every pace promises, under any interleaving of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pace_driver import Driver
from paceline.pace import Asynchronous, BoundedStaleness, Pace, Softsync, Synchronous

WORKERS = st.integers(0, 4)
PACES = st.one_of(
    st.builds(Synchronous, st.integers(0, 6)),
    st.builds(Softsync, st.integers(1, 6)),
    st.builds(BoundedStaleness, st.integers(0, 4)),
    st.builds(Asynchronous, st.none() | st.integers(0, 6)),
)


class AnyInterleaving(RuleBasedStateMachine):
    """The driver checks that no push is decided twice; what is left is checked here."""

    @initialize(pace=PACES, num_workers=st.integers(0, 4))
    def begin(self, pace: Pace, num_workers: int) -> None:
        self.pace = pace
        self.driver = Driver(pace, num_workers)
        self.live = set(range(num_workers))
        self.members = set(self.live)
        # The clocks of all members, kept by the rules of the docstrings.
        self.clocks = dict.fromkeys(self.live, 0)
        self.last_clock = 0
        self.lost: list[tuple[int, int]] = []

    @rule(worker=WORKERS)
    def join(self, worker: int) -> None:
        if worker not in self.live:
            slowest = min((self.clocks[other] for other in self.live), default=self.last_clock)
            self.clocks[worker] = max(slowest, self.clocks.get(worker, slowest))
        self.live.add(worker)
        self.members.add(worker)
        self.driver.machine.join(worker)

    @rule(worker=WORKERS)
    def leave(self, worker: int) -> None:
        if worker in self.driver.computing:
            self.lost.append((worker, self.driver.computing[worker]))
        self._rest(worker)
        self.members.discard(worker)
        self.clocks.pop(worker, None)
        self.driver.leave(worker)

    @rule(worker=WORKERS)
    def finish(self, worker: int) -> None:
        self._rest(worker)
        self.driver.finish(worker)

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        idle = sorted(self._may_start())
        if not idle:
            return
        worker = data.draw(st.sampled_from(idle))
        if isinstance(self.pace, BoundedStaleness):
            slowest = min(self.clocks[other] for other in self.live)
            assert self.clocks[worker] - slowest <= self.pace.bound
        self.driver.start(worker)

    @precondition(lambda self: self.driver.computing)
    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.driver.computing)))
        num_dropped = len(self.driver.dropped)
        self.driver.push(worker)
        if len(self.driver.dropped) == num_dropped:
            self.clocks[worker] += 1
        else:
            assert f"Worker {worker} " in list(self.driver.dropped.values())[-1]

    @precondition(lambda self: self.lost)
    @rule()
    def push_of_a_lost_worker(self) -> None:
        worker, read_version = self.lost.pop()
        if worker not in self.members:
            self.driver.push_late(worker, read_version)
            assert "has left" in list(self.driver.dropped.values())[-1]

    @rule()
    def close(self) -> None:
        if self.pace == BoundedStaleness(0) and self.driver.held:  # the round ends for all
            last = max(self.clocks[worker] for worker in self.members)
            self.clocks.update(dict.fromkeys(self.live, last))
        self.driver.close()

    @invariant()
    def nobody_waits_forever(self) -> None:
        computing = self.live & self.driver.computing.keys()
        assert computing or not self.live or self._may_start()

    @invariant()
    def nobody_waits_where_nobody_should(self) -> None:
        if isinstance(self.pace, Softsync | Asynchronous):
            assert self._may_start() == self.live - self.driver.computing.keys()

    @invariant()
    def only_members_start(self) -> None:
        for worker in {0, 1, 2, 3, 4} - self.live:
            assert self.driver.why_wait(worker)

    @invariant()
    def updates_are_what_the_pace_allows(self) -> None:
        for update in self.driver.updates[-1:]:
            workers = [push.worker for push in update]
            staleness = [push.staleness for push in update]
            match self.pace:
                case Synchronous() | BoundedStaleness(bound=0):
                    assert len(set(workers)) == len(workers)
                    assert not any(staleness)
                case Softsync(pushes):
                    assert len(update) <= pushes
                case Asynchronous(max_staleness):
                    assert len(update) == 1
                    assert max_staleness is None or staleness[0] <= max_staleness
                case _:
                    assert len(update) == 1

    @invariant()
    def nothing_is_held_without_somebody_to_wait_for(self) -> None:
        assert not self.driver.held or self.live

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            for worker in list(self.driver.computing):
                self.driver.push(worker)
            self.driver.close()

    def _rest(self, worker: int) -> None:
        if worker in self.live:
            self.live.remove(worker)
            self.last_clock = self.clocks[worker]

    def _may_start(self) -> set[int]:
        idle = self.live - self.driver.computing.keys()
        return {worker for worker in idle if not self.driver.why_wait(worker)}


AnyInterleaving.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
TestAnyInterleaving = AnyInterleaving.TestCase
