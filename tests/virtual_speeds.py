"""Workers of one process that are as fast as a test says, by a clock of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from paceline.program.handover import handover

if TYPE_CHECKING:
    from collections.abc import Mapping

DEADLINE_S = 60.0


class VirtualSpeeds:
    """Lets a strategy's workers push in the order in which virtual seconds bring them there.

    A step takes its worker so many virtual seconds, and nothing else takes any. A worker waits with
    its push until every other one is known to push later: it computes a longer step, or the pace
    does not let it start. So each run goes alike, and the strategy measures virtual seconds.

    Args:
        strategy: the strategy; use the object as a context manager around what it runs.
        seconds: of a step, by worker.
        default: of a step of every other worker.

    Attributes:
        now: virtual seconds that have passed.
    """

    def __init__(self, strategy: Any, seconds: Mapping[int, float], default: float = 1.0) -> None:
        self.now = 0.0
        self._session = strategy.session
        self._workers = strategy.cluster.workers
        self._exchange = strategy.session.exchange
        self._seconds = seconds
        self._default = default
        self._computing: set[int] = set()
        self._started: dict[int, float] = {}
        self._pushing: dict[int, float] = {}
        # The driver's lock guards all of this too, and is free while a worker waits.
        self._moved = threading.Condition(handover)

    def __enter__(self) -> VirtualSpeeds:
        self._session.exchange = self
        return self

    def __exit__(self, *error: object) -> None:
        self._session.exchange = self._exchange

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._exchange, name)
        if name not in ("join", "leave", "finish"):
            return found

        def call(worker: int, *args: Any) -> None:
            found(worker, *args)
            self._moved.notify_all()

        return call

    def ask(self, worker: int, now: float) -> None:
        """Notes when a worker wants to start."""
        self._exchange.ask(worker, self.now)

    def pull(self, worker: int, keys: Any, now: float) -> Any:
        """Notes when the step of a worker starts."""
        self._computing.add(worker)
        self._started[worker] = self.now
        return self._exchange.pull(worker, keys, self.now)

    def push(self, push: Any, now: float) -> Any:
        """Waits until the step's time has passed and it is the worker's turn."""
        worker = push.worker
        seconds = self._seconds.get(worker, self._default)
        self._computing.remove(worker)
        self._pushing[worker] = self._started[worker] + seconds
        self._moved.notify_all()
        if not self._moved.wait_for(lambda: self._is_next(worker), DEADLINE_S):
            raise TimeoutError(f"worker:{worker} waits for others: {vars(self)}")
        self.now = max(self.now, self._pushing.pop(worker))
        outcome = self._exchange.push(push, self.now)
        self._moved.notify_all()
        return outcome

    def _is_next(self, worker: int) -> bool:
        own = self._pushing[worker], worker
        return all(
            self._pushes_later(other, own)
            for other in range(self._workers)
            if other != worker and self._exchange.is_member(other)
        )

    def _pushes_later(self, other: int, own: tuple[float, int]) -> bool:
        if other in self._pushing:
            return (self._pushing[other], other) > own
        return other not in self._computing and not self._exchange.may_pull(other).is_granted
