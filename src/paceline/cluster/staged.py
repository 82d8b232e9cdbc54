"""What drivers do whose workers' code runs in turn, on a stage: how one waits for it.

Nothing happens while nobody waits. One thread of the program at a time lets things happen; others
that wait listen to it.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

from paceline.cluster.driving import Driving
from paceline.cluster.serving import soon
from paceline.cluster.stage import Stage
from paceline.cluster.trace import Kind
from paceline.errors import WaitTimeout
from paceline.program.handover import handover

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.base import Cluster
    from paceline.cluster.session import Session
    from paceline.cluster.stage import Actor


@dataclasses.dataclass(eq=False)
class _Waiter:
    """A worker's code that stands still until something is so.

    Attributes:
        what: what it waits for.
        is_late: whether it is to be told that nothing more is to come.
    """

    actor: Actor
    is_met: Callable[[], bool]
    what: str
    is_late: bool = False


class Staged(Driving):
    """Runs workers' code in turn, whenever the coordinator waits.

    Args:
        cluster: the configuration; its `deadline` is in real seconds.
        session: the machines.
    """

    def __init__(self, cluster: Cluster, session: Session) -> None:
        super().__init__(cluster, session)
        self._stage = Stage(self._cluster.deadline)
        self._waiting: list[_Waiter] = []  # for what workers bring about
        self._watching: list[_Waiter] = []  # for what may come from anywhere
        self._has_moved = True  # whether one of those that wait may go on
        self._is_conducted = False  # whether some thread lets things happen
        self._changed = threading.Condition(handover)  # told to those that listen to it
        self._num_listening = 0
        self._num_per_poll = 1  # what the next `is_done` lets happen
        weakref.finalize(self, soon, self._stage.close).atexit = False

    @abc.abstractmethod
    def _next_event(self) -> bool:
        """Lets the next event come; called without the lock.

        Returns:
            Whether there was one.
        """

    def is_done(self) -> bool:
        if super().is_done():
            self._num_per_poll = 1
            return True
        # A program that asks again and again waits, perhaps for a second in between.
        dispatch = self.session.dispatch
        with handover:
            if not self._is_conducted:
                has_moved = self._conduct(self._num_per_poll, lambda: dispatch.is_idle)
                self._num_per_poll *= 2
                if not has_moved and not self._watching and not self._unblock():
                    self._note_timeout()
                    raise self._timeout("all scheduled work")
        return False

    def let_go_on(self, is_met: Callable[[], bool]) -> bool:
        what = "what somebody waits for outside"
        with handover:
            actor = self._stage.here
            if actor is None:
                self._wait_here(is_met, what, is_outside=True)
            elif not is_met():
                self._watching.append(_Waiter(actor, is_met, what))
                self._unlocked(self._stage.stand_still)
        return True

    def stop(self) -> None:
        super().stop()
        soon(self._end)  # this may be a finalizer, and whoever stands still takes locks

    def _end(self) -> None:
        """Ends everybody's code and all threads."""
        with handover, contextlib.suppress(WaitTimeout):  # of code that goes on and on
            while self._is_conducted:
                self._listen()
            self._conduct(math.inf)
        self._stage.close()

    def _wake(self) -> None:
        self._has_moved = True
        if self._num_listening:
            self._changed.notify_all()

    def _wait_until(self, is_met: Callable[[], bool], what: str) -> None:
        actor = self._stage.here
        if actor is None:
            self._wait_here(is_met, what)
        elif not is_met():
            waiter = _Waiter(actor, is_met, what)
            self._waiting.append(waiter)
            self._unlocked(self._stage.stand_still)
            if waiter.is_late:
                self._note_timeout()
                raise self._timeout(what)

    def _wait_here(
        self, is_met: Callable[[], bool], what: str, *, is_outside: bool = False
    ) -> None:
        """Lets events happen, in a thread of the program."""
        while not is_met():
            if self._is_conducted:
                self._listen()
            elif not self._conduct(math.inf, is_met) and not self._unblock(is_outside):
                self._note_timeout()
                raise self._timeout(what)

    def _listen(self) -> None:
        """Waits for another thread of the program, which lets events happen."""
        self._num_listening += 1
        try:
            self._changed.wait(self._cluster.deadline)
        finally:
            self._num_listening -= 1

    def _conduct(self, most: float, is_met: Callable[[], bool] = lambda: False) -> bool:
        """Lets so many events happen, or until something is so; returns whether any did."""
        count = 0
        self._is_conducted = True
        try:
            while count < most and self._unlocked(self._happen):
                count += 1
                if is_met():
                    break
        finally:
            self._is_conducted = False
            self._wake()
        if self._is_released and not self._workers:
            self._stage.let_go()
        return count > 0

    def _unblock(self, is_outside: bool = False) -> bool:
        """Called when nothing more is to come; returns whether somebody can be told to go on."""
        if self._interrupted:  # and does not react, such as code that waits for something else
            for index in list(self._interrupted):
                worker = self._workers[index]
                self._at(Kind.ABANDON, worker)
                self._replace(worker, self.session.dispatch.abandon(index, worker.incarnation))
            return True
        if is_outside and self._waiting:  # which may be for what comes of that worker's error
            self._waiting[0].is_late = self._has_moved = True
            return True
        return False

    def _timeout(self, what: str) -> Exception:
        absent = [f"worker:{index}" for index in sorted(self._absent)]
        gone = f", without {', '.join(absent)}" if absent else ""
        return WaitTimeout(
            "What is waited for comes in virtual time, or never. Received: a wait for "
            f"{what} at {self.now():g} virtual s, when nothing more is to come{gone}; "
            f"{self.session.dispatch.explain(self.now())}."
        )

    def _unlocked(self, act: Callable[[], Any]) -> Any:
        """Calls `act` without the lock, however often it is held."""
        held: Any = handover
        state = held._release_save()
        try:
            return act()
        finally:
            held._acquire_restore(state)

    def _happen(self) -> bool:
        """Lets the next thing happen: somebody's wait is over, or an event comes.

        Returns:
            Whether anything did.
        """
        self._stage.settle()
        if self._is_over:
            return self._stage.dismiss()
        waiter = self._next_waiter()
        if waiter is None:
            return self._next_event()
        self._stage.go_on(waiter.actor, "a worker that waits")
        return True

    def _next_waiter(self) -> _Waiter | None:
        """Takes somebody off the lists whose wait is over."""
        with handover:
            has_moved, self._has_moved = self._has_moved, False
            for waiters in (self._waiting, self._watching) if has_moved else (self._watching,):
                for waiter in waiters:
                    if waiter.is_late or waiter.is_met():
                        self._has_moved = has_moved
                        waiters.remove(waiter)
                        return waiter
        return None
