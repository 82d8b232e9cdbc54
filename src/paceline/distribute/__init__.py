"""`tf.distribute`'s names."""

from __future__ import annotations

from paceline.data.options import AutoShardPolicy, InputOptions, InputReplicationMode
from paceline.distribute import cluster_resolver, coordinator, experimental
from paceline.strategies.base import Strategy, StrategyScope
from paceline.strategies.default import (
    experimental_set_strategy,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from paceline.strategies.extended import StrategyExtended
from paceline.strategies.hints import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    RunOptions,
)
from paceline.strategies.mirrored import MirroredStrategy
from paceline.strategies.one_device import OneDeviceStrategy
from paceline.strategies.parameter_server import ParameterServerStrategy
from paceline.strategies.replica_context import ReplicaContext, get_replica_context
from paceline.types import DistributedValues, InputContext, Mirrored, PerReplica, ReduceOp

__all__ = [
    "AutoShardPolicy",
    "CrossDeviceOps",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerReplica",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "StrategyScope",
    "cluster_resolver",
    "coordinator",
    "experimental",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
