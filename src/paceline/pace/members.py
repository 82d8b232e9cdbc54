"""Who takes part in a pace, and how far each worker is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_NAMED = 4


class Members:
    """The workers that take part. A worker's clock counts its pushes that were accepted.

    Attributes:
        live: the clock of each worker that others may have to wait for.
    """

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self._resting: dict[int, int] = {}
        # Where the group stood when its last live member went.
        self._last_clock = 0

    def __contains__(self, worker: int) -> bool:
        return worker in self.live or worker in self._resting

    @property
    def slowest_clock(self) -> int:
        """The smallest clock of the live members."""
        return min(self.live.values(), default=self._last_clock)

    def join(self, worker: int) -> None:
        """Makes a worker live, level with the slowest; one that rests keeps what it has ahead."""
        if worker not in self.live:
            # A rest must not wipe out a lead, or a fast worker could outrun any bound by resting.
            slowest = self.slowest_clock
            self.live[worker] = max(slowest, self._resting.pop(worker, slowest))

    def rest(self, worker: int) -> None:
        """Keeps a live member that nobody has to wait for."""
        if worker in self.live:
            self._resting[worker] = self._last_clock = self.live.pop(worker)

    def leave(self, worker: int) -> None:
        """Forgets a worker."""
        self.rest(worker)
        self._resting.pop(worker, None)

    def tick(self, worker: int) -> None:
        """Counts one more push of a member."""
        clocks = self.live if worker in self.live else self._resting
        clocks[worker] += 1

    def why_absent(self, worker: int) -> str:
        """Returns why a worker is not live, or an empty string if it is."""
        if worker in self.live:
            return ""
        if worker in self._resting:
            return f"Worker {worker} ran out of data and has not joined again."
        return f"Worker {worker} has left, or never joined."


def name_workers(workers: Iterable[int]) -> str:
    """Writes 2, 0 as "workers 0 and 2", and a long list as its start and a count."""
    ordered = sorted(workers)
    if len(ordered) == 1:
        return f"worker {ordered[0]}"
    names = [str(worker) for worker in ordered[:_MOST_NAMED]]
    if len(ordered) > _MOST_NAMED:
        names.append(f"{len(ordered) - _MOST_NAMED} more")
    return f"workers {', '.join(names[:-1])} and {names[-1]}"
