"""What asynchronous training did: staleness, speed, stragglers, drops; and whether copies agree."""

from __future__ import annotations

from paceline.cluster.records import PushRecord
from paceline.monitor.callback import StalenessReport
from paceline.monitor.divergence import (
    Divergence,
    DivergenceCheck,
    check_replicas,
    check_workers,
    fingerprints,
)
from paceline.monitor.report import Report
from paceline.monitor.staleness import Statistics
from paceline.monitor.tensorboard import TensorBoardWriter
from paceline.monitor.worker_report import WorkerReport

__all__ = [
    "Divergence",
    "DivergenceCheck",
    "PushRecord",
    "Report",
    "StalenessReport",
    "Statistics",
    "TensorBoardWriter",
    "WorkerReport",
    "check_replicas",
    "check_workers",
    "fingerprints",
]
