"""Every cluster does what the checks that are public in `paceline.testing` demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paceline.cluster import Local, Replay, Simulated
from paceline.testing import conformance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


class Recorded:
    """Makes clusters that record their runs, and then those that replay them, in the same order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: list[Path] = []

    def _next_path(self) -> Path:
        self._paths.append(self._folder / f"{len(self._paths)}.trace")
        return self._paths[-1]

    def threads(self, workers: int, deadline: float, grace: float) -> Local:
        return Local(workers, deadline=deadline, grace=grace, record=self._next_path())

    def simulated(self, workers: int, deadline: float, grace: float) -> Simulated:
        del deadline, grace
        return Simulated(workers, record=self._next_path())

    def replayed(self, workers: int, deadline: float, grace: float) -> Replay:
        """The deadline of a replay is one of computing: waits end as they did."""
        del deadline, grace
        cluster = Replay(self._paths.pop(0))
        assert cluster.workers == workers
        return cluster


@pytest.mark.parametrize("check", conformance.CLUSTER, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["threads", "simulated"])
def test_the_record_of_a_run_passes_again(
    tmp_path: Path, check: Callable[[Any], None], kind: str
) -> None:
    """Every check, recorded by threads and in virtual time, and the same check on the record."""
    recorded = Recorded(tmp_path)
    check(getattr(recorded, kind))
    check(recorded.replayed)
    assert not recorded._paths
