"""Writes reports to the event files that TensorBoard shows, without TensorFlow."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Any

from paceline.errors import MissingExtra
from paceline.monitor.report import PERCENTILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.monitor.report import Report

_VERSION = "brain.Event:2"
# Two writers of one process may share a folder; a file's name must be its own.
_number = itertools.count()


class TensorBoardWriter:
    """Appends reports to an event file of its own in a folder.

    Scalars: `staleness/mean`, `/p50`, `/p90`, `/p99`, `/max`, `speed/steps_per_second`,
    `/examples_per_second`, `/wait_share`, `pushes/applied`, `/dropped`, `/retries`,
    `leases/taken_back`; for each worker `worker_0/steps_per_second`, `/wait_share`,
    `/median_compute`, `/mean_staleness`, `/dropped`, `/taken_back`.
    Histogram: `staleness`. What is written is on disk when `write` returns.

    Example:
        ```python
        with paceline.monitor.TensorBoardWriter("logs") as writer:
            writer.write(statistics.report(), step=0)
        ```

    Args:
        log_dir: the folder; it is made where it is missing.

    Raises:
        MissingExtra: tensorboardX, of the extra `tensorboard`, is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._tensorboardx = load()
        folder = os.fspath(log_dir)
        os.makedirs(folder, exist_ok=True)
        # The name that TensorBoard looks for; it reads the files of a folder in the names' order.
        name = f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}.{next(_number)}.paceline"
        self._records = self._tensorboardx.RecordWriter(os.path.join(folder, name))
        self._write(file_version=_VERSION)

    def write(self, report: Report, step: int) -> None:
        """Writes what a report says, at a step such as the number of the epoch."""
        summary = self._tensorboardx.proto.summary_pb2
        values = [
            summary.Summary.Value(tag=tag, simple_value=number)
            for tag, number in _scalars(report).items()
        ]
        if report.histogram:
            histogram = summary.HistogramProto(**_histogram(report.histogram))
            values.append(summary.Summary.Value(tag="staleness", histo=histogram))
        self._write(step=step, summary=summary.Summary(value=values))

    def close(self) -> None:
        """Closes the file."""
        self._records.close()

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, **content: Any) -> None:
        event = self._tensorboardx.proto.event_pb2.Event(wall_time=time.time(), **content)
        self._records.write(event.SerializeToString())
        self._records.flush()


def load() -> Any:
    """Imports tensorboardX, or says how to get it."""
    try:
        import tensorboardX  # an extra
        import tensorboardX.proto.event_pb2
        import tensorboardX.proto.summary_pb2
    except ImportError as error:
        raise MissingExtra(
            "Writing for TensorBoard needs tensorboardX, which is not installed. Received: "
            f'{error}. Install the extra: pip install "paceline[tensorboard]".'
        ) from error
    return tensorboardX


def _scalars(report: Report) -> dict[str, float]:
    scalars: dict[str, float] = {"staleness/mean": report.mean_staleness}
    scalars |= {f"staleness/p{percent}": report.percentile(percent) for percent in PERCENTILES}
    scalars |= {
        "staleness/max": report.max_staleness,
        "speed/steps_per_second": report.steps_per_second,
        "speed/examples_per_second": report.examples_per_second,
        "speed/wait_share": report.wait_share,
        "pushes/applied": report.applied,
        "pushes/dropped": report.dropped,
        "pushes/retries": report.retries,
        "leases/taken_back": report.taken_back,
    }
    for one in report.workers:
        # The colon of a task's name is not allowed in a tag.
        name = f"worker_{one.index}"
        scalars |= {
            f"{name}/steps_per_second": one.steps_per_second,
            f"{name}/wait_share": one.wait_share,
            f"{name}/median_compute": one.median_compute,
            f"{name}/mean_staleness": one.mean_staleness,
            f"{name}/dropped": one.dropped,
            f"{name}/taken_back": one.taken_back,
        }
    return scalars


def _histogram(counts: Mapping[int, int]) -> dict[str, Any]:
    """The fields of TensorBoard's histogram: a bucket holds what is up to its limit."""
    limits: list[float] = []
    held: list[float] = []
    for key, count in sorted(counts.items()):
        if not limits or limits[-1] < key - 0.5:
            limits.append(key - 0.5)  # what nothing was counted in is a bucket of its own
            held.append(0)
        limits.append(key + 0.5)
        held.append(count)
    return {
        "min": min(counts),
        "max": max(counts),
        "num": sum(counts.values()),
        "sum": sum(key * count for key, count in counts.items()),
        "sum_squares": sum(key * key * count for key, count in counts.items()),
        "bucket_limit": limits,
        "bucket": held,
    }
