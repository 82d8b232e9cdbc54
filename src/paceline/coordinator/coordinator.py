"""`ClusterCoordinator`: functions are scheduled here and run on workers."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import jax

from paceline.cluster.remote_value import RemoteValue
from paceline.cluster.serving import soon
from paceline.coordinator.datasets import PerWorkerDataset
from paceline.coordinator.values import PerWorkerValues
from paceline.errors import ContextError, InvalidArgument, InvalidType
from paceline.program import context, nest
from paceline.program.function import Function
from paceline.program.scope import is_variable
from paceline.program.split_scope import worker_index
from paceline.strategies.parameter_server import ParameterServerStrategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.base import ClusterDriver

# A coordinator holds its strategy, so an id is not used twice while its entry is here.
_coordinators: weakref.WeakValueDictionary[int, ClusterCoordinator] = weakref.WeakValueDictionary()


class ClusterCoordinator:
    """Schedules functions on the workers of a `ParameterServerStrategy`.

    A strategy has one: `ClusterCoordinator(strategy)` returns the same object while it is in use.
    When it is dropped its threads end, as soon as what was scheduled is done.

    Args:
        strategy: the strategy.

    Raises:
        InvalidArgument: another kind of strategy.

    Semantics:
        tf.distribute.coordinator.ClusterCoordinator. A function is run at least once, by any
        worker, in any order. The first error of one calls off all the others and is raised once,
        by the next `schedule`, `join` or `done`; then the coordinator is as new. Called off does
        not mean without effect. Deviations: any callable can be scheduled; remote values may be
        arguments; what a function raises while it is traced is an error like any other.

    Example:
        ```python
        coordinator = ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
        for epoch in range(epochs):
            losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]
            coordinator.join()
            print(losses[-1].fetch())
        ```
    """

    _strategy: ParameterServerStrategy

    def __new__(cls, strategy: Any) -> ClusterCoordinator:
        """Returns the coordinator of `strategy`, which may exist already."""
        if not isinstance(strategy, ParameterServerStrategy):
            raise InvalidArgument(
                "A coordinator schedules on the workers of a ParameterServerStrategy. Received: "
                f"{strategy!r}, whose steps are made with strategy.run."
            )
        known = _coordinators.get(id(strategy))
        if known is not None:
            return known
        self = super().__new__(cls)
        self._strategy = strategy
        weakref.finalize(self, _let_go, weakref.ref(strategy.driver)).atexit = False
        return _coordinators.setdefault(id(strategy), self)

    def __init__(self, strategy: Any) -> None:
        del strategy  # noted by __new__

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The strategy."""
        return self._strategy

    def schedule(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> RemoteValue:
        """Has a worker call `fn` under the strategy; returns at once.

        It waits only while the queue is full, and where it raises.

        Args:
            fn: any callable. A `paceline.function` is traced once for all workers, and its effects
                on variables reach the servers as one push.
            args, kwargs: nests. A `PerWorkerValues`, such as `iter` of a per-worker dataset,
                becomes the worker's own value; a `RemoteValue` becomes its result, for which the
                worker waits. NumPy arrays are copied.

        Returns:
            The result to come.

        Raises:
            InvalidType: `fn` cannot be called, or `args` is no tuple or list.
            InvalidArgument: a per-worker dataset among the arguments, where its iterator is meant.
            ContextError: called by a function that runs on a worker.
            Exception: the first error of earlier functions, once; `fn` was not scheduled.
        """
        self._check_is_outside("schedule")
        if not callable(fn):
            raise InvalidType(f"What is scheduled is a function. Received: fn={fn!r}.")
        if not (args is None or isinstance(args, (tuple, list))):
            raise InvalidType(
                "The positional arguments of a scheduled function are a tuple or a list, as in "
                f"args=(iterator,). Received: args={args!r}."
            )
        for leaf in nest.flattened((args, kwargs))[0] if args or kwargs else ():
            if isinstance(leaf, PerWorkerDataset):
                raise InvalidArgument(
                    "A scheduled function takes batches from an iterator. Received: the dataset "
                    f"{leaf!r} as an argument. Pass iter(dataset), made once before the loop."
                )
        name = getattr(fn, "__name__", type(fn).__name__)
        strategy = self._strategy

        # A function that is compiled makes its variables while it is traced, under a scope.
        is_compiled = isinstance(fn, Function)

        def call(*own_args: Any, **own_kwargs: Any) -> Any:
            with contextlib.nullcontext() if is_compiled else strategy._creation():
                return _values(fn(*own_args, **own_kwargs))

        return strategy.submit(call, tuple(args or ()), kwargs, name=name)

    def join(self) -> None:
        """Waits until everything that was scheduled is done and every push is applied.

        Raises:
            ContextError: called by a function that runs on a worker.
            WaitTimeout: nothing has happened for the cluster's deadline.
            Exception: the first error of the functions, once.
        """
        self._check_is_outside("join")
        self._strategy.driver.join()

    def done(self) -> bool:
        """Returns whether everything that was scheduled is done; raises like `join`."""
        self._check_is_outside("done")
        return self._strategy.driver.is_done()

    def fetch(self, val: Any) -> Any:
        """Waits for the remote values in a nest.

        Args:
            val: a nest.

        Returns:
            The nest with NumPy values in the place of remote ones; everything else as it is.

        Raises:
            Cancelled: one was called off.
            Exception: the error of a function.
        """
        leaves, tree = nest.flattened(val)
        fetched = [
            nest.Whole(leaf.fetch()) if isinstance(leaf, RemoteValue) else leaf for leaf in leaves
        ]
        return nest.closed(jax.tree.unflatten(tree, fetched))

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Has every worker read a dataset of its own.

        Args:
            dataset_fn: a dataset, which every worker reads in full (an `Iterator` can't be: it can
                be read once); or a function that returns one, called on each worker when it first
                needs it. A function with a parameter gets an `InputContext` that says which worker
                of how many it is, to take its part: `data[context.input_pipeline_id ::
                context.num_input_pipelines]`.

        Returns:
            The dataset; `iter()` of it is passed to `schedule`.

        Raises:
            InvalidType: neither a dataset nor a function.
            InvalidArgument: an iterator, or arrays that are not cut into batches.

        Semantics:
            tf.distribute's, where the function gets no context. A dataset of
            `distribute_datasets_from_function` is made anew on every worker.
        """
        return PerWorkerDataset(dataset_fn, self)

    def create_per_worker_resource(self, fn: Callable[[], Any]) -> PerWorkerValues:
        """Has every worker make a value of its own, when it first uses it.

        Args:
            fn: called on the worker.

        Returns:
            What is passed to `schedule`, where it becomes the worker's value.

        Raises:
            InvalidType: `fn` cannot be called.
        """
        if not callable(fn):
            raise InvalidType(f"What makes a per-worker value is a function. Received: fn={fn!r}.")
        name = f"the value of {getattr(fn, '__qualname__', repr(fn))}"
        return PerWorkerValues(lambda worker: fn(), name)

    def _check_is_outside(self, what: str) -> None:
        if context.worker() is not None:
            raise ContextError(
                f"{what} belongs to the program that coordinates. Received: {what} in a function "
                "that runs on a worker. Return from the function, and go on from there."
            )

    def __repr__(self) -> str:
        return f"<paceline ClusterCoordinator of {self._strategy!r}>"


def experimental_get_current_worker_index() -> Any:
    """Returns the index of the worker that runs the code, an integer scalar.

    In a `paceline.function` it is traced, and each worker gets its own.

    Raises:
        ContextError: no worker runs the code.
    """
    index = worker_index()
    if index is None:
        raise ContextError(
            "Only workers have an index. Received: a call outside of a scheduled function. Ask in "
            "a function given to ClusterCoordinator.schedule, or in a per-worker dataset function."
        )
    return index


def _values(result: Any) -> Any:
    """A function's result with the values that the variables in it have now."""
    if result is None or isinstance(result, jax.Array):
        return result
    return jax.tree.map(
        lambda leaf: leaf.value if is_variable(leaf) else leaf, result, is_leaf=is_variable
    )


def _let_go(find_driver: Callable[[], ClusterDriver | None]) -> None:
    driver = find_driver()
    if driver is not None:
        soon(driver.release)
