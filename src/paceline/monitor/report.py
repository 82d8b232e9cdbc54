"""What the pushes of a run, or of a part of it, add up to."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidArgument
from paceline.monitor import buckets, showing
from paceline.monitor.reasons import Reasons
from paceline.monitor.worker_report import WorkerReport, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

PERCENTILES = (50, 90, 99)
STRAGGLER_FACTOR = 3.0


class NextPush:
    """When the first push after a report began: there may be a pause, for validation say."""

    __slots__ = ("started_at",)

    def __init__(self) -> None:
        self.started_at = -math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The pushes of all workers, in a run or a part of it.

    A step is an applied push. Step times are those between pull and push: waiting does not count,
    because a slow worker makes the others wait.

    Attributes:
        started_at: when the first push began, in the cluster's seconds.
        finished_at: when the last push ended.
        histogram: how many applied pushes had which staleness; exact below 4,096.
        workers: the pushes of each worker, by index.
    """

    started_at: float
    finished_at: float
    histogram: Mapping[int, int]
    workers: tuple[WorkerReport, ...]
    next_push: NextPush = dataclasses.field(default_factory=NextPush, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Tells the workers' reports how long the whole one lasted."""
        workers = (dataclasses.replace(one, seconds=self.seconds) for one in self.workers)
        object.__setattr__(self, "workers", tuple(workers))

    @property
    def seconds(self) -> float:
        """From the beginning of the first push to the end of the last."""
        return self.finished_at - self.started_at

    @property
    def applied(self) -> int:
        """Pushes that were applied."""
        return sum(one.applied for one in self.workers)

    @property
    def dropped(self) -> int:
        """Pushes that were dropped."""
        return sum(one.dropped for one in self.workers)

    @property
    def pushes(self) -> int:
        """Pushes that were applied or dropped."""
        return self.applied + self.dropped

    @property
    def retries(self) -> int:
        """Pushes that came once more and were not counted again."""
        return sum(one.retries for one in self.workers)

    @property
    def taken_back(self) -> int:
        """Leases that were taken back from workers that had them too long."""
        return sum(one.taken_back for one in self.workers)

    @property
    def examples(self) -> int:
        """Examples of the applied pushes."""
        return sum(one.examples for one in self.workers)

    @property
    def steps_per_second(self) -> float:
        """Applied pushes a second."""
        return ratio(self.applied, self.seconds)

    @property
    def examples_per_second(self) -> float:
        """Examples of applied pushes a second."""
        return ratio(self.examples, self.seconds)

    @property
    def wait_share(self) -> float:
        """Waiting as a share of the waiting and computing of all workers."""
        wait = sum(one.total_wait for one in self.workers)
        return ratio(wait, wait + sum(one.total_compute for one in self.workers))

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the applied pushes."""
        return ratio(sum(one.total_staleness for one in self.workers), self.applied)

    @property
    def max_staleness(self) -> int:
        """Largest staleness of an applied push."""
        return max(self.histogram, default=0)

    def percentile(self, percent: float) -> int:
        """The smallest staleness that at least `percent` of the applied pushes do not exceed.

        Raises:
            InvalidArgument: `percent` is not between 0 and 100.
        """
        if not 0 <= percent <= 100:
            raise InvalidArgument(
                f"A percentile lies between 0 and 100. Received: percent={percent!r}."
            )
        return buckets.percentile(self.histogram, percent)

    @property
    def drops(self) -> dict[str, int]:
        """Why pushes were dropped, and how many for each reason."""
        return sum((one.reasons for one in self.workers), Reasons()).as_dict()

    @property
    def typical_compute(self) -> float:
        """The median over workers of their median step times: of two, the faster one's."""
        medians = [one.median_compute for one in self.workers if one.step_times]
        return statistics.median_low(medians) if medians else 0.0

    @property
    def stragglers(self) -> tuple[str, ...]:
        """The workers with a median step time over three times the median over workers."""
        limit = STRAGGLER_FACTOR * self.typical_compute
        return tuple(one.name for one in self.workers if one.median_compute > limit)

    def since(self, earlier: Report) -> Report:
        """What was recorded after `earlier`, an earlier report of the same statistics.

        Raises:
            InvalidArgument: `earlier` counted what this report did not.
        """
        before = {one.index: one for one in earlier.workers}
        now = {one.index: one for one in self.workers}
        if any(i not in now or not now[i].includes(one) for i, one in before.items()):
            raise InvalidArgument(
                "`since` takes an earlier report of the same statistics. Received: one that counts "
                f"{earlier.pushes} pushes, where this one counts {self.pushes}."
            )
        started_at = self.started_at
        if self.pushes == earlier.pushes:
            started_at = self.finished_at
        elif earlier.pushes:
            started_at = max(earlier.next_push.started_at, earlier.finished_at)
        return Report(
            started_at=started_at,
            finished_at=self.finished_at,
            histogram=buckets.difference(self.histogram, earlier.histogram),
            workers=tuple(
                one.since(before[one.index]) if one.index in before else one for one in self.workers
            ),
            next_push=self.next_push,
        )

    def as_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {
            "seconds": self.seconds,
            "applied": self.applied,
            "dropped": self.dropped,
            "retries": self.retries,
            "taken_back": self.taken_back,
            "examples": self.examples,
            "steps_per_second": self.steps_per_second,
            "examples_per_second": self.examples_per_second,
            "wait_share": self.wait_share,
            "staleness": {
                "mean": self.mean_staleness,
                **{f"p{percent}": self.percentile(percent) for percent in PERCENTILES},
                "max": self.max_staleness,
                "histogram": {str(key): count for key, count in self.histogram.items()},
            },
            "stragglers": list(self.stragglers),
            "drops": self.drops,
            "workers": {one.name: one.as_dict() for one in self.workers},
        }

    def summary(self) -> str:
        """One paragraph in plain words, which names stragglers."""
        return showing.summary(self)

    def table(self) -> Table:
        """A table for Rich, a row for each worker, with the summary below."""
        return showing.table(self)
