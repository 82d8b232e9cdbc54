"""How much faster an epoch is at each pace than in lockstep, with workers that are slow.

    python docs/figures/stragglers.py

It feeds the pace and ledger machines of real runs from a clock of its own, so that it takes a
second and gives the same figures everywhere. Each example is counted once; a dropped push is
computed again.
"""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING

from paceline.pace import Apply, Asynchronous, BoundedStaleness, Drop, Softsync, Synchronous
from paceline.store.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.pace import Decision, Pace

WORKERS, BATCHES = 16, 3200
PACES = (
    Synchronous(),
    Synchronous(backups=1),
    BoundedStaleness(1),
    BoundedStaleness(4),
    Softsync(16),
    Asynchronous(),
)


def jittering(worker: int, chance: random.Random) -> float:
    """Every step takes a second, and a random while more."""
    return 1 + 0.3 * (chance.paretovariate(2) - 1)


def one_slow(worker: int, chance: random.Random) -> float:
    """One worker always takes twice as long."""
    return 2.0 if worker == 0 else 1.0


def one_very_slow(worker: int, chance: random.Random) -> float:
    """One worker always takes ten times as long."""
    return 10.0 if worker == 0 else 1.0


class Run:
    """An epoch in virtual time.

    Args:
        pace: the pace.
        step_time: seconds of a worker's next step.
        is_dynamic: whether a batch goes to the next free worker; else each has its own share.
    """

    def __init__(self, pace: Pace, step_time: Callable[..., float], is_dynamic: bool) -> None:
        self.machine, self.ledger = pace.machine(), Ledger()
        self.step_time, self.chance = step_time, random.Random(0)
        self.now, self.version, self.ticket = 0.0, 0, 0
        self.idle = set(range(WORKERS))
        self.live: set[int] = set()
        self.wanting: dict[int, int] = {}  # workers that have a lease and may not start yet
        self.pushes: list[tuple[float, int, int, int]] = []
        self.lease_of: dict[int, tuple[int, int]] = {}  # of each ticket: lease and worker
        for batch in range(BATCHES):
            self.ledger.offer(worker=None if is_dynamic else batch % WORKERS)
        for worker in range(WORKERS):
            self.machine.join(worker)
            self.live.add(worker)

    def seconds(self) -> float:
        """Runs the epoch and says how long it took."""
        self._hand_out()
        while self.pushes:
            self.now, worker, lease, read = heapq.heappop(self.pushes)
            self.lease_of[self.ticket] = lease, worker
            self.ledger.pushed(lease, worker, 0)
            decisions = self.machine.push(worker, self.ticket, read, self.version)
            self.ticket += 1
            self._carry_out(decisions)
            self.idle.add(worker)
            self._hand_out()
        self._carry_out(self.machine.close())
        if not self.ledger.is_done:
            raise ValueError("the epoch did not end")
        return self.now

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Apply):
                self.version += 1
                for ticket in decision.tickets:
                    self.ledger.complete(*self.lease_of.pop(ticket), 0)
            elif isinstance(decision, Drop):
                self.ledger.give_back(*self.lease_of.pop(decision.ticket), 0, decision.reason)

    def _hand_out(self) -> None:
        """Gives leases to idle workers, and lets those start that may."""
        for worker in sorted(self.idle):
            lease = self.ledger.lease(worker, 0, self.now)
            if lease is not None:
                self.idle.remove(worker)
                self.wanting[worker] = lease
            if (lease is not None) == (worker in self.live):
                continue
            if lease is None:  # nobody has to wait for a worker without data
                self.live.remove(worker)
                self._carry_out(self.machine.finish(worker))
            else:
                self.live.add(worker)
                self.machine.join(worker)
        for worker, lease in sorted(self.wanting.items()):
            if self.machine.may_start(worker).is_granted:
                del self.wanting[worker]
                self.machine.started(worker, self.version)
                ends = self.now + self.step_time(worker, self.chance)
                heapq.heappush(self.pushes, (ends, worker, lease, self.version))


def main() -> None:
    """Prints the table."""
    profiles = (jittering, one_slow, one_very_slow)
    heads = [f"{p.__name__.replace('_', ' ')}, {s}" for p in profiles for s in ("fixed", "dynamic")]
    print("| pace |", " | ".join(heads), "|")
    print("|---|" + "---|" * len(heads))
    lockstep = [Run(Synchronous(), profile, False).seconds() for profile in profiles]
    for pace in PACES:
        cells = [
            f"{base / Run(pace, profile, is_dynamic).seconds():.2f}"
            for profile, base in zip(profiles, lockstep, strict=True)
            for is_dynamic in (False, True)
        ]
        print(f"| `{pace!r}` |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
