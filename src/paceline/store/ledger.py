"""Who has which work, and which examples were counted. Pure: events in, answers out.

A *lease* is a piece of work with a number of examples: a batch, a range of a dataset, a scheduled
call. It waits in a queue, is given to one incarnation of one worker, and ends once: it is counted
(`complete`) or withdrawn. Until then it can be taken back any number of times, and whatever its
former holder reports about it changes nothing. So as long as a driver applies a push only where
`complete` returned True, the examples counted are the examples in the weights, each one once.

    offered = counted + withdrawn + waiting + outstanding

Leases that are taken back or given back go to the front of the queue, the oldest first.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

from paceline.errors import CheckpointError, ContextError, InvalidArgument
from paceline.store.leases import Lease, LeaseQueue, WorkerCounts


class Ledger:
    """A queue of leases that counts each one exactly once.

    Args:
        deadline_s: seconds after which `expire` takes back a lease; None: never.
    """

    def __init__(self, *, deadline_s: float | None = None) -> None:
        if deadline_s is not None and not deadline_s > 0:
            raise InvalidArgument(
                f"A lease's deadline is a positive number of seconds or None. Received: "
                f"deadline_s={deadline_s!r}."
            )
        self.deadline_s = deadline_s
        self.offered_examples = 0
        self.counted_examples = 0
        self.withdrawn_examples = 0
        self._next_id = 0
        # Only leases that have not ended are kept, so a long run does not grow. Ids only rise,
        # hence an id that is not in here has ended and cannot be counted again.
        self._open: dict[int, Lease] = {}
        self._held: dict[int, Lease] = {}  # the oldest first
        self._queue = LeaseQueue()
        self._incarnations: dict[int, int] = {}
        self._counts: defaultdict[int, WorkerCounts] = defaultdict(WorkerCounts)

    @classmethod
    def over(cls, num_examples: int, batch: int, *, deadline_s: float | None = None) -> Ledger:
        """Returns a ledger of the ranges of `num_examples` in leases of `batch`, the last shorter.

        Raises:
            InvalidArgument: a negative number of examples or an empty batch.
        """
        if num_examples < 0 or batch < 1:
            raise InvalidArgument(
                "Leases of 1 or more examples cover 0 or more. Received: "
                f"num_examples={num_examples}, batch={batch}."
            )
        ledger = cls(deadline_s=deadline_s)
        for start in range(0, num_examples, batch):
            ledger.offer(examples=min(batch, num_examples - start))
        return ledger

    @property
    def waiting(self) -> int:
        """How many leases wait for a worker."""
        return len(self._open) - len(self._held)

    @property
    def outstanding(self) -> int:
        """How many leases workers have, also those pushed and not yet applied."""
        return len(self._held)

    @property
    def is_done(self) -> bool:
        """Whether every lease that was offered has ended."""
        return not self._open

    def offer(
        self, lease_id: int | None = None, examples: int = 0, *, worker: int | None = None
    ) -> int:
        """Adds a lease at the end of the queue and returns its id.

        It covers the `examples` that follow those of the lease offered before.

        Args:
            lease_id: its id, above all earlier ones; None: the next integer.
            examples: how many examples it holds.
            worker: the one worker that may have it; None: any.

        Raises:
            InvalidArgument: an id that is not above the earlier ones, or a negative count.
        """
        if lease_id is None:
            lease_id = self._next_id
        if lease_id < self._next_id or examples < 0:
            raise InvalidArgument(
                "Lease ids rise, so that none is counted twice, and a lease has 0 or more "
                f"examples. Received: lease_id={lease_id} where the next is {self._next_id} or "
                f"higher, examples={examples}."
            )
        self._next_id = lease_id + 1
        lease = Lease(lease_id, self.offered_examples, examples, worker)
        self._open[lease_id] = lease
        self.offered_examples += examples
        self._queue.append(lease)
        return lease_id

    def lease(self, worker: int, incarnation: int, now: float) -> int | None:
        """Gives the worker the next lease: of its own first, then of those for any worker.

        Returns:
            Its id; None where none waits for this worker, or where the incarnation is an old one.

        Raises:
            ContextError: a new incarnation asks while its predecessor still has leases.
        """
        current = self._incarnations.get(worker)
        if incarnation != current and not self._succeeds(worker, incarnation, current or 0):
            return None
        lease = self._queue.pop(worker)
        if lease is None:
            return None
        lease.worker, lease.incarnation, lease.since = worker, incarnation, now
        lease.attempts += 1
        self._held[lease.lease_id] = lease
        self._counts[worker].leased += 1
        return lease.lease_id

    def complete(self, lease_id: int, worker: int, incarnation: int) -> bool:
        """Counts a lease that this incarnation of the worker has.

        Returns:
            Whether it was counted now. If not (taken back meanwhile, or counted already), its
            result must have no effect.
        """
        lease = self._mine(lease_id, worker, incarnation)
        if lease is None:
            return False
        del self._held[lease_id], self._open[lease_id]
        self.counted_examples += lease.examples
        counts = self._counts[worker]
        counts.completed += 1
        counts.examples += lease.examples
        return True

    def pushed(self, lease_id: int, worker: int, incarnation: int) -> bool:
        """Notes that the worker's result has arrived and waits to be applied, as in a group.

        From now on it no longer depends on its worker: loss and deadline leave the lease alone, and
        only `complete`, `give_back` or `withdraw` move it.

        Returns:
            Whether the lease is still the worker's. If not, its result must have no effect.
        """
        lease = self._mine(lease_id, worker, incarnation)
        if lease is not None:
            lease.is_pushed = True
        return lease is not None

    def give_back(self, lease_id: int, worker: int, incarnation: int, reason: str) -> bool:
        """Puts a lease that this incarnation of the worker has at the front of the queue.

        Args:
            lease_id: the lease.
            worker: who has it.
            incarnation: which incarnation of it.
            reason: why, such as "its push was too stale"; `explain` says it again.

        Returns:
            Whether it was put back. If not, it was not this incarnation's any more.
        """
        lease = self._mine(lease_id, worker, incarnation)
        if lease is None:
            return False
        self._counts[worker].given_back += 1
        lease.given_back_by = worker
        self._take_back(lease, f"gave it back: {reason}")
        return True

    def withdraw(self, lease_id: int, holder: tuple[int, int] | None = None) -> bool:
        """Ends a lease without counting it.

        Args:
            lease_id: the lease.
            holder: the worker and incarnation that must have it; None: whether or not it waits.

        Returns:
            Whether it was withdrawn. If not, it had ended or was not the holder's any more.
        """
        lease = self._open.get(lease_id) if holder is None else self._mine(lease_id, *holder)
        if lease is None:
            return False
        del self._open[lease_id]
        if lease.worker is None:
            self._queue.remove(lease)
        else:
            del self._held[lease_id]
        self.withdrawn_examples += lease.examples
        return True

    def lose(
        self, worker: int, incarnation: int | None = None, reason: str = "was lost"
    ) -> list[int]:
        """Takes back what a lost worker has, and admits only higher incarnations from now on.

        Args:
            worker: index of the worker.
            incarnation: the one that was lost; reported a second time, it changes nothing. None:
                the present one.
            reason: what happened to the worker.

        Returns:
            The ids of the leases that were put back at the front, in the order of the queue.
        """
        current = self.incarnation(worker)
        if incarnation is not None and incarnation < current:
            return []
        self._incarnations[worker] = (current if incarnation is None else incarnation) + 1
        lost = [x for x in self._held.values() if x.worker == worker and not x.is_pushed]
        for lease in reversed(lost):
            self._counts[worker].lost += 1
            self._take_back(lease, reason)
        return [lease.lease_id for lease in lost]

    def expire(self, now: float) -> list[tuple[int, int]]:
        """Takes back the leases whose deadline has passed.

        Returns:
            Pairs of lease id and worker; the leases are at the front of the queue, in this order.
        """
        if self.deadline_s is None:
            return []
        held = self.holders()
        late = [(i, w) for i, (w, since) in held.items() if now >= since + self.deadline_s]
        for lease_id, worker in reversed(late):
            self._counts[worker].expired += 1
            self._take_back(self._held[lease_id], f"had it for {self.deadline_s:g} s")
        return late

    def next_deadline(self) -> float | None:
        """The earliest time at which `expire` would take something back; None: never."""
        if self.deadline_s is None:
            return None
        for lease in self._held.values():  # the oldest first
            if lease.worker is not None and not lease.is_pushed:
                return lease.since + self.deadline_s
        return None

    def incarnation(self, worker: int) -> int:
        """The incarnation of the worker that may take leases: one more after each loss."""
        return self._incarnations.get(worker, 0)

    def holders(self) -> dict[int, tuple[int, float]]:
        """Who works on what, the oldest first: lease id to worker and time of the lease."""
        return {
            lease.lease_id: (lease.worker, lease.since)
            for lease in self._held.values()
            if lease.worker is not None and not lease.is_pushed
        }

    def waiting_for(self) -> dict[int | None, int]:
        """How many leases wait for which worker; None: for any."""
        return self._queue.sizes()

    def waits_for(self, worker: int | None) -> bool:
        """Whether a lease waits for this worker only; None: for any worker."""
        return self._queue.has_any(worker)

    def attempts(self, lease_id: int) -> int:
        """How often a lease that has not ended was given to a worker.

        Raises:
            InvalidArgument: the lease has ended or was never offered.
        """
        return self._find(lease_id).attempts

    def range_of(self, lease_id: int) -> range:
        """Which of all examples offered a lease that has not ended covers.

        Raises:
            InvalidArgument: the lease has ended or was never offered.
        """
        lease = self._find(lease_id)
        return range(lease.start, lease.start + lease.examples)

    def explain(self, lease_id: int) -> str:
        """Says in words where a lease that has not ended is, and why.

        Raises:
            InvalidArgument: the lease has ended or was never offered.
        """
        lease = self._find(lease_id)
        if lease.worker is not None:
            doing = "pushed, and it waits to be applied" if lease.is_pushed else "in work"
            return f"attempt {lease.attempts} on worker:{lease.worker}: {doing}"
        whom = "a worker" if lease.only is None else f"worker:{lease.only}"
        if not lease.attempts:
            return f"waits for {whom}"
        return f"waits for {whom} again after attempt {lease.attempts}: {lease.reason}"

    def counts(self) -> dict[int, WorkerCounts]:
        """What each worker did so far, a copy."""
        return {worker: dataclasses.replace(x) for worker, x in sorted(self._counts.items())}

    def state(self) -> dict[str, Any]:
        """Everything that is saved with the weights, as a dict that JSON can hold.

        Outstanding leases are saved as waiting: their results are not in the weights.
        """
        waiting = [*self._held.values(), *self._queue]
        return {
            "next_id": self._next_id,
            "offered_examples": self.offered_examples,
            "counted_examples": self.counted_examples,
            "withdrawn_examples": self.withdrawn_examples,
            "waiting": [[x.lease_id, x.start, x.examples, x.only, x.attempts] for x in waiting],
            "workers": [[w, dataclasses.asdict(counts)] for w, counts in self.counts().items()],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], *, deadline_s: float | None = None) -> Ledger:
        """Returns the ledger that `state` saved. Incarnations start anew, as workers do.

        Raises:
            CheckpointError: the state is not one that `state` gave, or its sums do not agree.
        """
        ledger = cls(deadline_s=deadline_s)
        try:
            ledger._next_id = int(state["next_id"])
            ledger.offered_examples = int(state["offered_examples"])
            ledger.counted_examples = int(state["counted_examples"])
            ledger.withdrawn_examples = int(state["withdrawn_examples"])
            for lease_id, start, examples, only, attempts in state["waiting"]:
                lease = Lease(lease_id, start, examples, only, attempts)
                lease.reason = "the run was restored"
                ledger._open[lease_id] = lease
                ledger._queue.append(lease)
            for worker, counts in state["workers"]:
                ledger._counts[worker] = WorkerCounts(**counts)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "A ledger is restored from what `Ledger.state()` gave. Received: "
                f"state={state!r}. Take the ledger of another checkpoint."
            ) from error
        ended = ledger.counted_examples + ledger.withdrawn_examples
        waiting = sum(lease.examples for lease in ledger._open.values())
        if ended + waiting != ledger.offered_examples:
            raise CheckpointError(
                "A ledger's examples are counted, withdrawn or waiting. Received: "
                f"{ended} + {waiting} examples where {ledger.offered_examples} were offered. Take "
                "the ledger of another checkpoint."
            )
        return ledger

    def _succeeds(self, worker: int, incarnation: int, current: int) -> bool:
        """Lets a higher incarnation take its predecessor's place; False for an old one."""
        if incarnation < current:
            self._counts[worker].ignored += 1
            return False
        if any(x.worker == worker and not x.is_pushed for x in self._held.values()):
            raise ContextError(
                "A new incarnation of a worker takes work once the loss of its predecessor is "
                f"reported. Received: worker={worker}, incarnation={incarnation} while "
                f"incarnation {current} has work. Call lose({worker}) first."
            )
        self._incarnations[worker] = incarnation
        return True

    def _mine(self, lease_id: int, worker: int, incarnation: int) -> Lease | None:
        lease = self._held.get(lease_id)
        if lease is None or lease.worker != worker or lease.incarnation != incarnation:
            self._counts[worker].ignored += 1
            return None
        return lease

    def _take_back(self, lease: Lease, reason: str) -> None:
        """Puts a lease at the front; of several, the last one comes first, so order is kept."""
        del self._held[lease.lease_id]
        lease.reason = f"worker:{lease.worker} {reason}"
        lease.worker, lease.is_pushed = None, False
        self._queue.put_back(lease)

    def _find(self, lease_id: int) -> Lease:
        lease = self._open.get(lease_id)
        if lease is None:
            raise InvalidArgument(
                "Only leases that have not ended are known. Received: "
                f"lease_id={lease_id}, which has ended or was never offered."
            )
        return lease
