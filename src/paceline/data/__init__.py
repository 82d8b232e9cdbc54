"""Batches for replicas: what can be read, how it is split, and where it is put."""

from __future__ import annotations

from paceline.data.arrays import ArrayBatches
from paceline.data.dataset import DistributedDataset, DistributedIterator, OptionalElement
from paceline.data.options import AutoShardPolicy, InputOptions, InputReplicationMode
from paceline.data.placing import per_replica, per_replica_steps

__all__ = [
    "ArrayBatches",
    "AutoShardPolicy",
    "DistributedDataset",
    "DistributedIterator",
    "InputOptions",
    "InputReplicationMode",
    "OptionalElement",
    "per_replica",
    "per_replica_steps",
]
