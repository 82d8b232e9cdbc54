"""The message path's part of a strategy: variables at a store, steps by workers."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any

import jax

from paceline.cluster.arguments import Arguments
from paceline.cluster.remote_value import RemoteValue, resolved
from paceline.cluster.serving import soon
from paceline.cluster.session import Session
from paceline.data.dataset import distribute_from_function
from paceline.monitor.staleness import Statistics
from paceline.program import context
from paceline.program.context import Frame
from paceline.program.function import Function
from paceline.program.handover import handover
from paceline.store.placing import RoundRobin
from paceline.store.servers import Servers
from paceline.strategies.at_hand import AtHand
from paceline.strategies.base import Strategy
from paceline.strategies.creation import Creation
from paceline.types import InputContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.cluster.base import Cluster, ClusterDriver
    from paceline.cluster.work import Work
    from paceline.monitor.report import Report
    from paceline.pace import Pace
    from paceline.store.placing import PlacementReport, Placing
    from paceline.store.rules import UpdateRule
    from paceline.store.step_update import Merge
    from paceline.types import ReduceOp


class MessageStrategy(Strategy):
    """Base of the strategies whose workers push updates to a store. Not made by users.

    Args:
        cluster: what the workers run on.
        pace: how far they may drift apart.
        update_rule: how stale pushes are applied.
        merge: how the gradients of pushes that a pace groups are combined: "mean" (weighted by
            examples) or "sum".
        placing: how variables are given to servers.

    Attributes:
        monitor: statistics of all pushes so far.
        at_hand: the batch that each worker has, for the statistics.
    """

    uses_messages = True

    def __init__(
        self,
        cluster: Cluster,
        pace: Pace,
        update_rule: UpdateRule,
        merge: Merge = "mean",
        placing: Placing | None = None,
    ) -> None:
        super().__init__((cluster.server_device(),))
        self._servers = Servers(cluster.servers, placing or RoundRobin())
        self.cluster = cluster
        self.monitor = _Monitor(self)
        self.at_hand = AtHand(self.monitor.record)
        self._pace = pace
        self.session = Session(
            pace,
            update_rule,
            self.at_hand.record,
            device=self.devices[0],
            merge=merge,
            lease_deadline=cluster.lease_deadline,
            taken_back=self.monitor.note_taken_back,
        )
        self.driver = cluster.open(self.session)
        # Idle threads know neither driver nor strategy, and this only where the driver is, so that
        # both can be dropped; a value that is still held may keep the driver longer.
        weakref.finalize(self, _stop, weakref.ref(self.driver)).atexit = False

    @property
    def pace(self) -> Pace:
        """How far workers may drift apart. Assigning another one changes it during a run."""
        return self._pace

    @pace.setter
    def pace(self, pace: Pace) -> None:
        self.driver.set_pace(pace)
        self._pace = pace

    @property
    def num_components(self) -> int:
        """An ON_READ variable has one copy per worker."""
        return self.cluster.workers

    def welcome(self, variable: Any) -> None:
        """Gives a variable that has joined the strategy to a server."""
        self._servers.add(variable)

    def note_access(self) -> None:
        """Notes when the program meets what workers change, for a trace."""
        if context.worker() is None:
            self.driver.access()

    def server_of(self, variable: Any) -> int:
        """The index of the server that holds `variable`."""
        return self._servers.of(variable)

    def placement_report(self) -> PlacementReport:
        """What every server holds: names and bytes, as dict or as text."""
        return self._servers.report()

    @contextlib.contextmanager
    def _creation(self) -> Iterator[None]:
        """Variables made in the block go to the store."""
        with contextlib.ExitStack() as stack:
            if context.worker() is None:
                stack.enter_context(jax.default_device(self.devices[0]))
            stack.enter_context(Creation(self).scope())
            yield

    def submit(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, **options: Any
    ) -> RemoteValue:
        """Has the next free worker call `fn`; returns at once what it will return.

        Args:
            fn, args, kwargs, options: see `hand_out`.

        Raises:
            Exception: the first error of earlier work, once.
        """
        return RemoteValue(self.driver, self.hand_out(fn, args, kwargs, **options))

    def hand_out(
        self,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
        *,
        name: str = "",
        examples: int = 0,
        is_one_push: bool = False,
        is_repeatable: bool = True,
        is_kept: bool = False,
        on_end: Callable[[Work], None] | None = None,
    ) -> Work:
        """Has the next free worker call `fn` under this strategy; returns at once.

        Args:
            fn: any callable.
            args, kwargs: nests, which may hold remote values; the worker waits for those.
            name, examples, is_one_push, is_repeatable, on_end: see `ClusterDriver.submit`.
            is_kept: see `Arguments`.

        Raises:
            Exception: the first error of earlier work, once.
        """
        arguments = Arguments(tuple(args), dict(kwargs or {}), is_kept=is_kept)

        def call(worker: Any) -> Any:
            with context.entered(Frame(self)):
                positional, named = arguments.on_worker(worker)
                self.at_hand.put(worker.index, (positional, named))
                worker.keeps_arguments = arguments.is_known and isinstance(fn, Function)
                try:
                    return fn(*positional, **named)
                finally:
                    self.at_hand.clear(worker.index)

        return self.driver.submit(
            call,
            name or getattr(fn, "__name__", type(fn).__name__),
            examples=examples,
            is_one_push=is_one_push,
            is_repeatable=is_repeatable,
            on_end=on_end,
        )

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> Any:
        """Reads what `dataset_fn(InputContext)` returns; on a worker, the context says which.

        See `Strategy.distribute_datasets_from_function`. The function is called when the dataset is
        first used. Given to `create_per_worker_dataset`, it is called on every worker instead.
        """

        def make(given: InputContext) -> Any:
            worker = context.worker()
            if worker is not None:
                count = self.cluster.workers
                given = InputContext(count, worker.index, given.num_replicas_in_sync)
            return dataset_fn(given)

        if context.worker() is not None:
            given = make if callable(dataset_fn) else dataset_fn
            return super().distribute_datasets_from_function(given, options)
        dataset = distribute_from_function(dataset_fn, self, options, is_lazy=True)
        # Its users have called it for themselves by then.
        dataset.remake = functools.partial(super().distribute_datasets_from_function, make, options)
        return dataset

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Any) -> Any:
        """Reduces values; one that is on its way is waited for (see `Strategy.reduce`)."""
        return super().reduce(reduce_op, resolved(value), axis)

    def gather(self, value: Any, axis: int) -> Any:
        """Gathers values; one that is on its way is waited for (see `Strategy.gather`)."""
        return super().gather(resolved(value), axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The tuple of results; one that is on its way is waited for."""
        return super().experimental_local_results(resolved(value))


class _Monitor(Statistics):
    """Statistics whose reports have a place in the order of a recorded run."""

    def __init__(self, strategy: MessageStrategy) -> None:
        super().__init__()
        self._strategy = weakref.ref(strategy)

    def report(self) -> Report:
        """What was recorded so far; `report.since(earlier)` is what came in between."""
        with handover:
            if (strategy := self._strategy()) is not None:
                strategy.note_access()
            return super().report()


def _stop(find_driver: Callable[[], ClusterDriver | None]) -> None:
    driver = find_driver()
    if driver is not None:
        soon(driver.stop)
