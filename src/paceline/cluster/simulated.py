"""`Simulated`: workers in virtual time, in one process."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from paceline.cluster.base import OnOneDevice, check_counts
from paceline.cluster.simulated_driver import SimulatedDriver
from paceline.errors import InvalidArgument
from paceline.virtual.faults import FaultPlan
from paceline.virtual.latency import Latency, latency_of
from paceline.virtual.network import Network, network_of

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from paceline.cluster.session import Session
    from paceline.virtual.faults import Loss, Preemptions


class Simulated(OnOneDevice):
    """Hundreds of workers with the real gradients of the real model, while time is virtual.

    What workers compute is computed on one device, as fast as it can; how long it takes, how long
    arrays travel and what fails is up to models with seeds. So a run shows what the same run
    on that many machines would do, by the same store, pace, update rule and ledger, and the same
    seed gives the same events and the same bits. Nothing happens while nobody waits: virtual time
    passes in `join`, `fetch`, `done`, `fit` and wherever else the coordinator waits.

    Args:
        workers: number of workers.
        servers: number of servers that variables are divided over.
        compute: how long a step takes from the pulled variables to the push: seconds, or a model of
            `paceline.virtual`. An update that is not compiled, and a call that makes no step, take
            as long.
        network: how long a pull and a push travel: a `paceline.virtual.Network`, or a latency in
            seconds. A table of which a step reads rows costs what the rows do.
        faults: `paceline.virtual.Loss`, `Preemptions`, or a list of them.
        seed: of everything that is drawn.
        device: where all is computed; default: the first device of the process.
        deadline: real seconds that a worker's code may run without a pull, a push or an end.
        lease_deadline: virtual seconds after which work is taken back from a worker; None: never.
        record: path of a trace to write, for `Replay`. A file that exists is replaced.

    Raises:
        InvalidArgument: less than one worker or server, no model of time or faults, or a task that
            the cluster does not have.

    Semantics:
        No counterpart in tf.distribute.
    """

    def __init__(
        self,
        workers: int = 2,
        servers: int = 1,
        *,
        compute: Latency | float = 1.0,
        network: Network | float | None = None,
        faults: FaultPlan | Loss | Preemptions | Sequence[Loss | Preemptions] = (),
        seed: int = 0,
        device: Any = None,
        deadline: float = 600.0,
        lease_deadline: float | None = None,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        check_counts(workers=workers, servers=servers)
        lease = math.inf if lease_deadline is None else lease_deadline
        for name, value in (("deadline", deadline), ("lease_deadline", lease)):
            if not value > 0:
                raise InvalidArgument(
                    f"`{name}` is a positive number of seconds. Received: {name}={value!r}."
                )
        self.workers = workers
        self.servers = servers
        self.compute = latency_of(compute, "compute")
        self.network = network_of(network)
        self.faults = faults if isinstance(faults, FaultPlan) else FaultPlan(faults)
        self.faults.check_tasks(workers, servers)
        self.seed = seed
        self.deadline = deadline
        self.lease_deadline = lease_deadline
        self.record = record
        self._place(device)

    def open(self, session: Session) -> SimulatedDriver:
        """Returns a driver, whose clock stands at 0."""
        return SimulatedDriver(self, session)

    def __repr__(self) -> str:
        return (
            f"Simulated(workers={self.workers}, servers={self.servers}, compute={self.compute!r}, "
            f"seed={self.seed})"
        )
