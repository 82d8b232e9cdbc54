"""CentralStorageStrategy: variables on one device, computation on others.

Two executions of one placement: free-running workers that push (`FreeRunningCentralStorage`), and
replicas in lockstep, which compile to one program (`LockstepCentralStorage`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from paceline.cluster.local import Local
from paceline.devices import resolve
from paceline.errors import Unsupported
from paceline.pace import Asynchronous, Synchronous
from paceline.program import context
from paceline.program.function import Function, StepOfWorkers, is_tracing
from paceline.program.scope import is_traced
from paceline.store.rules import StalenessScaled
from paceline.strategies.base import Strategy
from paceline.strategies.messages import MessageStrategy
from paceline.strategies.mirrored import MirroredStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.cluster.base import Cluster
    from paceline.monitor.staleness import Statistics
    from paceline.pace import Pace
    from paceline.store.placing import PlacementReport
    from paceline.store.rules import UpdateRule
    from paceline.strategies import running


class CentralStorageStrategy(Strategy):
    """Variables on one device; the compute devices fetch them and push without waiting.

    Args:
        compute_devices: names or `jax.Device`s, one worker or replica each. Default: all devices
            of the process, and at least two workers.
        parameter_device: the device that holds the variables. Default: the first one.
        pace: how far the workers may drift apart. Default: `Asynchronous()`.
        update_rule: how stale pushes are applied. Default: steps divided by their staleness.

    Raises:
        InvalidArgument: an unknown device.
        Unsupported: `pace` of a strategy in lockstep is assigned.

    Semantics:
        tf.distribute.experimental.CentralStorageStrategy, which is in lockstep: here that is
        `pace=Synchronous()`, and ON_READ variables, which TensorFlow ignores under this strategy,
        are per replica. At any other pace a step is one worker's: `num_replicas_in_sync` is 1, a
        `run` hands a whole batch to the next free worker and returns at once, and its result is
        waited for where it is used. Reading a variable across workers waits for the steps that
        were handed out before.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> CentralStorageStrategy:
        """Chooses the execution that the pace asks for."""
        is_lockstep = kwargs.get("pace") == Synchronous()
        chosen: Any = LockstepCentralStorage if is_lockstep else FreeRunningCentralStorage
        return super().__new__(chosen)

    if TYPE_CHECKING:
        # In lockstep there is no cluster, no monitor and no placement report: no worker pushes.
        cluster: Cluster
        monitor: Statistics

        def __init__(
            self,
            compute_devices: Sequence[Any] | None = None,
            parameter_device: Any = None,
            *,
            pace: Pace | None = None,
            update_rule: UpdateRule | None = None,
        ) -> None: ...

        @property
        def pace(self) -> Pace: ...
        @pace.setter
        def pace(self, pace: Pace) -> None: ...
        def placement_report(self) -> PlacementReport: ...


class LockstepCentralStorage(CentralStorageStrategy, MirroredStrategy):
    """Replicas in lockstep that get the variables from one device. Made by its base class."""

    keeps_one_copy = True

    def __init__(
        self,
        compute_devices: Sequence[Any] | None = None,
        parameter_device: Any = None,
        *,
        pace: Pace | None = None,
        update_rule: UpdateRule | None = None,
    ) -> None:
        del pace, update_rule  # lockstep knows no stale push
        MirroredStrategy.__init__(self, compute_devices)
        is_given = parameter_device is not None
        self._parameter_device = resolve([parameter_device])[0] if is_given else self.devices[0]

    @property
    def pace(self) -> Pace:
        """`Synchronous()`: all replicas make each step together."""
        return Synchronous()

    @pace.setter
    def pace(self, pace: Pace) -> None:
        raise Unsupported(
            "The pace of replicas in lockstep is fixed: their step is compiled to one program for "
            f"all. Received: pace={pace!r} assigned to {self!r}. Make a new strategy: "
            "CentralStorageStrategy(pace=...); one made without pace=Synchronous() can change it."
        )

    def store(self, value: Any) -> Any:
        """Puts what a variable holds on the parameter device."""
        if is_traced(value):
            return value
        for shard in getattr(value, "addressable_shards", ()):
            if value.is_fully_replicated and shard.device == self._parameter_device:
                return shard.data
        return jax.device_put(value, self._parameter_device, may_alias=False)

    @property
    def parameter_devices(self) -> tuple[Any, ...]:
        """The one device that holds variables."""
        return (self._parameter_device,)

    def join(self, parts: Sequence[Any]) -> Any:
        """Takes one of equal per-replica arrays to the parameter device."""
        return self.store(parts[0])

    def __repr__(self) -> str:
        return f"CentralStorageStrategy({[str(d) for d in self.devices]}, pace=Synchronous())"


class FreeRunningCentralStorage(CentralStorageStrategy, MessageStrategy):
    """Workers that fetch the variables from one device and push. Made by its base class."""

    def __init__(
        self,
        compute_devices: Sequence[Any] | None = None,
        parameter_device: Any = None,
        *,
        pace: Pace | None = None,
        update_rule: UpdateRule | None = None,
    ) -> None:
        cluster = Local.of_devices(compute_devices, parameter_device)
        MessageStrategy.__init__(
            self, cluster, pace or Asynchronous(), update_rule or StalenessScaled()
        )
        self._has_open_runs = False

    def _run(
        self, fn: Callable[..., Any], args: Any, kwargs: Any, loss_rule: running.LossRule
    ) -> Any:
        if context.worker() is not None:
            return super()._run(fn, args, kwargs, loss_rule)
        if is_tracing():
            raise StepOfWorkers(self)
        self._check_may_enter("strategy.run")
        self._has_open_runs = True
        return self.submit(
            super()._run, (fn, args, kwargs, loss_rule), name=_name_of(fn), is_repeatable=False
        )

    def run_step(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Hands a call of a `paceline.function` that uses `run` to the next free worker."""
        self._has_open_runs = True
        return self.submit(function, args, kwargs, name=_name_of(function), is_repeatable=False)

    def settle(self) -> None:
        """Waits for the steps that were handed out: what is read now comes after them."""
        if self._has_open_runs and context.worker() is None:
            self._has_open_runs = False
            self.driver.join()

    def __repr__(self) -> str:
        return f"CentralStorageStrategy({self.cluster!r}, pace={self.pace!r})"


def _name_of(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
