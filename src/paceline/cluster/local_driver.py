"""The driver of `Local`: threads of this process run the work, in real time."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from paceline.cluster.driving import Driving
from paceline.cluster.serving import Bell, soon, start
from paceline.cluster.trace import Kind
from paceline.errors import WaitTimeout
from paceline.program.handover import handover

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.local import Local
    from paceline.cluster.session import Session
    from paceline.cluster.worker import Worker


class LocalDriver(Driving):
    """Runs each worker on a thread.

    The bell rings when there may be work, `_changed` is notified when anything else may have
    changed.

    Args:
        cluster: the configuration.
        session: the machines.
    """

    def __init__(self, cluster: Local, session: Session) -> None:
        super().__init__(cluster, session)
        self._bell = Bell()
        self._changed = threading.Condition(handover)
        self._num_waiting = 0  # threads to notify
        weakref.finalize(self, soon, self._bell.end).atexit = False

    def now(self) -> float:
        return time.monotonic()

    def stop(self) -> None:
        super().stop()
        self._bell.end()

    def _start(self, index: int) -> Worker:
        worker = self._new_worker(index)
        start(self, worker, self._bell)
        return worker

    def _ring(self, *, for_one: bool = False) -> None:
        self._bell.condition.notify() if for_one else self._bell.condition.notify_all()

    def _wake(self) -> None:
        if self._num_waiting:
            self._changed.notify_all()

    def _wait_until(self, is_met: Callable[[], bool], what: str) -> None:
        self._progress = started = self.now()
        while not is_met():
            now = self.now()
            self._expire(now)
            patience = self._cluster.deadline - (now - self._progress)
            if self._interrupted:
                grace = self._cluster.grace - (now - self._called_off_at)
                if grace <= 0:
                    self._give_up_on_interrupted()
                    continue
                patience = min(patience, grace)
            elif patience <= 0:
                self._note_timeout()
                raise WaitTimeout(
                    f"Nothing has happened for {self._cluster.deadline:g} s. Received: a wait of "
                    f"{now - started:.1f} s for {what}; {self.session.dispatch.explain(now)}. If a "
                    "step may take that long, make the cluster with a longer deadline."
                )
            lease_ends = self.session.dispatch.ledger.next_deadline()
            if lease_ends is not None:
                patience = min(patience, lease_ends - now)
            self._num_waiting += 1
            try:
                self._changed.wait(max(patience, 0.001))
            finally:
                self._num_waiting -= 1

    def _give_up_on_interrupted(self) -> None:
        """Replaces the workers that did not react when their work was called off."""
        for index in list(self._interrupted):
            worker = self._workers[index]
            self._at(Kind.ABANDON, worker)
            self._replace(worker, self.session.dispatch.abandon(index, worker.incarnation))
