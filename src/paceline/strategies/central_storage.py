"""CentralStorageStrategy: variables on one device, computation on others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.cluster.local import Local
from paceline.pace import Asynchronous
from paceline.program import context
from paceline.program.function import Function, StepOfWorkers, is_tracing
from paceline.store.rules import StalenessScaled
from paceline.strategies.messages import MessageStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.pace import Pace
    from paceline.store.rules import UpdateRule
    from paceline.strategies import running


class CentralStorageStrategy(MessageStrategy):
    """Variables on one device; the compute devices fetch them and push without waiting.

    Args:
        compute_devices: names or `jax.Device`s, one worker each. Default: two workers on the
            devices of the process, or one on each where there are more.
        parameter_device: the device that holds the variables. Default: the first one.
        pace: how far the workers may drift apart.
        update_rule: how stale pushes are applied.

    Raises:
        InvalidArgument: an unknown device.

    Semantics:
        tf.distribute.experimental.CentralStorageStrategy, which is in lockstep; here that is
        `pace=Synchronous()`. Free-running, a step is one worker's: `num_replicas_in_sync` is 1, a
        `run` hands a whole batch to the next free worker and returns at once, and its result is
        waited for where it is used. Reading a variable across workers waits for the steps that
        were handed out before.
    """

    def __init__(
        self,
        compute_devices: Sequence[Any] | None = None,
        parameter_device: Any = None,
        *,
        pace: Pace | None = None,
        update_rule: UpdateRule | None = None,
    ) -> None:
        cluster = Local.of_devices(compute_devices, parameter_device)
        super().__init__(
            cluster, pace or Asynchronous(), update_rule or StalenessScaled(), merge="mean"
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
