"""Event files, read back by TensorBoard itself."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from paceline.errors import MissingExtra
from paceline.monitor import StalenessReport, Statistics, TensorBoardWriter
from push_records import push, recorded, two_workers

if TYPE_CHECKING:
    from pathlib import Path


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_scalars(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path / "new" / "logs") as writer:
        statistics = two_workers()
        statistics.note_taken_back(1)
        writer.write(statistics.report(), step=3)
    events = read(tmp_path / "new" / "logs")
    found = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    expected = {
        "staleness/mean": 1.5,
        "staleness/p50": 0,
        "staleness/p90": 5,
        "staleness/p99": 5,
        "staleness/max": 5,
        "speed/steps_per_second": 1.0,
        "speed/examples_per_second": 7.0,
        "speed/wait_share": 0.3 / 5.9,
        "pushes/applied": 4,
        "pushes/dropped": 1,
        "pushes/retries": 1,
        "leases/taken_back": 1,
        "worker_0/steps_per_second": 0.75,
        "worker_0/wait_share": 0.3 / 1.9,
        "worker_0/median_compute": pytest.approx(0.4, rel=0.004),
        "worker_0/mean_staleness": 1 / 3,
        "worker_0/dropped": 1,
        "worker_0/taken_back": 0,
        "worker_1/steps_per_second": 0.25,
        "worker_1/wait_share": 0,
        "worker_1/median_compute": pytest.approx(4.0, rel=0.004),
        "worker_1/mean_staleness": 5,
        "worker_1/dropped": 0,
        "worker_1/taken_back": 1,
    }
    assert found == {tag: [(3, pytest.approx(value))] for tag, value in expected.items()}


def test_the_histogram(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        writer.write(two_workers().report(), step=0)
    (event,) = read(tmp_path).Histograms("staleness")
    told = event.histogram_value
    assert (told.min, told.max, told.num, told.sum, told.sum_squares) == (0, 5, 4, 6, 26)
    # 2 to 4 were not measured, and are not part of the bucket of 5.
    assert told.bucket_limit == [-0.5, 0.5, 1.5, 4.5, 5.5]
    assert told.bucket == [0, 2, 1, 0, 1]


def test_one_value_for_each_step(tmp_path: Path) -> None:
    statistics = Statistics()
    with TensorBoardWriter(tmp_path) as writer:
        for step in range(3):
            statistics.record(push(at=step + 1.0, staleness=step))
            writer.write(statistics.report(), step=step)
            # On disk at once: training may end at any time.
            assert len(read(tmp_path).Scalars("staleness/max")) == step + 1
    values = [(event.step, event.value) for event in read(tmp_path).Scalars("staleness/max")]
    assert values == [(0, 0), (1, 1), (2, 2)]


def test_two_writers_in_one_folder_write_two_files(tmp_path: Path) -> None:
    for _ in range(2):
        with TensorBoardWriter(tmp_path) as writer:
            writer.write(recorded(push()).report(), step=0)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_report_of_nothing_has_no_histogram(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        writer.write(Statistics().report(), step=0)
    events = read(tmp_path)
    assert events.Tags()["histograms"] == []
    assert events.Scalars("pushes/applied")[0].value == 0


@pytest.mark.parametrize("make", [TensorBoardWriter, StalenessReport])
def test_without_tensorboardx_the_extra_is_named(
    make: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtra, match=r'pip install "paceline\[tensorboard\]"'):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_namespace_loads_without_tensorboardx_and_tensorflow() -> None:
    code = """
import sys
sys.modules["tensorboardX"] = sys.modules["tensorflow"] = None
import paceline
paceline.monitor.StalenessReport()
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stderr
