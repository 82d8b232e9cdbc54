"""Who takes part in a pace, and how far each worker is."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_MOST_NAMED = 4


class Members:
    """The workers that take part. A worker's clock counts its pushes that were accepted.

    Attributes:
        live: the clock of each worker that others may have to wait for.
    """

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self._at_clock: dict[int, int] = {}  # how many live members are at each clock
        self._resting: dict[int, int] = {}
        # Where the group stood when its last live member went.
        self._last_clock = 0

    def __contains__(self, worker: int) -> bool:
        return worker in self.live or worker in self._resting

    @property
    def slowest_clock(self) -> int:
        """The smallest clock of the live members."""
        return min(self._at_clock, default=self._last_clock)

    def join(self, worker: int) -> None:
        """Makes a worker live, level with the slowest; one that rests keeps what it has ahead."""
        if worker not in self.live:
            # A rest must not wipe out a lead, or a fast worker could outrun any bound by resting.
            slowest = self.slowest_clock
            self.live[worker] = max(slowest, self._resting.pop(worker, slowest))
            self._count(self.live[worker])

    def rest(self, worker: int) -> None:
        """Keeps a live member that nobody has to wait for."""
        if worker in self.live:
            self._resting[worker] = self._last_clock = self.live.pop(worker)
            self._uncount(self._last_clock)

    def leave(self, worker: int) -> None:
        """Forgets a worker."""
        self.rest(worker)
        self._resting.pop(worker, None)

    def tick(self, worker: int) -> None:
        """Counts one more push of a member."""
        if worker in self.live:
            self._uncount(self.live[worker])
            self.live[worker] += 1
            self._count(self.live[worker])
        else:
            self._resting[worker] += 1

    def why_absent(self, worker: int) -> str:
        """Returns why a worker is not live, or an empty string if it is."""
        if worker in self.live:
            return ""
        if worker in self._resting:
            return f"Worker {worker} ran out of data and has not joined again."
        return f"Worker {worker} has left, or never joined."

    def _count(self, clock: int) -> None:
        self._at_clock[clock] = self._at_clock.get(clock, 0) + 1

    def _uncount(self, clock: int) -> None:
        self._at_clock[clock] -= 1
        if not self._at_clock[clock]:
            del self._at_clock[clock]


def name_workers(workers: Collection[int]) -> str:
    """Writes 2, 0 as "workers 0 and 2", and of many a few and a count."""
    # Thousands of workers are not sorted for each push.
    names = [str(worker) for worker in sorted(itertools.islice(workers, _MOST_NAMED))]
    if len(workers) == 1:
        return f"worker {names[0]}"
    if len(workers) > _MOST_NAMED:
        names.append(f"{len(workers) - _MOST_NAMED} more")
    return f"workers {', '.join(names[:-1])} and {names[-1]}"
