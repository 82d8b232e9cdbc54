"""What every cluster offers: a configuration, and a driver that runs work on workers."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import jax

from paceline.devices import resolve
from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from paceline.cluster.session import Session
    from paceline.cluster.work import Work
    from paceline.pace import Pace


class Cluster(abc.ABC):
    """What the workers run on. Holds settings only; its driver holds the run.

    Attributes:
        workers: number of workers.
        servers: number of servers that variables are divided over.
        lease_deadline: seconds after which work is taken back from a worker; None: never.
        record: path of a trace to write, for `Replay`; None: none.
    """

    workers: int
    servers: int
    lease_deadline: float | None = None
    record: str | os.PathLike[str] | None = None

    @abc.abstractmethod
    def open(self, session: Session) -> ClusterDriver:
        """Returns a driver for one strategy; workers start with the first work."""

    @abc.abstractmethod
    def server_device(self) -> Any:
        """The device that holds the variables."""


class OnOneDevice(Cluster):
    """A cluster whose workers compute in turn, all on one device."""

    def _place(self, device: Any) -> None:
        """Notes the device: a name, a `jax.Device`, or None for the first one of the process."""
        self._device = None if device is None else resolve([device])[0]

    @property
    def devices(self) -> tuple[Any, ...]:
        """The device of each worker: one for all."""
        return (self.server_device(),) * self.workers

    def server_device(self) -> Any:
        """The device that holds the variables."""
        return self._device or jax.local_devices()[0]


def check_counts(**counts: int) -> None:
    """Checks how many tasks of each kind a cluster has.

    Raises:
        InvalidArgument: less than one.
    """
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidArgument(f"A cluster has one or more {name}. Received: {name}={value!r}.")


class ClusterDriver(abc.ABC):
    """Runs work on workers. Everything here is called from threads that are no workers.

    Attributes:
        counts_bytes: whether a worker is to find out how many bytes its steps move.
        computes_ahead: whether code of other workers runs in turn while a step is computed.
    """

    counts_bytes = False
    computes_ahead = False

    @abc.abstractmethod
    def submit(
        self,
        call: Callable[[Any], Any],
        name: str,
        *,
        examples: int = 0,
        worker: int | None = None,
        is_repeatable: bool = True,
        is_one_push: bool = False,
        on_end: Callable[[Work], None] | None = None,
    ) -> Work:
        """Queues a call and returns at once; waits only while the queue is full.

        Args:
            call: called with the worker, on its thread.
            name: for messages.
            examples: how many examples it stands for.
            worker: the one worker that may make it; None: any.
            is_repeatable: whether it may be made again after a worker was lost or a push dropped.
            is_one_push: whether making one push is all its effect (see `Work`).
            on_end: called once when it has ended.

        Raises:
            Exception: the first error of earlier work, once.
            WaitTimeout: the queue stayed full.
        """

    @abc.abstractmethod
    def wait(self, work: Work, *, is_last: bool = True) -> Any:
        """Waits until `work` has ended and returns its result, or raises its error.

        Args:
            work: what `submit` returned.
            is_last: whether nobody has to wait for workers without work any more, because none
                comes before this has ended. A loop that goes on handing out work says False.

        Raises:
            WaitTimeout: nothing has happened anywhere for the driver's deadline.
        """

    @abc.abstractmethod
    def wait_until(self, is_met: Callable[[], bool], what: str) -> None:
        """Waits until something is so that work brings about.

        Args:
            is_met: whether it is so; called under the driver's lock.
            what: for the message of `WaitTimeout`.

        Raises:
            WaitTimeout: nothing has happened anywhere for the driver's deadline.
        """

    @abc.abstractmethod
    def access(self) -> None:
        """Called with the lock held, before the program reads or writes what workers do, too.

        Where a run is recorded or replayed, that has its place in the order of events.
        """

    def let_go_on(self, is_met: Callable[[], bool]) -> bool:
        """Where nothing happens by itself, makes things happen until something is so.

        Returns:
            False where workers go on by themselves, and whoever waits has to be told.
        """
        return False

    @abc.abstractmethod
    def join(self) -> None:
        """Waits until all work has ended and every push is applied.

        Raises:
            Exception: the first error of the work, once.
            WaitTimeout: nothing has happened anywhere for the driver's deadline.
        """

    @abc.abstractmethod
    def is_done(self) -> bool:
        """Whether all work has ended.

        Raises:
            Exception: the first error of the work, once.
        """

    @abc.abstractmethod
    def lose(self, worker: int, reason: str = "was lost") -> None:
        """Takes a worker away as if its machine had failed; another one takes its place."""

    @abc.abstractmethod
    def lose_server(self, server: int, reason: str = "was lost") -> None:
        """Calls everything off, as when the machine of a server has failed.

        From then on `submit`, `join` and `is_done` raise `Unavailable`.
        """

    @abc.abstractmethod
    def set_pace(self, pace: Pace) -> None:
        """Changes how far workers may drift apart; what was held is applied first."""

    @abc.abstractmethod
    def release(self) -> None:
        """Lets workers go when there is no work left; work that comes later gets new ones."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Cancels all work and ends the workers."""
