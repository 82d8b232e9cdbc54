"""Datasets that every worker reads by itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from paceline.coordinator.values import PerWorkerValues
from paceline.data.arrays import ArrayBatches
from paceline.data.dataset import DistributedDataset
from paceline.data.per_pipeline import as_element
from paceline.data.sources import Source
from paceline.errors import ContextError, InvalidArgument, InvalidType, Unsupported
from paceline.program import context
from paceline.program.context import Frame
from paceline.program.frozen import frozen
from paceline.program.function import Function, is_tracing
from paceline.program.split_scope import FedIterator, active_split
from paceline.types import InputContext

if TYPE_CHECKING:
    from collections.abc import Callable


class PerWorkerDataset:
    """A dataset that is made and read on every worker. Made by `create_per_worker_dataset`.

    `iter()` gives a `PerWorkerIterator` to pass to `schedule`.

    Args:
        dataset: the dataset, or a function that returns one.
        coordinator: whose workers read it.

    Raises:
        InvalidArgument: a generator or iterator, which only one worker could read.
        InvalidType: neither a dataset nor a function.
    """

    def __init__(self, dataset: Any, coordinator: Any) -> None:
        self._coordinator = coordinator  # whose threads remain while this is in use
        strategy = coordinator.strategy
        make, name = _maker(dataset, strategy)
        self._datasets = PerWorkerValues(make, name)

    def __iter__(self) -> PerWorkerIterator:
        """Returns new iterators, one per worker, each from the beginning.

        Raises:
            ContextError: called while a `paceline.function` is traced.
        """
        if is_tracing():
            raise ContextError(
                "Iterators are made outside of functions that are traced, which would keep one for "
                "all calls. Received: iter() of a per-worker dataset inside a paceline.function. "
                "Pass iter(dataset) to schedule."
            )
        return PerWorkerIterator(self._datasets, self._coordinator)

    def __repr__(self) -> str:
        return f"<paceline PerWorkerDataset of {self._datasets._name}>"


class PerWorkerIterator(PerWorkerValues):
    """An iterator for every worker over a dataset of its own.

    Pass it to `schedule`: the function gets its worker's iterator and calls `next` on that, also
    inside a `paceline.function`. When a worker is replaced, its iterator starts over.

    Args:
        datasets: the workers' datasets.
        coordinator: whose workers read them.
    """

    def __init__(self, datasets: PerWorkerValues, coordinator: Any) -> None:
        def make(worker: Any) -> WorkerIterator:
            dataset = datasets.on_worker(worker)
            if isinstance(dataset, Iterator):  # read once: the function makes the next one
                datasets.forget(worker)
            return WorkerIterator(dataset, coordinator.strategy)

        super().__init__(make, f"an iterator of {datasets._name}")

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> NoReturn:
        """Always raises: only workers have batches.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(
            "The batches of a per-worker dataset are on the workers. Received: next() of "
            f"{self!r}. Pass it as an argument, coordinator.schedule(step, args=(iterator,)), and "
            "call next(iterator) inside of step."
        )

    get_next = __next__


class WorkerIterator(FedIterator):
    """One worker's iterator over its dataset.

    Args:
        dataset: what it reads.
        strategy: the strategy whose worker it is.
    """

    def __init__(self, dataset: Any, strategy: Any) -> None:
        is_distributed = isinstance(dataset, DistributedDataset)
        self._batches = iter(dataset) if is_distributed else Source(dataset).batches()
        self._is_kept = is_distributed or isinstance(dataset, ArrayBatches)
        self._frame = Frame(strategy)

    def __next__(self) -> Any:
        """The next batch (see `FedIterator`)."""
        batch = super().__next__()
        worker = context.worker()
        if worker is not None and active_split() is None:
            self._frame.strategy.at_hand.put(worker.index, batch)
        return batch

    def take(self) -> Any:
        """Returns the next batch, of arrays that nobody else writes to."""
        return self.lend() if self._is_kept else jax.tree.map(frozen, self.lend())

    def lend(self) -> Any:
        """Returns the next batch; a loader may use its arrays again for the one after it."""
        with context.entered(self._frame):  # also where `run` asks: it is the worker's
            batch = next(self._batches)
        return batch if self._is_kept else jax.tree.map(as_element, batch)


def _maker(dataset: Any, strategy: Any) -> tuple[Callable[[Any], Any], str]:
    """What makes a worker's dataset, and how messages call it."""
    is_function = callable(dataset) and not hasattr(dataset, "__iter__")
    if is_function:
        function = dataset.python_function if isinstance(dataset, Function) else dataset
        takes_context = _takes_context(function)
        name = f"the dataset of {getattr(function, '__qualname__', repr(function))}"

        def make(worker: Any) -> Any:
            if not takes_context:
                return _readable(function())
            num_replicas = strategy.num_replicas_in_sync
            count = strategy.cluster.workers
            return _readable(function(InputContext(count, worker.index, num_replicas)))

        return make, name
    if isinstance(dataset, Iterator):
        raise InvalidArgument(
            "Every worker reads a per-worker dataset by itself, and an iterator can be read once. "
            f"Received: {dataset!r}. Pass a function that returns a new one."
        )
    _readable(dataset)
    remake = dataset.remake if isinstance(dataset, DistributedDataset) else None
    name = f"the dataset {type(dataset).__name__}"
    return (lambda worker: dataset if remake is None else remake()), name


def _readable(dataset: Any) -> Any:
    """`dataset`, if it is one.

    Raises:
        InvalidType: it is not.
        InvalidArgument: it is arrays that are not cut into batches.
    """
    if dataset is None:
        raise InvalidType("A dataset function returns a dataset. Received: None.")
    if not isinstance(dataset, DistributedDataset):
        Source(dataset)
    return dataset


def _takes_context(function: Callable[..., Any]) -> bool:
    """Whether a dataset function has to be called with an `InputContext`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables of C do not say
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)
