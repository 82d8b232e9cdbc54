"""`tf.distribute`'s names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline.data.options import AutoShardPolicy, InputOptions, InputReplicationMode
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
from paceline.strategies.replica_context import ReplicaContext, get_replica_context
from paceline.types import DistributedValues, InputContext, Mirrored, PerReplica, ReduceOp

if TYPE_CHECKING:
    from paceline.cluster.server import Server
    from paceline.distribute import cluster_resolver, coordinator, experimental
    from paceline.strategies.parameter_server import ParameterServerStrategy

# Loaded when they are first used, to keep the import fast.
_LAZY = ("cluster_resolver", "coordinator", "experimental")
_LAZY_CLASSES = {
    "ParameterServerStrategy": "paceline.strategies.parameter_server",
    "Server": "paceline.cluster.server",
}

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
    "Server",
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


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"paceline.distribute.{name}")
    if name in _LAZY_CLASSES:
        return getattr(importlib.import_module(_LAZY_CLASSES[name]), name)
    raise AttributeError(f"module 'paceline.distribute' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
