"""Scheduling functions on workers: the coordinator, and what there is one of per worker."""

from __future__ import annotations

from paceline.cluster.remote_value import RemoteValue
from paceline.coordinator.coordinator import (
    ClusterCoordinator,
    experimental_get_current_worker_index,
)
from paceline.coordinator.datasets import PerWorkerDataset, PerWorkerIterator
from paceline.coordinator.values import PerWorkerValues

__all__ = [
    "ClusterCoordinator",
    "PerWorkerDataset",
    "PerWorkerIterator",
    "PerWorkerValues",
    "RemoteValue",
    "experimental_get_current_worker_index",
]
