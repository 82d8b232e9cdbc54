"""Who the workers are: how they come, are lost and called off, and what becomes of their work."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from paceline.cluster.instructions import Cancelled, Dropped, Failed, Interrupt, Requeued
from paceline.cluster.noting import Noting
from paceline.errors import Cancelled as CancelledError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.cluster.base import Cluster
    from paceline.cluster.session import Session
    from paceline.cluster.work import Work
    from paceline.cluster.worker import Worker


class Staffing(Noting):
    """Keeps the workers of one strategy. Everything here is called with the lock held.

    Args:
        cluster: the configuration.
        session: the machines.
    """

    def __init__(self, cluster: Cluster, session: Session) -> None:
        super().__init__(cluster, session)
        self._workers: dict[int, Worker] = {}
        self._absent: set[int] = set()  # workers that were lost and are not back
        self._interrupted: dict[int, Work] = {}
        self._progress = self.now()
        self._has_left_work = False  # a worker that may not start yet left it to others
        self._called_off_at = 0.0

    @abc.abstractmethod
    def _start(self, index: int) -> Worker:
        """Returns a new worker with that number, which looks for work from now on."""

    @abc.abstractmethod
    def _ring(self, *, for_one: bool = False) -> None:
        """Has idle workers look for work; any one of them is enough where `for_one`."""

    def _wake(self) -> None:
        """Has everybody who waits look again."""

    def worker(self, index: int, incarnation: int) -> Worker | None:
        """The worker of that number, unless it was replaced."""
        worker = self._workers.get(index)
        return worker if worker is not None and worker.incarnation == incarnation else None

    def _replace(self, worker: Worker, instructions: Sequence[Any]) -> None:
        """Puts a new incarnation in the place of a worker."""
        self._take_away(worker, instructions)
        self._bring_back(worker.index)

    def _take_away(self, worker: Worker, instructions: Sequence[Any]) -> None:
        """Ends a worker: what it still does is ignored."""
        index, work = worker.index, worker.work
        self._interrupted.pop(index, None)
        exchange, now = self.session.exchange, self._noted_at  # of the event that this follows
        dispatch = self.session.dispatch
        if work is not None and work.is_one_push and not work.has_ended:
            if worker.dropped:
                dropped = dispatch.dropped(index, worker.incarnation, work, worker.dropped)
                instructions = [*instructions, *dropped]
            elif dispatch.finished(index, worker.incarnation, work):  # only the result is lost
                work.finish(None)
        del self._workers[index]
        exchange.leave(index, now)
        self._carry_out(instructions)

    def _bring_back(self, index: int) -> None:
        """Starts the next incarnation of a worker."""
        worker = self._workers[index] = self._start(index)
        self.session.exchange.join(index, worker.incarnation)
        self._ring()  # the old thread, if it is idle, and others for its work
        self._note_progress(self.now())

    def _is_called_off(self, worker: Worker) -> bool:
        is_replaced = self._workers.get(worker.index) is not worker
        return is_replaced or self._interrupted.get(worker.index) is worker.work

    def _check(self, worker: Worker) -> None:
        if worker.work is not None and self._is_called_off(worker):
            raise CancelledError(
                f"What worker:{worker.index} runs was called off. Received: {worker.work!r}, which "
                "touches a variable after that. Let the error pass."
            )

    def _note_progress(self, now: float) -> None:
        self._progress = now
        self._return_to_what_was_left()
        self._wake()

    def _carry_out(self, instructions: Sequence[Any]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Cancelled):
                instruction.item.cancel(instruction.reason)
            elif isinstance(instruction, Interrupt):
                self._interrupted[instruction.worker] = instruction.item
                self._called_off_at = self.now()
            elif isinstance(instruction, Failed):
                instruction.item.fail(instruction.error)
            elif isinstance(instruction, Dropped):
                instruction.item.finish(instruction.item.result)
            elif isinstance(instruction, Requeued):
                self._ring()
        if instructions:
            self._wake()

    def _return_to_what_was_left(self) -> None:
        if self._has_left_work:
            self._has_left_work = False
            self._ring()
