"""The threads that workers run on. While one has no work it keeps neither driver nor strategy."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import os
import threading
import time
import traceback
import weakref
from typing import TYPE_CHECKING, Any

import jax

from paceline.program import context
from paceline.program.handover import handover

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.local_driver import LocalDriver

_FAREWELL_S = 5.0
_threads: weakref.WeakKeyDictionary[threading.Thread, Any] = weakref.WeakKeyDictionary()


class Bell:
    """Wakes threads that wait for work; all that an idle thread knows of its driver.

    Attributes:
        condition: notified when there may be work. Its lock is the one that guards the machines.
        is_over: whether there will be no more work.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition(handover)
        self.is_over = False

    def end(self) -> None:
        """Lets every thread end when it has finished what it runs."""
        self.is_over = True
        with handover:
            self.condition.notify_all()


def soon(act: Callable[[], Any]) -> None:
    """Calls `act` from a thread of its own. For finalizers that need a lock.

    The collector runs those in the midst of anything, so that waiting for a lock there may be
    waiting for what this very thread holds.
    """
    with contextlib.suppress(RuntimeError):  # the interpreter is ending, and all threads with it
        # Starting a `threading.Thread` takes a lock itself.
        _thread.start_new_thread(act, ())


def start(driver: LocalDriver, worker: Any, bell: Bell) -> None:
    """Starts the thread of a worker. It ends by itself, with its driver at the latest."""
    find_driver = weakref.ref(driver)
    thread = threading.Thread(
        target=_serve,
        args=(find_driver, worker.index, worker.incarnation, bell),
        name=f"paceline worker:{worker.index}",
        daemon=True,  # a thread that runs somebody's endless function must not hold up the exit
    )
    _take_leave_at_exit()
    _threads[thread] = find_driver
    thread.start()


@functools.cache
def _take_leave_at_exit() -> None:
    atexit.register(_take_leave)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_threads.clear)  # which has none of the threads


def _take_leave() -> None:
    """Calls off what is left when the interpreter ends, and lets workers finish what they run.

    A thread that comes back from XLA while the interpreter goes down takes the process with it.
    One that takes longer than `_FAREWELL_S` is left to that.
    """
    end = time.monotonic() + _FAREWELL_S
    if not _threads or not handover.acquire(timeout=_FAREWELL_S):
        return
    try:
        threads = list(_threads)
        for driver in {find() for find in _threads.values()} - {None}:
            try:
                driver.stop()
            except Exception:  # the others have to leave all the same
                traceback.print_exc()
    finally:
        handover.release()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _serve(find_driver: Any, index: int, incarnation: int, bell: Bell) -> None:
    while True:
        with handover:
            driver = find_driver()
            worker = None if driver is None else driver.worker(index, incarnation)
            if driver is None or worker is None or bell.is_over:
                return
            work = driver.take(worker)
            if work is None:
                if driver.worker(index, incarnation) is None:
                    return
                del driver, worker
                if not bell.is_over:  # this thread may have been the last one to know the driver
                    bell.condition.wait()
                continue
        with context.working(worker), jax.default_device(worker.device):
            while work is not None:
                work = driver.run(worker, work)
        del driver, worker, work  # what they hold must not live until the next work comes
