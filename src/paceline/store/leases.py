"""What a ledger is made of: leases, the queue in which they wait, and counts per worker."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass(slots=True)
class WorkerCounts:
    """What one worker did so far.

    Attributes:
        leased: leases it was given.
        completed: leases of it that were counted.
        examples: examples in those.
        given_back: leases it gave back, or whose push was dropped.
        lost: leases taken back when it was lost.
        expired: leases taken back when their deadline passed.
        ignored: reports about leases that were no longer its own.
    """

    leased: int = 0
    completed: int = 0
    examples: int = 0
    given_back: int = 0
    lost: int = 0
    expired: int = 0
    ignored: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class Lease:
    """One piece of work that has not ended."""

    lease_id: int
    start: int  # position of its first example among all that were offered
    examples: int
    only: int | None  # the one worker that may have it
    attempts: int = 0
    worker: int | None = None  # who has it; None while it waits
    incarnation: int = 0
    since: float = 0.0
    is_pushed: bool = False
    given_back_by: int | None = None  # the worker that had it last and could not complete it
    reason: str = ""  # why it came back the last time


class LeaseQueue:
    """Leases that wait: some for one worker only, the others for any."""

    def __init__(self) -> None:
        self._shared: deque[Lease] = deque()
        self._private: defaultdict[int, deque[Lease]] = defaultdict(deque)

    def append(self, lease: Lease) -> None:
        """Adds a lease at the end."""
        self._of(lease).append(lease)

    def put_back(self, lease: Lease) -> None:
        """Adds a lease at the front."""
        self._of(lease).appendleft(lease)

    def pop(self, worker: int) -> Lease | None:
        """Removes and returns the worker's first one, else the first for any worker.

        What the worker has just given back it leaves to the next worker, if there is another one:
        who came late with it would come late with it again.
        """
        queue = self._private.get(worker) or self._shared
        if len(queue) > 1 and queue[0].given_back_by == worker:
            second = queue[1]
            del queue[1]
            return second
        return queue.popleft() if queue else None

    def remove(self, lease: Lease) -> None:
        """Removes a lease that waits."""
        self._of(lease).remove(lease)

    def sizes(self) -> dict[int | None, int]:
        """How many wait for which worker; None: for any."""
        queues = {None: self._shared, **self._private}
        return {worker: len(queue) for worker, queue in queues.items() if queue}

    def has_any(self, worker: int | None) -> bool:
        """Whether any wait for a worker only; None: for any worker."""
        return bool(self._shared if worker is None else self._private.get(worker))

    def __iter__(self) -> Iterator[Lease]:
        yield from self._shared
        for queue in self._private.values():
            yield from queue

    def _of(self, lease: Lease) -> deque[Lease]:
        return self._shared if lease.only is None else self._private[lease.only]
