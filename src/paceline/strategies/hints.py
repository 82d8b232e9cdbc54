"""Hints that tf.distribute programs pass and that have nothing to choose here.

XLA chooses the collective algorithm and its packing: these objects are accepted and change nothing.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from paceline.errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class CrossDeviceOps:
    """The choice of a collective algorithm (tf.distribute.CrossDeviceOps). Changes nothing."""


@dataclasses.dataclass(frozen=True)
class ReductionToOneDevice(CrossDeviceOps):
    """tf.distribute.ReductionToOneDevice. Changes nothing: XLA chooses the algorithm."""

    reduce_to_device: Any = None
    accumulation_fn: Any = None


@dataclasses.dataclass(frozen=True)
class NcclAllReduce(CrossDeviceOps):
    """tf.distribute.NcclAllReduce. Changes nothing: XLA chooses the algorithm."""

    num_packs: int = 1


@dataclasses.dataclass(frozen=True)
class HierarchicalCopyAllReduce(CrossDeviceOps):
    """tf.distribute.HierarchicalCopyAllReduce. Changes nothing: XLA chooses the algorithm."""

    num_packs: int = 1


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """tf.distribute.RunOptions: switches of TPUs. Changes nothing."""

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None


class CommunicationImplementation(enum.Enum):
    """tf.distribute.experimental.CommunicationImplementation. Changes nothing."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """tf.distribute.experimental.CommunicationOptions. Changes nothing.

    Raises:
        InvalidArgument: a negative `bytes_per_pack`.
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation = CommunicationImplementation.AUTO

    def __post_init__(self) -> None:
        if self.bytes_per_pack < 0:
            raise InvalidArgument(
                "The size of a pack cannot be negative. Received: "
                f"bytes_per_pack={self.bytes_per_pack}. Use 0 for the default."
            )
