"""Who takes part in a pace, and how far each worker is."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_MOST_NAMED = 4


class Members:
    """The workers that take part. A worker's clock counts what its pace reports to `tick`.

    Attributes:
        clocks: the clock of each member.
        live: the members that others may have to wait for; the rest have run out of data.
        slowest_clock: the smallest clock of the live members; that of the last one if all went.
    """

    def __init__(self) -> None:
        self.clocks: dict[int, int] = {}
        self.live: dict[int, None] = {}
        self.slowest_clock = 0
        # How many live members are at each clock: who pushes does not look at all the others.
        self._at_clock: dict[int, int] = {}

    def join(self, worker: int) -> None:
        """Makes a worker live, level with the slowest; one that rests keeps what it has ahead."""
        if worker not in self.live:
            # A rest must not wipe out a lead, or a fast worker could outrun any bound by resting.
            clock = max(self.slowest_clock, self.clocks.get(worker, self.slowest_clock))
            self.live[worker], self.clocks[worker] = None, clock
            self._at_clock[clock] = self._at_clock.get(clock, 0) + 1
            self.slowest_clock = min(self._at_clock)

    def rest(self, worker: int) -> None:
        """Keeps a live member that nobody has to wait for."""
        if worker in self.live:
            del self.live[worker]
            self._uncount(self.clocks[worker])

    def leave(self, worker: int) -> None:
        """Forgets a worker."""
        self.rest(worker)
        self.clocks.pop(worker, None)

    def tick(self, worker: int) -> None:
        """Counts one more push of a member."""
        clock = self.clocks[worker]
        self.clocks[worker] = clock + 1
        if worker in self.live:
            self._at_clock[clock + 1] = self._at_clock.get(clock + 1, 0) + 1
            self._uncount(clock)

    def why_absent(self, worker: int) -> str:
        """Returns why a worker is not live, or an empty string if it is."""
        if worker in self.live:
            return ""
        if worker in self.clocks:
            return f"Worker {worker} ran out of data and has not joined again."
        return f"Worker {worker} has left, or never joined."

    def _uncount(self, clock: int) -> None:
        self._at_clock[clock] -= 1
        if not self._at_clock[clock]:
            del self._at_clock[clock]
            self.slowest_clock = min(self._at_clock, default=clock)


def name_workers(workers: Collection[int]) -> str:
    """Writes 2, 0 as "workers 0 and 2", and of many a few and a count."""
    # Thousands of workers are not sorted for each push.
    names = [*map(str, sorted(itertools.islice(workers, _MOST_NAMED)))]
    last = f"{len(workers) - _MOST_NAMED} more" if len(workers) > _MOST_NAMED else names.pop()
    return f"workers {', '.join(names)} and {last}" if names else f"worker {last}"
