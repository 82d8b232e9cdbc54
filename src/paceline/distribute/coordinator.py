"""`tf.distribute.coordinator`'s names, and those of `tf.distribute.experimental.coordinator`."""

from __future__ import annotations

from paceline.coordinator import (
    ClusterCoordinator,
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerValues,
    RemoteValue,
    experimental_get_current_worker_index,
)

PerWorkerValue = PerWorkerValues
"""The newer of TensorFlow's two names for `PerWorkerValues`."""

__all__ = [
    "ClusterCoordinator",
    "PerWorkerDataset",
    "PerWorkerIterator",
    "PerWorkerValue",
    "PerWorkerValues",
    "RemoteValue",
    "experimental_get_current_worker_index",
]
