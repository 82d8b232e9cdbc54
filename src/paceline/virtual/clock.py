"""The virtual clock: events that are still to come, and the time of the last one that came."""

from __future__ import annotations

import itertools
import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """Events in the order of their times; of equal times in the order in which they were set.

    Time stands still while an event is handled, and jumps to the next one after it.

    Attributes:
        now: virtual seconds since the clock was made.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = itertools.count()  # several threads may set events

    def __len__(self) -> int:
        """How many events are still to come."""
        return len(self._events)

    @property
    def next_time(self) -> float:
        """When the next event comes; infinite where there is none."""
        return self._events[0][0] if self._events else math.inf

    def at(self, time: float, act: Callable[..., Any], *args: Any) -> None:
        """Sets an event: `act(*args)` is called at `time`, or now where that has passed."""
        heappush(self._events, (time, next(self._count), act, args))

    def step(self) -> bool:
        """Lets the next event happen; returns False where there is none."""
        if not self._events:
            return False
        time, _, act, args = heappop(self._events)
        if time > self.now:
            self.now = time
        act(*args)
        return True
