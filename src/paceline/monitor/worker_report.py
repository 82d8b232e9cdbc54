"""What the pushes of one worker add up to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from paceline.monitor import buckets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.monitor.reasons import Reasons


def ratio(part: float, whole: float) -> float:
    """The quotient, and 0 where nothing was counted."""
    return part / whole if whole else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """The pushes of one worker.

    Attributes:
        index: index of the worker.
        applied: pushes that were applied.
        retries: pushes that came once more and were not counted again.
        taken_back: leases that were taken back, because the worker had them longer than
            `lease_deadline` of the cluster allows.
        examples: examples of the applied pushes.
        total_staleness: sum of the staleness of the applied pushes.
        total_wait: seconds spent waiting for pulls, by applied and dropped pushes.
        total_compute: seconds between pull and push, of applied and dropped pushes.
        reasons: why pushes were dropped.
        step_times: histogram of the seconds between pull and push, in buckets; updates that the
            store ran itself are not in it.
        seconds: seconds that the report covers.
    """

    index: int
    applied: int
    retries: int
    taken_back: int = 0
    examples: int
    total_staleness: int
    total_wait: float
    total_compute: float
    reasons: Reasons = dataclasses.field(repr=False)
    step_times: Mapping[int, int] = dataclasses.field(repr=False)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The task, `worker:1`."""
        return f"worker:{self.index}"

    @property
    def dropped(self) -> int:
        """Pushes that were dropped."""
        return self.reasons.total

    @property
    def pushes(self) -> int:
        """Pushes that were applied or dropped."""
        return self.applied + self.dropped

    @property
    def drops(self) -> dict[str, int]:
        """Why pushes were dropped, and how many for each reason."""
        return self.reasons.as_dict()

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
        """Waiting as a share of waiting and computing."""
        return ratio(self.total_wait, self.total_wait + self.total_compute)

    @property
    def mean_compute(self) -> float:
        """Mean seconds between pull and push."""
        return ratio(self.total_compute, sum(self.step_times.values()))

    @property
    def median_compute(self) -> float:
        """Median seconds between pull and push, within 0.4%."""
        if not self.step_times:
            return 0.0
        return buckets.to_seconds(buckets.percentile(self.step_times, 50))

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the applied pushes."""
        return ratio(self.total_staleness, self.applied)

    def as_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {
            "applied": self.applied,
            "dropped": self.dropped,
            "retries": self.retries,
            "taken_back": self.taken_back,
            "examples": self.examples,
            "steps_per_second": self.steps_per_second,
            "examples_per_second": self.examples_per_second,
            "wait_share": self.wait_share,
            "mean_compute": self.mean_compute,
            "median_compute": self.median_compute,
            "mean_staleness": self.mean_staleness,
            "drops": self.drops,
        }

    def includes(self, earlier: WorkerReport) -> bool:
        """Whether everything that `earlier` counted is counted here."""
        return (
            self.applied >= earlier.applied
            and self.dropped >= earlier.dropped
            and self.retries >= earlier.retries
            and self.taken_back >= earlier.taken_back
        )

    def since(self, earlier: WorkerReport) -> WorkerReport:
        """What was recorded after `earlier`."""
        return WorkerReport(
            index=self.index,
            applied=self.applied - earlier.applied,
            retries=self.retries - earlier.retries,
            taken_back=self.taken_back - earlier.taken_back,
            examples=self.examples - earlier.examples,
            total_staleness=self.total_staleness - earlier.total_staleness,
            total_wait=self.total_wait - earlier.total_wait,
            total_compute=self.total_compute - earlier.total_compute,
            reasons=self.reasons - earlier.reasons,
            step_times=buckets.difference(self.step_times, earlier.step_times),
        )
