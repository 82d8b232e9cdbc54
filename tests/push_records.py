"""Makes push records by hand; what a test does not care about is left out."""

from __future__ import annotations

from paceline.cluster.records import PushRecord
from paceline.monitor import Statistics


def push(
    worker: int = 0,
    at: float = 1.0,
    *,
    outcome: str = "applied",
    staleness: int = 0,
    wait: float = 0.0,
    compute: float = 0.1,
    examples: int = 0,
    reason: str = "",
) -> PushRecord:
    """A push that ended at time `at`, on a store at version 100."""
    return PushRecord(
        worker=worker,
        outcome=outcome,
        read_version=100 - staleness,
        apply_version=100,
        staleness=staleness,
        wait=wait,
        compute=compute,
        finished_at=at,
        examples=examples,
        reason=reason,
    )


def recorded(*pushes: PushRecord) -> Statistics:
    """Statistics of these pushes."""
    statistics = Statistics()
    for one in pushes:
        statistics.record(one)
    return statistics


def two_workers() -> Statistics:
    """One fast and one slow worker, with a drop and a retry; from second 10 to second 14."""
    return recorded(
        push(0, 10.5, staleness=0, wait=0.1, compute=0.4, examples=8),
        push(0, 11.0, staleness=1, wait=0.1, compute=0.4, examples=8),
        push(1, 14.0, staleness=5, wait=0.0, compute=4.0, examples=8),
        push(0, 12.0, staleness=0, wait=0.1, compute=0.4, examples=4),
        push(0, 12.1, outcome="duplicate", wait=0.1, compute=0.4, examples=4),
        push(0, 13.0, outcome="dropped", staleness=9, compute=0.4, examples=8, reason="Too stale."),
    )
