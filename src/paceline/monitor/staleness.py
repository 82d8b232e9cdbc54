"""Statistics of pushes while they happen: constant time and bounded memory for each."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from paceline.errors import InvalidArgument
from paceline.monitor import buckets
from paceline.monitor.reasons import Reasons
from paceline.monitor.report import NextPush, Report, WorkerReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.records import PushRecord


class Statistics:
    """What the pushes of a run add up to.

    `record` takes each push as it ends, from any thread; `report` may be asked at any time. What
    is kept are counts, sums, a histogram of staleness and one of each worker's step times.

    Example:
        ```python
        statistics = paceline.monitor.Statistics()
        for push in pushes:
            statistics.record(push)
        print(statistics.report().summary())
        ```

    Attributes:
        listeners: each is called with every push, by the thread that pushes.
    """

    def __init__(self) -> None:
        # Guards everything below: workers push while another thread asks for a report.
        self._lock = threading.Lock()
        self.listeners: list[Callable[[PushRecord], object]] = []
        self._workers: dict[int, _Counts] = {}
        self._histogram: dict[int, int] = {}
        self._started_at = math.inf
        self._finished_at = -math.inf
        self._next_push: NextPush | None = None

    def record(self, push: PushRecord) -> None:
        """Counts one push.

        Raises:
            InvalidArgument: the outcome is none of "applied", "dropped" and "duplicate".
        """
        outcome = push.outcome
        for listener in self.listeners:
            listener(push)
        with self._lock:
            counts = self._workers.get(push.worker)
            if counts is None:
                counts = self._workers[push.worker] = _Counts()
            if outcome == "applied":
                staleness = push.staleness
                counts.applied += 1
                counts.examples += push.examples
                counts.staleness += staleness
                if staleness >= buckets.EXACT_BELOW:
                    staleness = buckets.rounded(staleness)
                self._histogram[staleness] = self._histogram.get(staleness, 0) + 1
            elif outcome == "dropped":
                counts.drops.add(push.reason)
            elif outcome == "duplicate":
                # The same push once more: its time is counted already.
                counts.retries += 1
                return
            else:
                raise InvalidArgument(
                    'A push ends as "applied", "dropped" or "duplicate". Received: '
                    f"outcome={outcome!r} of worker {push.worker}."
                )
            compute, wait, finished_at = push.compute, push.wait, push.finished_at
            counts.compute += compute
            counts.wait += wait
            if compute > 0:  # an update that the store runs itself has no time of a worker
                bucket = buckets.of_seconds(compute)
                counts.step_times[bucket] = counts.step_times.get(bucket, 0) + 1
            started_at = finished_at - push.held - compute - wait
            if started_at < self._started_at:
                self._started_at = started_at
            if finished_at > self._finished_at:
                self._finished_at = finished_at
            if self._next_push is not None:
                self._next_push.started_at = started_at
                self._next_push = None

    def note_taken_back(self, worker: int) -> None:
        """Counts a lease that was taken back from a worker, which had it longer than allowed."""
        with self._lock:
            self._workers.setdefault(worker, _Counts()).taken_back += 1

    def report(self) -> Report:
        """What was recorded so far; `report.since(earlier)` is what came in between."""
        with self._lock:
            if self._next_push is None:
                self._next_push = NextPush()
            is_empty = self._started_at > self._finished_at
            return Report(
                started_at=0.0 if is_empty else self._started_at,
                finished_at=0.0 if is_empty else self._finished_at,
                histogram=dict(sorted(self._histogram.items())),
                workers=tuple(
                    counts.report(index) for index, counts in sorted(self._workers.items())
                ),
                next_push=self._next_push,
            )


class _Counts:
    """The counts of one worker."""

    __slots__ = (
        "applied",
        "compute",
        "drops",
        "examples",
        "retries",
        "staleness",
        "step_times",
        "taken_back",
        "wait",
    )

    def __init__(self) -> None:
        self.applied = 0
        self.examples = 0
        self.staleness = 0
        self.retries = 0
        self.taken_back = 0
        self.wait = 0.0
        self.compute = 0.0
        self.drops = Reasons()
        self.step_times: dict[int, int] = {}

    def report(self, index: int) -> WorkerReport:
        return WorkerReport(
            index=index,
            applied=self.applied,
            retries=self.retries,
            taken_back=self.taken_back,
            examples=self.examples,
            total_staleness=self.staleness,
            total_wait=self.wait,
            total_compute=self.compute,
            reasons=self.drops + Reasons(),
            step_times=dict(self.step_times),
        )
