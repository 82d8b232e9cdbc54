"""`Local`: workers are threads of this process; the default, with nothing to start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax

from paceline.cluster.base import Cluster, check_counts
from paceline.cluster.local_driver import LocalDriver
from paceline.devices import resolve
from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from paceline.cluster.session import Session


class Local(Cluster):
    """Workers as threads of this process, each on its own device where there are several.

    Args:
        workers: number of workers.
        servers: number of servers that variables are divided over. In one process they share its
            memory; their number decides placement and reports.
        devices: names such as "cpu:0" or `jax.Device`s, one per worker, used in turn if fewer.
            Default: all devices of the process. The first one holds the variables.
        deadline: seconds that a wait lasts in which no worker makes any progress, before it raises.
        grace: seconds that a worker has to react when its work is called off. One that does not is
            replaced, and what it still does is ignored.
        lease_deadline: seconds that a worker may have a lease (a batch, a scheduled function), from
            taking it to finishing it, compiling and waiting for the pace included. After that it is
            taken back and given to another worker, and the report counts it for the slow one, as
            soon as the program waits for workers. None: never.
        record: path of a trace to write while the strategy trains, which `Replay` runs again to
            the same bits. A file that exists is replaced.

    Raises:
        InvalidArgument: less than one worker or server; no positive deadline; an unknown device.

    Semantics:
        tf.distribute's in-process cluster of tests, as a cluster to train on. A Python thread
        cannot be ended from outside: work that was called off ends where it next touches a
        variable or runs a step.
    """

    def __init__(
        self,
        workers: int = 2,
        servers: int = 1,
        *,
        devices: Sequence[Any] | None = None,
        deadline: float = 600.0,
        grace: float = 5.0,
        lease_deadline: float | None = None,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        check_counts(workers=workers, servers=servers)
        lease = math.inf if lease_deadline is None else lease_deadline
        seconds = (("deadline", deadline), ("grace", grace), ("lease_deadline", lease))
        for name, value in seconds:
            if not value > 0:
                raise InvalidArgument(
                    f"`{name}` is a positive number of seconds. Received: {name}={value!r}."
                )
        self.workers = workers
        self.servers = servers
        self.deadline = deadline
        self.grace = grace
        self.lease_deadline = lease_deadline
        self.record = record
        self._devices = None if devices is None else resolve(devices)
        self._server_device = None

    @classmethod
    def of_devices(cls, compute: Sequence[Any] | None, parameter: Any) -> Local:
        """Returns a cluster with a worker on each compute device.

        Args:
            compute: the workers' devices; None: all devices of the process, at least two workers.
            parameter: the device that holds the variables; None: the first of all.
        """
        found = None if compute is None else resolve(compute)
        workers = max(2, len(jax.local_devices())) if found is None else len(found)
        cluster = cls(workers)
        cluster._devices = found
        cluster._server_device = None if parameter is None else resolve([parameter])[0]
        return cluster

    @property
    def devices(self) -> tuple[Any, ...]:
        """The device of each worker."""
        given = self._devices or tuple(jax.local_devices())
        return tuple(given[i % len(given)] for i in range(self.workers))

    def server_device(self) -> Any:
        """The device that holds the variables."""
        return self._server_device or (self._devices or tuple(jax.local_devices()))[0]

    def open(self, session: Session) -> LocalDriver:
        """Returns a driver; its threads start with the first work."""
        return LocalDriver(self, session)

    def __repr__(self) -> str:
        return f"Local(workers={self.workers}, servers={self.servers})"
