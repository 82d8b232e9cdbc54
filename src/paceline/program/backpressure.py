"""A limit on the steps under way, so that collectives on CPU devices cannot lock each other out.

JAX's CPU client admits 32 computations per device; past that, dispatch blocks a thread of the pool
that the collectives of earlier steps need, and with two devices one may never reach the all-reduce
the other waits in (XLA aborts the process after 40 seconds). A loop that never reads a result gets
there. Waiting for the step before the last sixteen keeps the devices as busy and never blocks; see
docs/limits.md for the script that shows it.
"""

from __future__ import annotations

import collections
from typing import Any

_LIMIT = 16


class Backpressure:
    """Lets at most sixteen steps be under way on one group of devices."""

    def __init__(self) -> None:
        self._under_way: collections.deque[Any] = collections.deque()

    def admit(self, token: Any) -> None:
        """Takes an output of the step just dispatched; waits for an old one if there are many."""
        self._under_way.append(token)
        if len(self._under_way) > _LIMIT:
            self._under_way.popleft().block_until_ready()
