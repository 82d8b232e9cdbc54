"""Every cluster does what the checks that are public in `paceline.testing` demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paceline.cluster import Local, Simulated
from paceline.testing import conformance

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("check", conformance.CLUSTER, ids=lambda check: check.__name__)
@pytest.mark.case("R80", "R81", "R90", "R110", "R114", "R115")
def test_threads_of_this_process(check: Callable[[Any], None]) -> None:
    check(Local)


def simulated(workers: int, deadline: float, grace: float) -> Simulated:
    """In virtual time a wait ends when nothing more is to come, whatever its deadline is."""
    del deadline, grace
    return Simulated(workers)


@pytest.mark.parametrize("check", conformance.CLUSTER, ids=lambda check: check.__name__)
def test_virtual_time(check: Callable[[Any], None]) -> None:
    check(simulated)
