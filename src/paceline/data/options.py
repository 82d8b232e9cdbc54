"""Input options in `tf.distribute`'s spelling."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from paceline.errors import InvalidArgument, InvalidType


class InputReplicationMode(enum.Enum):
    """Where `dataset_fn` is called (tf.distribute.InputReplicationMode)."""

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class AutoShardPolicy(enum.IntEnum):
    """How workers share one dataset (tf.data.experimental.AutoShardPolicy).

    Strategies of one host have one worker, which reads everything under every policy.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """How batches reach the replicas (tf.distribute.InputOptions).

    Args:
        experimental_fetch_to_device: accepted; batches always go to the replicas' devices.
        experimental_replication_mode: PER_REPLICA makes `distribute_datasets_from_function` call
            its function once per replica.
        experimental_place_dataset_on_device: accepted; datasets run on the host.
        experimental_per_replica_buffer_size: how many batches are placed ahead of the one in
            use. 0, which tf.distribute lacks, reads no batch before it is asked for.

    Raises:
        InvalidArgument: a negative buffer size.
        InvalidType: a buffer size that is no integer, a mode that is no `InputReplicationMode`.
    """

    experimental_fetch_to_device: bool | None = None
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1

    def __post_init__(self) -> None:
        size, mode = self.experimental_per_replica_buffer_size, self.experimental_replication_mode
        if not isinstance(size, int) or isinstance(size, bool):
            raise InvalidType(
                "The buffer size is a whole number of batches. Received: "
                f"experimental_per_replica_buffer_size={size!r}."
            )
        if size < 0:
            raise InvalidArgument(
                "The buffer size counts the batches placed ahead and cannot be negative. Received: "
                f"experimental_per_replica_buffer_size={size}. Pass 0 to read nothing ahead."
            )
        if not isinstance(mode, InputReplicationMode):
            raise InvalidType(
                "The replication mode is an InputReplicationMode. Received: "
                f"experimental_replication_mode={mode!r}. Pass InputReplicationMode.PER_WORKER or "
                "InputReplicationMode.PER_REPLICA."
            )

    @classmethod
    def of(cls, options: Any) -> InputOptions:
        """Returns `options`, or the defaults for None.

        Raises:
            InvalidType: neither `InputOptions` nor None.
        """
        if options is None:
            return cls()
        if not isinstance(options, cls):
            raise InvalidType(
                "The options of a distributed dataset are paceline.distribute.InputOptions. "
                f"Received: {options!r} of type {type(options).__name__}."
            )
        return options
