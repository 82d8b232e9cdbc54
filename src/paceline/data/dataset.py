"""Distributed datasets: global batches, or batches per replica, on the replicas' devices."""

from __future__ import annotations

import collections
import functools
import weakref
from typing import TYPE_CHECKING, Any

import jax

from paceline.data.once import Once
from paceline.data.options import InputOptions, InputReplicationMode
from paceline.data.per_pipeline import as_element, grouped, place_group
from paceline.data.placing import per_replica
from paceline.data.sources import INFINITE, UNKNOWN, Source
from paceline.data.specs import replica_spec
from paceline.data.splitting import split_sizes
from paceline.errors import EndOfData, InvalidArgument, InvalidType, TraceError, Unsupported
from paceline.program import context
from paceline.program.keras_state import active_scope
from paceline.program.scope import TraceScope
from paceline.types import InputContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What tf.data datasets, Grain datasets and PyTorch loaders would be asked for.
_TRANSFORMATIONS = frozenset(
    """
    apply batch bucket_by_sequence_length cache concatenate enumerate filter flat_map
    group_by_window interleave map mp_prefetch padded_batch prefetch ragged_batch rebatch
    repeat rejection_resample scan seed shard shuffle skip slice snapshot sparse_batch take
    take_while to_iter_dataset unbatch unique window with_options zip
    """.split()  # noqa: SIM905  (a list of 33 strings reads worse)
)


class Cardinality(int):
    """A number of batches that can also be called, as both spellings exist in tf.distribute."""

    def __call__(self) -> int:
        """Returns the number."""
        return int(self)


