"""Drives a pace machine without threads or clock, and checks what all decisions must keep."""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, NamedTuple

from paceline.pace import Apply, Drop, Hold

if TYPE_CHECKING:
    from paceline.pace import Decision, Pace


class Push(NamedTuple):
    """Whose push it is, and how stale it was when it was applied."""

    worker: int
    staleness: int


class Driver:
    """Carries out a machine's decisions on a version counter. Tickets count from 0.

    Attributes:
        version: number of updates made.
        computing: the version that each computing worker has read.
        held: pushes that wait for their group.
        updates: the pushes of each update.
        dropped: why each dropped push was.
    """

    def __init__(self, pace: Pace, num_workers: int) -> None:
        self.machine = pace.machine()
        self.version = 0
        self.computing: dict[int, int] = {}
        self.held: set[int] = set()
        self.updates: list[list[Push]] = []
        self.dropped: dict[int, str] = {}
        self._pushes: list[tuple[int, int]] = []
        self._applied: set[int] = set()
        for worker in range(num_workers):
            self.machine.join(worker)

    def start(self, *workers: int) -> None:
        """Lets workers pull, which they must be allowed to."""
        for worker in workers:
            permission = self.machine.may_start(worker)
            assert permission.is_granted, permission.reason
            self.machine.started(worker, self.version)
            self.computing[worker] = self.version

    def why_wait(self, worker: int) -> str:
        """Returns why a worker must wait; empty if it must not."""
        permission = self.machine.may_start(worker)
        assert permission.is_granted == (not permission.reason)
        return permission.reason

    def push(self, worker: int) -> list[Decision]:
        """Lets a computing worker push."""
        return self.push_late(worker, self.computing.pop(worker))

    def push_late(self, worker: int, read_version: int) -> list[Decision]:
        """Lets a push arrive from a worker that may not be known any more."""
        ticket = len(self._pushes)
        self._pushes.append((worker, read_version))
        decisions = self._carry_out(self.machine.push(worker, ticket, read_version, self.version))
        assert self.is_decided(ticket) != (ticket in self.held)
        return decisions

    def step(self, worker: int) -> list[Decision]:
        """Lets a worker pull and push."""
        self.start(worker)
        return self.push(worker)

    def leave(self, worker: int) -> list[Decision]:
        self.computing.pop(worker, None)
        return self._carry_out(self.machine.leave(worker))

    def finish(self, worker: int) -> list[Decision]:
        return self._carry_out(self.machine.finish(worker))

    def close(self) -> list[Decision]:
        decisions = self._carry_out(self.machine.close())
        assert not self.held
        assert all(self.is_decided(ticket) for ticket in range(len(self._pushes)))
        return decisions

    def is_decided(self, ticket: int) -> bool:
        """Whether a push was applied or dropped."""
        return ticket in self._applied or ticket in self.dropped

    def _carry_out(self, decisions: list[Decision]) -> list[Decision]:
        for decision in decisions:
            assert decision.reason.endswith(".")
            if isinstance(decision, Apply):
                self._apply(decision.tickets)
                continue
            assert decision.ticket not in self.held
            assert not self.is_decided(decision.ticket)
            if isinstance(decision, Hold):
                self.held.add(decision.ticket)
            else:
                assert isinstance(decision, Drop)
                self.dropped[decision.ticket] = decision.reason
        return decisions

    def _apply(self, tickets: tuple[int, ...]) -> None:
        assert tickets
        assert len(set(tickets)) == len(tickets)
        assert not any(map(self.is_decided, tickets))
        self.held -= set(tickets)
        self._applied.update(tickets)
        pushes = [self._pushes[ticket] for ticket in tickets]
        self.updates.append([Push(worker, self.version - read) for worker, read in pushes])
        self.version += 1


def simulate(pace: Pace, num_workers: int, num_updates: int) -> list[list[Push]]:
    """Runs equal workers, whose steps last 0.5 to 1.5, in virtual time. Returns all updates."""
    driver, seconds, now = Driver(pace, num_workers), random.Random(0), 0.0
    computing: list[tuple[float, int]] = []
    waiting = set(range(num_workers))
    while driver.version < num_updates:
        for worker in [worker for worker in sorted(waiting) if not driver.why_wait(worker)]:
            driver.start(worker)
            waiting.remove(worker)
            heapq.heappush(computing, (now + seconds.uniform(0.5, 1.5), worker))
        now, worker = heapq.heappop(computing)
        driver.push(worker)
        waiting.add(worker)
    return driver.updates
