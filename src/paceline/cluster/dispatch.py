"""The coordinator's queue: which worker runs what, and what becomes of it. Pure.

Events come in (`submit`, `take`, `finished`, `failed`, ...), instructions go out. An item is
submitted once and ends once:

    finished    `finished` returned True, or the instruction `Dropped`
    failed      the instruction `Failed`
    cancelled   the instruction `Cancelled`

The first error calls off everything else: what is queued and what runs is `Cancelled` at once, and
the workers that run something are told to `Interrupt` it. When all of them have reported or were
given up, nothing is in flight, and `take_error` gives the error, once; then the machine is as new.

An event about an item that the worker does not have (any more) changes nothing: it was taken back
and may run elsewhere, or it ended. `finished` and `pushed` then return False: discard the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from paceline import errors
from paceline.cluster.instructions import (
    Cancelled,
    Dropped,
    Failed,
    Instruction,
    Interrupt,
    Requeued,
    T,
)
from paceline.store.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

CAPACITY = 256 * 1024


class Dispatch(Generic[T]):
    """A queue of items for workers, with errors, cancellation and loss.

    Args:
        capacity: how many items may be queued.
        deadline_s: seconds after which `expire` takes an item back from a worker; None: never.

    Attributes:
        ledger: who has what, and what each worker did. It is for reading only.

    Semantics:
        The scheduling of tf.distribute.coordinator.ClusterCoordinator: one queue in order, items of
        one worker before those of any, at least once for what is repeatable, the first error wins
        and calls off the rest. TensorFlow repeats everything; here an item that is not repeatable
        and whose worker is lost fails.
    """

    def __init__(self, *, capacity: int = CAPACITY, deadline_s: float | None = None) -> None:
        if capacity < 1:
            raise errors.InvalidArgument(
                f"A queue has room for 1 or more items. Received: capacity={capacity}."
            )
        self.capacity = capacity
        self.ledger = Ledger(deadline_s=deadline_s)
        self._ids: dict[T, int] = {}
        self._items: dict[int, T] = {}
        self._only_once: set[int] = set()
        self._error: BaseException | None = None
        # Why everything was called off. While it is set, what the workers still have was already
        # cancelled and only keeps them busy.
        self._called_off = ""

    @property
    def queued(self) -> int:
        """How many items wait for a worker."""
        return self.ledger.waiting

    @property
    def in_flight(self) -> int:
        """How many items workers have, also cancelled ones that they have not reported yet."""
        return self.ledger.outstanding

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued and nothing in flight."""
        return self.ledger.is_done

    @property
    def is_full(self) -> bool:
        """Whether `submit` would raise `QueueFull`."""
        return self.ledger.waiting >= self.capacity

    @property
    def is_cancelling(self) -> bool:
        """Whether everything was called off and `take_error` has not ended that yet."""
        return bool(self._called_off)

    def submit(
        self,
        item: T,
        *,
        examples: int = 0,
        worker: int | None = None,
        is_repeatable: bool = True,
    ) -> None:
        """Adds an item at the end of the queue.

        Args:
            item: any hashable object but None, equal to no other one that has not ended.
            examples: how many examples it stands for.
            worker: the one worker that may take it; None: any.
            is_repeatable: whether it may run again when its worker is lost or its push is dropped.

        Raises:
            QueueFull: the queue holds as many items as it may.
            Cancelled: everything was called off, and `take_error` was not called since.
            InvalidArgument: None, or an item that has not ended yet.
        """
        if self._called_off:
            raise errors.Cancelled(
                "Nothing can be scheduled between an error and its being raised. Received: "
                f"{item!r} after this: {self._called_off} Wait until nothing is in flight and take "
                "the error."
            )
        if item is None or item in self._ids:
            raise errors.InvalidArgument(
                "An item is an object of its own, and submitted again only after it has ended. "
                f"Received: {item!r}."
            )
        if self.ledger.waiting >= self.capacity:
            raise errors.QueueFull(
                f"The queue holds at most {self.capacity} items. Received: {item!r}. Wait until "
                "workers have taken some."
            )
        lease_id = self.ledger.offer(examples=examples, worker=worker)
        self._ids[item] = lease_id
        self._items[lease_id] = item
        if not is_repeatable:
            self._only_once.add(lease_id)

    def take(self, worker: int, incarnation: int, now: float) -> T | None:
        """Gives the worker the next item: of its own first, then of those for any worker.

        Returns:
            The item; None where there is none for this worker now, or its incarnation is old.

        Raises:
            ContextError: a new incarnation asks while its predecessor still has items.
        """
        if self._called_off:
            return None
        lease_id = self.ledger.lease(worker, incarnation, now)
        return None if lease_id is None else self._items[lease_id]

    def pushed(self, worker: int, incarnation: int, item: T) -> bool:
        """Notes that the item's push has arrived and waits to be applied, as in a group.

        From now on the item does not depend on its worker; only `finished` and `dropped` end it.

        Returns:
            Whether it counts. If not, discard the push.
        """
        lease_id = self._ids.get(item, -1)
        return not self._called_off and self.ledger.pushed(lease_id, worker, incarnation)

    def finished(self, worker: int, incarnation: int, item: T) -> bool:
        """Ends an item as finished.

        Returns:
            Whether it counts. If not, discard the result.
        """
        if self._called_off:
            self._release(worker, incarnation, item)
            return False
        lease_id = self._ids.get(item, -1)
        if not self.ledger.complete(lease_id, worker, incarnation):
            return False
        self._forget(lease_id)
        return True

    def dropped(
        self, worker: int, incarnation: int, item: T, reason: str
    ) -> Sequence[Instruction[T]]:
        """Puts an item whose push was dropped back at the front; ends what may not run twice.

        Returns:
            `Requeued` or `Dropped`; nothing where the worker did not have the item.
        """
        lease_id = self._ids.get(item, -1)
        if self._called_off:
            self._release(worker, incarnation, item)
            return []
        if lease_id in self._only_once:
            is_released = self._release(worker, incarnation, item)
            return [Dropped(item, worker, reason)] if is_released else []
        if not self.ledger.give_back(lease_id, worker, incarnation, reason):
            return []
        return [Requeued(item, worker, self.ledger.explain(lease_id))]

    def failed(
        self, worker: int, incarnation: int, item: T, error: BaseException
    ) -> Sequence[Instruction[T]]:
        """Ends an item with an error and calls off everything else.

        Returns:
            `Failed` for the item, `Cancelled` and `Interrupt` for the others; nothing where the
            worker did not have the item, or an earlier error has already called it off.
        """
        if not self._release(worker, incarnation, item) or self._called_off:
            return []
        return self._fail([Failed(item, worker, error)])

    def lost(
        self, worker: int, incarnation: int | None = None, reason: str = "was lost"
    ) -> Sequence[Instruction[T]]:
        """Puts the items of a lost worker back at the front; what may not run twice fails.

        Args:
            worker: index of the worker.
            incarnation: the one that was lost; reported a second time, it changes nothing. None:
                the present one. The next one is `ledger.incarnation(worker)`.
            reason: what happened to the worker.

        Returns:
            `Requeued` for each item, or `Failed` and what follows from it.
        """
        ids = self.ledger.lose(worker, incarnation, reason)
        instructions: list[Instruction[T]] = []
        failures: list[Failed[T]] = []
        for lease_id in ids:
            item = self._items[lease_id]
            if self._called_off:
                self._withdraw(lease_id)
            elif lease_id in self._only_once:
                error = errors.WorkerLost(
                    "What must not run twice ends when its worker is lost. Received: "
                    f"{item!r} on worker:{worker}, which {reason}. Schedule it again if it had no "
                    "effect, or let it be repeatable."
                )
                self._withdraw(lease_id)
                failures.append(Failed(item, worker, error))
            else:
                instructions.append(Requeued(item, worker, self.ledger.explain(lease_id)))
        return [*instructions, *self._fail(failures)]

    def expire(self, now: float) -> Sequence[Instruction[T]]:
        """Takes back the items whose deadline has passed, as `lost` does, and interrupts them.

        The worker remains a member. One that does not react should be given up with `abandon`.
        """
        instructions: list[Instruction[T]] = []
        failures: list[Failed[T]] = []
        for lease_id, worker in self.ledger.expire(now):
            item = self._items[lease_id]
            reason = self.ledger.explain(lease_id)
            if self._called_off:
                self._withdraw(lease_id)
                continue
            instructions.append(Interrupt(worker, item, reason))
            if lease_id in self._only_once:
                error = errors.WaitTimeout(
                    f"An item is finished within {self.ledger.deadline_s:g} s. Received: {item!r} "
                    f"still on worker:{worker}. Allow more time, or let it be repeatable so that "
                    "another worker takes it."
                )
                self._withdraw(lease_id)
                failures.append(Failed(item, worker, error))
            else:
                instructions.append(Requeued(item, worker, reason))
        return [*instructions, *self._fail(failures)]

    def abandon(
        self,
        worker: int,
        incarnation: int | None = None,
        reason: str = "did not react to its interruption",
    ) -> Sequence[Instruction[T]]:
        """Gives up a worker that does not react: its items are cancelled, its reports ignored.

        Args:
            worker: index of the worker.
            incarnation: the one that is given up, as in `lost`.
            reason: what happened to the worker.

        Returns:
            `Cancelled` for each item that was not cancelled before. The worker's next incarnation
            is `ledger.incarnation(worker)`.
        """
        instructions: list[Instruction[T]] = []
        text = _cancelled(f"worker:{worker} {reason}.", was_started=True)
        for lease_id in self.ledger.lose(worker, incarnation, reason):
            if not self._called_off:
                instructions.append(Cancelled(self._items[lease_id], True, text))
            self._withdraw(lease_id)
        return instructions

    def cancel(self, reason: str) -> Sequence[Instruction[T]]:
        """Calls off everything without an error, as when training is stopped.

        When nothing is in flight any more, `take_error` returns None and the machine is as new.

        Args:
            reason: a sentence that says why.

        Returns:
            `Cancelled` for each item, `Interrupt` for those that run; nothing where everything was
            called off before.
        """
        if self._called_off:
            return []
        self._called_off = reason = reason or "It was called off."
        queued, started = _cancelled(reason, False), _cancelled(reason, True)
        running = self.ledger.holders()
        instructions: list[Instruction[T]] = []
        for lease_id, item in list(self._items.items()):
            was_started = self.ledger.attempts(lease_id) > 0
            instructions.append(Cancelled(item, was_started, started if was_started else queued))
            if lease_id in running:
                instructions.append(Interrupt(running[lease_id][0], item, reason))
            else:
                self._withdraw(lease_id)
        return instructions

    def take_error(self) -> BaseException | None:
        """Returns the first error, once, when nothing is in flight; the machine is then as new.

        Returns:
            The error; None where there is none, or something is still in flight.
        """
        if not self._called_off or not self.is_idle:
            return None
        error, self._error, self._called_off = self._error, None, ""
        return error

    def explain(self, now: float) -> str:
        """Says in words what runs where and what is queued, for the message of a wait."""
        parts = [
            f"worker:{worker} has had {self._items[lease_id]!r} for {now - since:.1f} s"
            for lease_id, (worker, since) in self.ledger.holders().items()
        ]
        num_pushed = self.in_flight - len(parts)
        if num_pushed:
            parts.append(f"pushed and not yet applied: {num_pushed}")
        for whom, count in self.ledger.waiting_for().items():
            parts.append(
                f"queued for {'any worker' if whom is None else f'worker:{whom}'}: {count}"
            )
        return "; ".join(parts) or "nothing is queued or in flight"

    def _fail(self, failures: Sequence[Failed[T]]) -> Sequence[Instruction[T]]:
        """Remembers the first failure's error and calls off the rest."""
        if not failures:
            return []
        first = failures[0]
        self._error = first.error
        text = f"{first.item!r} failed on worker:{first.worker} with {first.error!r}."
        return [*failures, *self.cancel(text)]

    def _release(self, worker: int, incarnation: int, item: T) -> bool:
        """Ends what the worker has without counting it; False where it does not have it."""
        lease_id = self._ids.get(item, -1)
        if not self.ledger.withdraw(lease_id, (worker, incarnation)):
            return False
        self._forget(lease_id)
        return True

    def _withdraw(self, lease_id: int) -> None:
        self.ledger.withdraw(lease_id)
        self._forget(lease_id)

    def _forget(self, lease_id: int) -> None:
        del self._ids[self._items.pop(lease_id)]
        self._only_once.discard(lease_id)


def _cancelled(reason: str, was_started: bool) -> str:
    """The message for who waits for a cancelled item."""
    what = (
        "It had started and may have taken effect in part; schedule it again if that does no harm."
        if was_started
        else "It had not started; schedule it again."
    )
    return f"Cancelled before it was finished. Received: {reason} {what}"
