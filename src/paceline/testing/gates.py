"""Gates: where a test holds the threads of workers, and lets them go in the order it wants."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from paceline.errors import WaitTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 60.0


class Gate:
    """A place that a worker's code passes when the test says so; no test needs to sleep.

    Every wait has a deadline. As a context manager it is open at the end, so that a test that fails
    leaves no thread behind.

    Example:
        ```python
        gate = paceline.testing.Gate()
        value = coordinator.schedule(lambda: gate.wait())
        gate.await_visitors(1)  # now it runs, and stands still
        gate.open()
        ```

    Args:
        name: for messages.
        holds: how many visitors it holds, the first ones; None: all.
        driver: the driver whose workers pass it, such as `strategy.driver`. Where time is virtual
            it has to be given: there nothing goes on unless somebody waits for it in the driver.

    Attributes:
        visitors: what the visitors said they were, in the order in which they came.
    """

    def __init__(self, name: str = "gate", *, holds: int | None = None, driver: Any = None) -> None:
        self.name = name
        self.visitors: list[object] = []
        self._driver = driver
        self._holds = holds
        self._free = 0  # how many of those that are held may pass
        self._is_open = False
        # Guards all of the above; notified when somebody comes and when somebody may pass.
        self._changed = threading.Condition()

    def wait(self, visitor: object = None) -> None:
        """Waits until the visitor may pass.

        Args:
            visitor: who it is, such as the index of a worker.

        Raises:
            TimeoutError: the test did not open the gate.
        """
        with self._changed:
            place = len(self.visitors)
            self.visitors.append(visitor)
            self._changed.notify_all()
        if self._holds is None or place < self._holds:
            self._await(lambda: self._is_open or place < self._free, "to be opened")

    def await_visitors(self, count: int = 1) -> None:
        """Waits until so many visitors have come, from the beginning.

        Raises:
            TimeoutError: fewer came.
        """
        self._await(lambda: len(self.visitors) >= count, f"{count} visitors")

    def let(self, count: int = 1) -> None:
        """Lets the next `count` visitors pass, in the order in which they come."""
        with self._changed:
            self._free += count
            self._changed.notify_all()

    def open(self) -> None:
        """Lets everybody pass from now on."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *error: object) -> None:
        self.open()

    def _await(self, is_met: Callable[[], bool], what: str) -> None:
        cause: WaitTimeout | None = None
        try:
            if self._driver is not None and self._driver.let_go_on(is_met):
                return
            with self._changed:
                if self._changed.wait_for(is_met, DEADLINE_S):
                    return
        except WaitTimeout as error:
            cause = error
        raise TimeoutError(
            f"A gate is passed within {DEADLINE_S:g} s. Received: {self.name!r}, which still waits "
            f"for {what} after these visitors: {self.visitors}."
        ) from cause

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<paceline Gate {self.name!r}, {state}, {len(self.visitors)} visitors>"
