"""`tf.distribute`'s names."""

from __future__ import annotations

from paceline.data.options import AutoShardPolicy, InputOptions, InputReplicationMode
from paceline.strategies.base import Strategy, StrategyScope
from paceline.strategies.default import (
    experimental_set_strategy,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from paceline.strategies.extended import StrategyExtended
from paceline.strategies.mirrored import MirroredStrategy
from paceline.strategies.one_device import OneDeviceStrategy
from paceline.strategies.replica_context import ReplicaContext, get_replica_context
from paceline.types import DistributedValues, InputContext, ReduceOp

__all__ = [
    "AutoShardPolicy",
    "DistributedValues",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "MirroredStrategy",
    "OneDeviceStrategy",
    "ReduceOp",
    "ReplicaContext",
    "Strategy",
    "StrategyExtended",
    "StrategyScope",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