class DistributedDataset:
    """An iterable of per-replica batches (tf.distribute.DistributedDataset). Made by strategies.

    Every `iter()` starts anew where the dataset underneath allows it. It cannot be transformed any
    more. Iterated over inside a `paceline.function`, the loop is unrolled while tracing and the
    batches become part of the program.

    Args:
        read: returns a new iterator over placed elements.
        source: gives what shows how the elements look.
        num_steps: returns how many elements one pass has, or `INFINITE` or `UNKNOWN`.
        strategy: the strategy it is distributed over.
        options: the input options.

    Attributes:
        remake: makes the dataset again for another reader; None where `iter()` is enough.
    """

    remake: Callable[[], Any] | None = None

    def __init__(
        self,
        read: Callable[[], Iterator[Any]],
        source: Callable[[], Source],
        num_steps: Callable[[], int],
        strategy: Any,
        options: InputOptions,
    ) -> None:
        self._read = read
        self._source = source
        self._num_steps = num_steps
        self._strategy = strategy
        self._options = options
        self._spec: Any = None

    def __iter__(self) -> DistributedIterator:
        return DistributedIterator(self._read(), self)

    def __len__(self) -> int:
        """The number of elements of one pass, where it is known."""
        count = self._num_steps()
        if count < 0:
            what = "has no end" if count == INFINITE else "does not know its length"
            raise TypeError(f"A dataset that {what} has no len(). Received: {self!r}.")
        return count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._strategy!r})"

    @property
    def cardinality(self) -> Cardinality:
        """The number of elements of one pass; -1 without end, -2 if it is not known."""
        return Cardinality(self._num_steps())

    @property
    def element_spec(self) -> Any:
        """The nest of `PerReplicaSpec`, or of `ArraySpec` with one replica; batch dims are None.

        Raises:
            InvalidArgument: there is no batch to look at.
        """
        if self._spec is None:
            sample = self._source().sample()
            if sample is None:
                raise InvalidArgument(
                    "The element spec is that of the first batch. Received: an empty dataset."
                )
            count = self._strategy.num_replicas_in_sync
            self._spec = jax.tree.map(lambda leaf: replica_spec(as_element(leaf), count), sample)
        return self._spec

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Returns the last state of `state = reduce_func(state, element)` over all elements."""
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state

    def __getattr__(self, name: str) -> Any:
        if name in _TRANSFORMATIONS:
            raise AttributeError(
                f"A distributed dataset cannot be transformed. Received: a call of .{name}. "
                "Transform the dataset before distributing it: "
                f"strategy.experimental_distribute_dataset(dataset.{name}(...))."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class OptionalElement:
    """An element, or the end of the data (tf.experimental.Optional)."""

    def __init__(self, *value: Any) -> None:
        self._value = value

    def has_value(self) -> bool:
        """Whether there is an element."""
        return bool(self._value)

    def get_value(self) -> Any:
        """Returns the element.

        Raises:
            InvalidArgument: there is none.
        """
        if not self._value:
            raise InvalidArgument(
                "The end of the data has no value. Received: get_value() of an empty optional. "
                "Ask has_value() first."
            )
        return self._value[0]


# A kept StopIteration would hold its frame, and with it the last batch, in a cycle.
_END = Exception("the end of the dataset")


class DistributedIterator:
    """Yields per-replica batches (tf.distribute.DistributedIterator).

    Elements are read and placed ahead, as many as `experimental_per_replica_buffer_size` says; an
    error of the dataset is raised when its turn comes.
    """

    def __init__(self, elements: Iterator[Any], dataset: DistributedDataset) -> None:
        self._elements = elements
        self._dataset = dataset
        self._num_ahead = dataset._options.experimental_per_replica_buffer_size
        self._ahead: collections.deque[tuple[Any, Exception | None]] = collections.deque()
        scope = _function_being_traced()
        self._made_in = None if scope is None else weakref.ref(scope)

    @property
    def element_spec(self) -> Any:
        """The spec of the elements, as `DistributedDataset.element_spec`."""
        return self._dataset.element_spec

    def __iter__(self) -> DistributedIterator:
        return self

    def __next__(self) -> Any:
        """Returns the next element.

        Raises:
            InvalidArgument: called inside `strategy.run`.
            TraceError: called while a `paceline.function` is traced that did not make the iterator.
        """
        self._check_context()
        ahead = self._ahead
        while len(ahead) <= self._num_ahead and not (ahead and ahead[-1][1]):
            try:
                ahead.append((next(self._elements), None))
            except StopIteration:
                ahead.append((None, _END))
            except Exception as error:
                ahead.append((None, error))
        element, error = ahead[0]
        if error is _END:  # it stays the end
            raise StopIteration
        ahead.popleft()
        if error is not None:
            raise error
        return element

    def get_next(self) -> Any:
        """Returns the next element.

        Raises:
            EndOfData: there is none left.
            InvalidArgument, TraceError: as `next`.
        """
        try:
            return next(self)
        except StopIteration:
            raise EndOfData(
                "The dataset has no more batches. Received: get_next() past the last one. Make a "
                "new iterator with iter(dataset), or use get_next_as_optional()."
            ) from None

    def get_next_as_optional(self) -> OptionalElement:
        """Returns the next element, or an optional without a value at the end."""
        try:
            return OptionalElement(next(self))
        except StopIteration:
            return OptionalElement()

    def _check_context(self) -> None:
        if context.replica_context() is not None:
            raise InvalidArgument(
                "A distributed iterator gives the batches of all replicas at once. Received: "
                "next(iterator) inside strategy.run. Call it outside and pass the batch: "
                "strategy.run(fn, args=(next(iterator),))."
            )
        scope = _function_being_traced()
        if scope is not None and (self._made_in is None or self._made_in() is not scope):
            raise TraceError(
                "A paceline.function is traced once, so a batch read inside it would be the same "
                "in every call. Received: next(iterator) inside a paceline.function, of an "
                "iterator made outside. Read the batch outside and pass it: "
                "step(next(iterator))."
            )


def distribute(dataset: Any, strategy: Any, options: Any = None) -> DistributedDataset:
    """Splits the global batches of `dataset` over the replicas of `strategy`.

    Args:
        dataset: anything that `sources` reads; its batches are nests of arrays `[batch, ...]`.
        strategy: gives the replicas and their devices.
        options: `InputOptions` or None.

    Raises:
        InvalidArgument: arrays that are not cut into batches, or a dataset that is distributed.
        InvalidType: nothing that yields batches, or options of another kind.
        Unsupported: PER_REPLICA mode, which needs a function that makes a dataset.
    """
    options = InputOptions.of(options)
    if isinstance(dataset, (DistributedDataset, DistributedIterator)):
        raise InvalidArgument(
            f"A dataset is distributed once. Received: {dataset!r}. Iterate over it as it is."
        )
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise Unsupported(
            "One pipeline per replica needs a function that makes it. Received: "
            "InputReplicationMode.PER_REPLICA for experimental_distribute_dataset. Use "
            "strategy.distribute_datasets_from_function(dataset_fn, options)."
        )
    source = Source(dataset)
    place = functools.partial(per_replica, strategy=strategy)
    return DistributedDataset(
        lambda: map(place, source.batches()),
        lambda: source,
        lambda: source.num_batches,
        strategy,
        options,
    )


def distribute_from_function(
    dataset_fn: Callable[[InputContext], Any],
    strategy: Any,
    options: Any = None,
    *,
    is_lazy: bool = False,
) -> Any:
    """Gives each replica elements of its own from the pipelines that `dataset_fn` makes.

    `dataset_fn` is called once with `InputContext(1, 0, replicas)`, and each step hands its next
    elements to the replicas in order; in PER_REPLICA mode it is called once per replica with
    `InputContext(replicas, i, replicas)`. Elements are batches of any sizes. At the end, replicas
    without one get empty batches, and the data ends when no replica has any. Of scalars there is
    no empty batch: an incomplete last group of them is dropped, as in tf.distribute.

    Args:
        dataset_fn: takes an `InputContext` and returns anything that `sources` reads.
        strategy: gives the replicas and their devices.
        options: `InputOptions` or None.
        is_lazy: whether `dataset_fn` is called, and what it returns is checked, only when the
            dataset is first used.

    Raises:
        InvalidType: `dataset_fn` cannot be called, or returns nothing that yields batches.
        InvalidArgument: it returns arrays that are not cut into batches.
    """
    options = InputOptions.of(options)
    if not callable(dataset_fn):
        raise InvalidType(
            "A dataset function takes an InputContext and returns a dataset. Received: "
            f"dataset_fn={dataset_fn!r}. Pass lambda context: dataset, or use "
            "experimental_distribute_dataset(dataset)."
        )
    count = strategy.num_replicas_in_sync
    if strategy.devices == (None,):  # the default strategy leaves datasets alone
        return dataset_fn(InputContext())
    is_per_replica = options.experimental_replication_mode is InputReplicationMode.PER_REPLICA
    num_pipelines = count if is_per_replica else 1
    contexts = [InputContext(num_pipelines, i, count) for i in range(num_pipelines)]
    sources = Once(lambda: [Source(dataset_fn(given)) for given in contexts])
    if not is_lazy:
        sources()

    def read() -> Iterator[Any]:
        pipelines = [source.batches() for source in sources()]
        groups = grouped(pipelines if len(pipelines) == count else pipelines * count)
        elements = map(functools.partial(place_group, strategy=strategy), groups)
        return filter(lambda element: element is not None, elements)

    def num_steps() -> int:
        return _num_steps(sources(), count)

    return DistributedDataset(read, lambda: sources()[0], num_steps, strategy, options)


def _num_steps(sources: list[Source], num_replicas: int) -> int:
    counts = [source.num_batches for source in sources]
    for unbounded in (UNKNOWN, INFINITE):
        if unbounded in counts:
            return unbounded
    counts = counts if len(counts) == num_replicas else split_sizes(counts[0], num_replicas)
    if min(counts) == max(counts):
        return counts[0]
    leaves = [as_element(leaf) for leaf in jax.tree.leaves(sources[0].sample())]
    is_batched = all(leaf.ndim for leaf in leaves)
    return max(counts) if is_batched else min(counts)


def _function_being_traced() -> TraceScope | None:
    scope = active_scope()
    return scope if isinstance(scope, TraceScope) else None
