"""Labs whose cluster runs in virtual time. A step takes a second unless a test says otherwise."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from paceline.cluster import Simulated
from paceline.testing.conformance import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.pace import Pace


@contextlib.contextmanager
def lab_of(
    workers: int,
    *,
    pace: Pace | None = None,
    capacity: int = 4096,
    **options: Any,
) -> Iterator[Lab]:
    """A lab on a simulated cluster with these options."""
    with Lab(
        lambda workers, deadline, grace: Simulated(workers, **options),
        workers=workers,
        pace=pace,
        capacity=capacity,
        lease_deadline=options.get("lease_deadline"),
    ) as lab:
        yield lab


def ran(count: int, workers: int, **options: Any) -> Lab:
    """The lab after so many steps."""
    with lab_of(workers, **options) as lab:
        for _ in range(count):
            lab.submit_step()
        lab.driver.join()
        assert lab.number == lab.counted == count
        return lab


def pushes(lab: Lab) -> list[tuple[int, float]]:
    """Who pushed, and when."""
    return [(record.worker, record.finished_at) for record in lab.records]
