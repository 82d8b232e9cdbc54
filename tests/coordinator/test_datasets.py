"""Datasets that every worker reads by itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.errors import (
    ContextError,
    EndOfData,
    InvalidArgument,
    InvalidType,
    Unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

worker_index = tf.distribute.coordinator.experimental_get_current_worker_index


def on_every_worker(coordinator: Any, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """What `fn` returns on each worker: none is free before all have begun."""
    count = coordinator.strategy.cluster.workers
    together = threading.Barrier(count)

    def call(*own: Any) -> Any:
        together.wait()
        return fn(*own)

    return coordinator.fetch([coordinator.schedule(call, args=args) for _ in range(count)])


def total(iterator: Iterator[Any]) -> int:
    return int(sum(int(element) for element in iterator))


@pytest.mark.contract(94)
def test_next_belongs_to_the_workers(coordinator: Any) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(range(1, 2)))
    assert isinstance(iterator, tf.distribute.coordinator.PerWorkerValues)
    assert iter(iterator) is iterator
    for call in (lambda: next(iterator), iterator.get_next):
        with pytest.raises(Unsupported, match=r"coordinator\.schedule\(step, args=\(iterator,\)\)"):
            call()
    assert coordinator.schedule(next, args=(iterator,)).fetch() == 1


@pytest.mark.contract(94)
def test_a_function_takes_from_several_datasets(coordinator: Any) -> None:
    first, second = (
        iter(coordinator.create_per_worker_dataset(range(start, start + 5))) for start in (0, 5)
    )

    @tf.function
    def add(nest: Any) -> Any:
        return next(nest["first"]) + next(nest["others"][0])

    value = coordinator.schedule(add, args=({"first": first, "others": [second]},))
    assert value.fetch() == 5
    coordinator.join()


@pytest.mark.contract(94)
@pytest.mark.parametrize("take", [next, tf.function(next), lambda it: it.get_next()])
def test_the_end_of_the_data_is_an_error_at_join(
    coordinate: Callable[..., Any], take: Callable[..., Any]
) -> None:
    coordinator = coordinate(1)
    iterator = iter(coordinator.create_per_worker_dataset(range(2)))
    values = [coordinator.schedule(take, args=(iterator,)) for _ in range(3)]
    with pytest.raises(EndOfData, match="Repeat the dataset, or schedule as many steps"):
        coordinator.join()
    assert coordinator.fetch(values[:2]) == [0, 1]
    with pytest.raises(tf.errors.OutOfRangeError):
        values[2].fetch()


@pytest.mark.contract(94)
def test_a_function_traced_at_the_end_of_the_data(coordinator: Any) -> None:
    empty = iter(coordinator.create_per_worker_dataset([]))
    coordinator.schedule(tf.function(next), args=(empty,))
    with pytest.raises(EndOfData):
        coordinator.join()


def test_a_new_iterator_starts_again_and_needs_no_new_trace(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(1)
    traces: list[int] = []

    @tf.function
    def step(iterator: Any) -> Any:
        traces.append(1)
        return next(iterator) + next(iterator)

    for dataset in (
        coordinator.create_per_worker_dataset(range(4)),
        coordinator.create_per_worker_dataset(lambda: iter(range(4))),  # can be read once
    ):
        for _ in range(2):
            iterator = iter(dataset)
            values = [coordinator.schedule(step, args=(iterator,)) for _ in range(2)]
            assert coordinator.fetch(values) == [1, 5]
    assert len(traces) == 1


def test_another_shape_of_batch_means_another_trace(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(1)
    batches = tf.data.ArrayBatches(np.arange(5.0, dtype="float32"), batch_size=2)
    iterator = iter(coordinator.create_per_worker_dataset(batches))
    step = tf.function(lambda iterator: next(iterator).sum())
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(3)]
    assert coordinator.fetch(values) == [1.0, 5.0, 4.0]


@pytest.mark.case("R72")
def test_a_dataset_function_learns_which_worker_it_is_on(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(2)
    contexts: list[Any] = []

    def dataset_fn(context: tf.distribute.InputContext) -> Any:
        contexts.append(context)
        return range(8)[context.input_pipeline_id :: context.num_input_pipelines]

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    assert sorted(on_every_worker(coordinator, total, iterator)) == [0 + 2 + 4 + 6, 1 + 3 + 5 + 7]
    assert sorted((c.input_pipeline_id, c.num_input_pipelines) for c in contexts) == [
        (0, 2),
        (1, 2),
    ]


@pytest.mark.case("R72")
@pytest.mark.parametrize("is_direct", [True, False])
def test_so_does_the_function_of_a_distributed_dataset(
    coordinate: Callable[..., Any], is_direct: bool
) -> None:
    coordinator = coordinate(2)
    strategy = coordinator.strategy

    def dataset_fn(context: tf.distribute.InputContext) -> Any:
        assert context.get_per_replica_batch_size(4) == 4
        first = 10.0 * context.input_pipeline_id
        count = context.num_input_pipelines
        return [np.array([first, count]), np.array([first + 1, count])]

    @tf.function
    def per_worker_fn() -> Any:
        return strategy.distribute_datasets_from_function(dataset_fn)

    dataset = coordinator.create_per_worker_dataset(
        strategy.distribute_datasets_from_function(dataset_fn) if is_direct else per_worker_fn
    )
    iterator = iter(dataset)

    @tf.function
    def step(iterator: Any) -> Any:
        def replica_fn(batch: Any) -> Any:
            return batch.sum()

        return strategy.run(replica_fn, args=(next(iterator),))

    for offset in (0.0, 1.0):
        sums = on_every_worker(coordinator, step, iterator)
        assert sorted(sums) == [offset + 2.0, offset + 12.0]


def test_the_coordinator_does_not_call_a_function_that_workers_call(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(2)
    calls: list[tuple[int, int]] = []

    def dataset_fn(context: tf.distribute.InputContext) -> Any:
        calls.append((context.input_pipeline_id, context.num_input_pipelines))
        return [np.ones(2), np.ones(2)]

    dataset = coordinator.strategy.distribute_datasets_from_function(dataset_fn)
    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    assert calls == []
    on_every_worker(coordinator, lambda iterator: next(iterator).sum(), iterator)
    assert sorted(calls) == [(0, 2), (1, 2)]


def test_without_a_coordinator_a_function_is_called_when_its_dataset_is_first_used(
    coordinate: Callable[..., Any],
) -> None:
    strategy = coordinate(2).strategy
    calls: list[tuple[int, int]] = []

    def dataset_fn(context: tf.distribute.InputContext) -> Any:
        calls.append((context.input_pipeline_id, context.num_input_pipelines))
        return [np.ones(2), np.ones(2)]

    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    assert calls == []
    assert dataset.element_spec.shape == (None,)
    assert len(dataset) == 2
    assert [float(batch.sum()) for batch in dataset] == [2.0, 2.0]
    assert calls == [(0, 1)]

    def read() -> list[float]:  # who uses it on a worker reads the same
        return [float(batch.sum()) for batch in dataset]

    assert strategy.submit(read).fetch() == [2.0, 2.0]
    assert calls == [(0, 1)]


def test_a_function_without_a_dataset_is_found_when_it_is_used(
    coordinate: Callable[..., Any],
) -> None:
    strategy = coordinate(1).strategy
    answers: list[Any] = [3, [np.ones(2)]]
    dataset = strategy.distribute_datasets_from_function(lambda context: answers.pop(0))
    with pytest.raises(InvalidType):
        iter(dataset)
    assert len(dataset) == 1  # asked again
    with pytest.raises(InvalidType, match="dataset_fn="):
        strategy.distribute_datasets_from_function([np.ones(2)])


def test_a_dataset_of_the_strategy_is_read_in_full_by_every_worker(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(2)
    batches = tf.data.ArrayBatches(np.arange(6.0, dtype="float32"), batch_size=4)
    distributed = coordinator.strategy.experimental_distribute_dataset(batches)
    iterator = iter(coordinator.create_per_worker_dataset(distributed))

    def read(iterator: Any) -> list[float]:
        return [float(batch.sum()) for batch in iterator]

    assert on_every_worker(coordinator, read, iterator) == [[6.0, 9.0]] * 2


@pytest.mark.contract(97)
@pytest.mark.parametrize("wrap", [lambda fn: fn, tf.function], ids=["plain", "function"])
def test_sharding_by_worker_index(coordinate: Callable[..., Any], wrap: Callable[..., Any]) -> None:
    coordinator = coordinate(5)

    @wrap
    def dataset_fn() -> Any:
        return list(range(10))[worker_index() :: 5]

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    assert sorted(on_every_worker(coordinator, total, iterator)) == [5, 7, 9, 11, 13]


@pytest.mark.contract(97)
def test_the_index_is_that_of_the_worker_also_where_it_is_traced(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(3)
    assert sorted(on_every_worker(coordinator, worker_index)) == [0, 1, 2]
    assert sorted(on_every_worker(coordinator, tf.function(lambda: worker_index() * 2))) == [
        0,
        2,
        4,
    ]
    with pytest.raises(ContextError, match="Only workers have an index"):
        worker_index()
    with pytest.raises(RuntimeError):
        tf.function(worker_index)()


def test_batches_may_be_computed_where_a_step_is_traced(coordinator: Any) -> None:
    def dataset_fn() -> Iterator[Any]:
        while True:
            yield jnp.ones(2) * 2, 3.0, True

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))

    @tf.function
    def step(iterator: Any) -> Any:
        x, y, flag = next(iterator)
        return x.sum() + y + flag

    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(4)]
    assert coordinator.fetch(values) == [8.0] * 4


def test_a_loader_may_fill_one_buffer_again(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(1)

    def dataset_fn() -> Iterator[Any]:
        buffer = np.zeros(4, np.float32)
        for i in range(8):
            buffer[:] = i
            yield buffer

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    step = tf.function(lambda iterator: next(iterator))
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(4)]
    values += [coordinator.schedule(next, args=(iterator,)) for _ in range(4)]
    assert [batch.tolist() for batch in coordinator.fetch(values)] == [[i] * 4 for i in range(8)]


def test_iterators_are_not_made_in_a_function_that_is_traced(coordinator: Any) -> None:
    dataset = coordinator.create_per_worker_dataset(range(3))
    with pytest.raises(ContextError, match="Pass iter\\(dataset\\) to schedule"):
        tf.function(lambda: iter(dataset) and None)()


def test_what_is_no_dataset_is_refused(coordinator: Any) -> None:
    with pytest.raises(InvalidArgument, match="Pass a function that returns a new one"):
        coordinator.create_per_worker_dataset(iter([1]))
    with pytest.raises(InvalidArgument, match="arrays are not cut into batches"):
        coordinator.create_per_worker_dataset(np.ones(3))
    with pytest.raises(InvalidType, match="A dataset is something to iterate over"):
        coordinator.create_per_worker_dataset(3)
    with pytest.raises(InvalidType, match="What makes a per-worker value is a function"):
        coordinator.create_per_worker_resource(3)


@pytest.mark.contract(93)
def test_a_function_that_returns_no_dataset(coordinator: Any) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(lambda: None))
    coordinator.schedule(next, args=(iterator,))
    with pytest.raises(tf.errors.ClosureInputError, match="A dataset function returns a dataset"):
        coordinator.join()


def test_per_worker_resources(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(2)
    made = coordinator.create_per_worker_resource(lambda: [int(worker_index())])

    def append(own: list[int]) -> list[int]:
        own.append(len(own))
        return list(own)

    assert sorted(on_every_worker(coordinator, append, made)) == [[0, 1], [1, 1]]
    assert sorted(on_every_worker(coordinator, append, made)) == [[0, 1, 2], [1, 1, 2]]
