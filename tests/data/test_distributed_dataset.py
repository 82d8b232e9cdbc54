"""Distributed datasets, their iterators, and pipelines per replica: what each replica gets."""

from __future__ import annotations

import gc
import itertools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline as tf
from paceline.data import ArrayBatches, per_replica
from paceline.data.specs import ArraySpec, PerReplicaSpec
from paceline.data.splitting import split_sizes
from paceline.distribute import InputContext, InputOptions, InputReplicationMode
from paceline.errors import (
    EndOfData,
    InvalidArgument,
    InvalidType,
    TraceError,
    Unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Steps = Any


def batched(count: int, size: int, **options: Any) -> ArrayBatches:
    """range(count).batch(size)"""
    return ArrayBatches(range(count), batch_size=size, **options)


# The table of contract 3.9 under Paceline's one rule.
TABLE = [
    (batched(7, 4), 2, [[[0, 1], [2, 3]], [[4, 5], [6]]]),
    (batched(9, 4), 2, [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]),
    (batched(10, 6), 2, [[[0, 1, 2], [3, 4, 5]], [[6, 7], [8, 9]]]),
    (batched(7, 4), 3, [[[0, 1], [2], [3]], [[4], [5], [6]]]),
    (batched(5, 5), 3, [[[0, 1], [2, 3], [4]]]),
    (batched(3, 1), 2, [[[0], []], [[1], []], [[2], []]]),
    (batched(3, 1, drop_remainder=True), 2, [[[0], []], [[1], []], [[2], []]]),
    (batched(3, 2, repeat=2), 2, [[[0], [1]], [[2], []], [[0], [1]], [[2], []]]),
    (batched(5, 4, drop_remainder=True), 2, [[[0, 1], [2, 3]]]),
    ([np.arange(2) * 2, np.arange(2, 4) * 2], 2, [[[0], [2]], [[4], [6]]]),
    ([], 2, []),
    (batched(5, 4), 4, [[[0], [1], [2], [3]], [[4], [], [], []]]),
]


@pytest.mark.contract(74)
@pytest.mark.parametrize(("dataset", "count", "expected"), TABLE)
@pytest.mark.case("R36")
@pytest.mark.case("R44")
def test_the_table_of_splits(
    mirrored: Callable[[int], Any], steps: Steps, dataset: Any, count: int, expected: Any
) -> None:
    strategy = mirrored(count)
    assert steps(strategy, strategy.experimental_distribute_dataset(dataset)) == expected


@pytest.mark.case("R37")
def test_three_over_two_replicas(two: Any, steps: Steps) -> None:
    read = steps(two, two.experimental_distribute_dataset(batched(10, 3)))
    assert [[len(part) for part in step] for step in read] == [[2, 1], [2, 1], [2, 1], [1, 0]]
    assert [i for step in read for part in step for i in part] == list(range(10))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 20), st.integers(1, 9), st.integers(1, 4))
@pytest.mark.case("R40")
def test_no_example_is_dropped_or_repeated(num_examples: int, size: int, count: int) -> None:
    strategy = tf.distribute.MirroredStrategy(jax.devices("cpu")[:count])
    seen = []
    for element in strategy.experimental_distribute_dataset(batched(num_examples, size)):
        parts = [np.asarray(p) for p in strategy.experimental_local_results(element)]
        assert tuple(map(len, parts)) == split_sizes(sum(map(len, parts)), count)
        seen += [i for part in parts for i in part.tolist()]
    assert seen == list(range(num_examples))


@pytest.mark.contract(73)
def test_a_batch_of_one(two: Any, steps: Steps) -> None:
    dataset = ArrayBatches([5, 6], batch_size=1, drop_remainder=True)
    assert steps(two, two.experimental_distribute_dataset(dataset))[0] == [[5], []]


@pytest.mark.case("R76")
def test_the_batch_size_is_global(two: Any) -> None:
    context = InputContext(1, 0, 2)
    local = context.get_per_replica_batch_size(8)
    for dataset in (
        two.experimental_distribute_dataset(batched(16, 8)),
        two.distribute_datasets_from_function(lambda _: batched(16, local)),
    ):
        assert [[len(p) for p in element.values] for element in dataset] == [[4, 4], [4, 4]]
    with pytest.raises(InvalidArgument, match="global_batch_size=7, num_replicas_in_sync=2"):
        context.get_per_replica_batch_size(7)


def test_one_device_gets_whole_batches_and_the_default_strategy_the_dataset(steps: Steps) -> None:
    one = tf.distribute.OneDeviceStrategy("cpu:1")
    assert steps(one, one.experimental_distribute_dataset(batched(3, 2))) == [[[0, 1]], [[2]]]
    dataset = batched(3, 2)
    default = tf.distribute.get_strategy()
    assert default.experimental_distribute_dataset(dataset) is dataset
    contexts = []

    def make(context: InputContext) -> ArrayBatches:
        contexts.append(context)
        return dataset

    assert default.distribute_datasets_from_function(make) is dataset
    assert contexts == [InputContext(1, 0, 1)]


# Iterating --------------------------------------------------------------------------------------


@pytest.mark.contract(76)
def test_the_end_of_the_data(two: Any) -> None:
    dataset = two.experimental_distribute_dataset(ArrayBatches([5, 6, 7, 8], batch_size=2))
    for _ in range(2):
        iterator = iter(dataset)
        assert iter(iterator) is iterator
        assert sum(int(p[0]) for _ in range(2) for p in next(iterator).values) == 26
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(iterator)
        with pytest.raises(EndOfData, match=r"no more batches.*iter\(dataset\)"):
            iterator.get_next()
        optional = iterator.get_next_as_optional()
        assert not optional.has_value()
        with pytest.raises(InvalidArgument, match="Ask has_value"):
            optional.get_value()


def test_elements_on_request(two: Any) -> None:
    iterator = iter(two.experimental_distribute_dataset(batched(4, 2)))
    assert [p.tolist() for p in iterator.get_next().values] == [[0], [1]]
    optional = iterator.get_next_as_optional()
    assert optional.has_value()
    assert [p.tolist() for p in optional.get_value().values] == [[2], [3]]


@pytest.mark.case("R44")
def test_an_empty_dataset_has_no_steps(two: Any) -> None:
    dataset = two.experimental_distribute_dataset([])
    assert list(dataset) == []
    assert len(dataset) == 0
    with pytest.raises(InvalidArgument, match="an empty dataset"):
        _ = dataset.element_spec


def test_reduce_folds_the_elements(two: Any) -> None:
    dataset = two.experimental_distribute_dataset(batched(5, 2))
    total = dataset.reduce(0.0, lambda s, x: s + float(two.reduce("SUM", x, axis=0)))
    assert total == 10.0


@pytest.mark.parametrize(("size", "expected"), [(0, [1, 2, 3]), (1, [2, 3, 4]), (3, [4, 5, 6])])
def test_batches_are_placed_ahead(two: Any, size: int, expected: list[int]) -> None:
    read = []

    def endless() -> Iterator[np.ndarray]:
        for i in itertools.count():
            read.append(i)
            yield np.arange(2) + i

    options = InputOptions(experimental_per_replica_buffer_size=size)
    iterator = iter(two.experimental_distribute_dataset(endless(), options))
    assert not read
    counts = []
    for i in range(3):
        assert next(iterator).values[0].tolist() == [i]
        counts.append(len(read))
    assert counts == expected


def test_an_error_of_the_dataset_comes_when_its_batch_would(two: Any) -> None:
    def failing() -> Iterator[np.ndarray]:
        yield np.zeros(2)
        yield np.zeros(2)
        raise OSError("the file is gone")

    iterator = iter(two.experimental_distribute_dataset(failing()))
    next(iterator)
    next(iterator)
    with pytest.raises(OSError, match="the file is gone"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_bad_batch_does_not_hide_the_next(two: Any) -> None:
    iterator = iter(two.experimental_distribute_dataset([np.float32(1), np.zeros(2)]))
    with pytest.raises(InvalidArgument, match="no batch dim"):
        next(iterator)
    assert next(iterator).num_replicas == 2


@pytest.mark.contract(79)
def test_a_distributed_dataset_is_not_transformed(two: Any) -> None:
    dataset = two.experimental_distribute_dataset(batched(4, 2))
    for name in ("batch", "map", "shuffle", "repeat", "take"):
        with pytest.raises(AttributeError, match=rf"a call of \.{name}\. Transform the dataset b"):
            getattr(dataset, name)
    with pytest.raises(AttributeError, match="'DistributedDataset' object has no attribute 'foo'"):
        _ = dataset.foo
    for again in (dataset, iter(dataset)):
        with pytest.raises(InvalidArgument, match="A dataset is distributed once"):
            two.experimental_distribute_dataset(again)


@pytest.mark.contract(79)
@pytest.mark.parametrize("count", [1, 2])
def test_next_inside_run_is_refused(mirrored: Callable[[int], Any], count: int) -> None:
    strategy = mirrored(count)
    iterator = iter(strategy.experimental_distribute_dataset(batched(4, 2)))
    with pytest.raises(InvalidArgument, match=r"inside strategy\.run.*args=\(next\(iterator\),\)"):
        strategy.run(lambda: next(iterator))
    assert next(iterator) is not None


def test_next_inside_a_function_is_refused(two: Any) -> None:
    iterator = iter(two.experimental_distribute_dataset(batched(4, 2)))
    step = tf.function(lambda source: two.run(lambda x: x + 1, args=(next(source),)))
    with pytest.raises(TraceError, match=r"the same in every call.*step\(next\(iterator\)\)"):
        step(iterator)
    assert [p.tolist() for p in next(iterator).values] == [[0], [1]]


# What is known about it -------------------------------------------------------------------------


def test_specs_have_no_static_batch_dim(two: Any, mirrored: Callable[[int], Any]) -> None:
    batches = [(np.zeros((4, 3)), np.zeros((4,), np.uint8))]
    x, y = ArraySpec((None, 3), np.dtype("float32")), ArraySpec((None,), np.dtype("uint8"))
    dataset = two.experimental_distribute_dataset(batches)
    expected = (PerReplicaSpec((x, x)), PerReplicaSpec((y, y)))
    assert dataset.element_spec == iter(dataset).element_spec == expected
    assert mirrored(1).experimental_distribute_dataset(batches).element_spec == (x, y)
    scalars = two.distribute_datasets_from_function(lambda _: range(4))
    assert scalars.element_spec == PerReplicaSpec((ArraySpec((), np.dtype("int32")),) * 2)


def test_lengths_in_both_spellings(two: Any) -> None:
    dataset = two.experimental_distribute_dataset(batched(5, 2))
    assert len(dataset) == dataset.cardinality == dataset.cardinality() == 3
    assert bool(two.experimental_distribute_dataset([]))
    endless = two.experimental_distribute_dataset(batched(5, 2, repeat=None))
    unknown = two.experimental_distribute_dataset(iter([]))
    assert (endless.cardinality(), unknown.cardinality()) == (-1, -2)
    with pytest.raises(TypeError, match="has no end"):
        len(endless)
    with pytest.raises(TypeError, match="does not know its length"):
        len(unknown)


# Pipelines per replica --------------------------------------------------------------------------


@pytest.mark.contract(77)
@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (range(10), [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]),
        (range(5), [[0, 1], [2, 3]]),
        (batched(5, 2), [[[0, 1], [2, 3]], [[4], []]]),
        (batched(6, 2), [[[0, 1], [2, 3]], [[4, 5], []]]),
        ([], []),
    ],
)
def test_replicas_take_elements_in_turn(
    two: Any, steps: Steps, dataset: Any, expected: Any
) -> None:
    distributed = two.distribute_datasets_from_function(lambda _: dataset)
    for _ in range(2):
        assert steps(two, distributed) == expected
    assert len(distributed) == len(expected)


@pytest.mark.contract(78)
def test_the_function_learns_its_place(two: Any, mirrored: Callable[[int], Any]) -> None:
    assert InputContext(2, 1, 6).get_per_replica_batch_size(12) == 2
    with pytest.raises(InvalidArgument, match="global_batch_size=13, num_replicas_in_sync=6"):
        InputContext(2, 1, 6).get_per_replica_batch_size(13)
    contexts = []

    def make(context: InputContext) -> ArrayBatches:
        contexts.append(context)
        return batched(4, 2)

    two.distribute_datasets_from_function(make)
    mirrored(1).distribute_datasets_from_function(make)
    options = InputOptions(experimental_replication_mode=InputReplicationMode.PER_REPLICA)
    mirrored(3).distribute_datasets_from_function(make, options)
    assert contexts == [
        InputContext(1, 0, 2),
        InputContext(1, 0, 1),
        *[InputContext(3, i, 3) for i in range(3)],
    ]


def test_a_pipeline_per_replica_runs_until_all_are_done(
    mirrored: Callable[[int], Any], steps: Steps
) -> None:
    strategy = mirrored(3)
    options = InputOptions(experimental_replication_mode=InputReplicationMode.PER_REPLICA)
    lengths = [3, 0, 1]

    def make(context: InputContext) -> list[np.ndarray]:
        start = 10 * context.input_pipeline_id
        return [np.array([start + i]) for i in range(lengths[context.input_pipeline_id])]

    dataset = strategy.distribute_datasets_from_function(make, options)
    assert steps(strategy, dataset) == [[[0], [], [20]], [[1], [], []], [[2], [], []]]
    assert len(dataset) == 3
    with pytest.raises(Unsupported, match="distribute_datasets_from_function"):
        strategy.experimental_distribute_dataset(batched(4, 2), options)


@pytest.mark.case("R47")
def test_replicas_may_get_unequal_shares(two: Any) -> None:
    shares = [np.ones((3, 2), np.float32), np.full((1, 2), 5, np.float32)]
    element = next(iter(two.distribute_datasets_from_function(lambda _: shares)))
    assert [part.shape for part in element.values] == [(3, 2), (1, 2)]
    assert float(two.reduce("MEAN", element, axis=(0, 1))) == 2.0


def test_whole_sequences_may_differ_in_length(two: Any) -> None:
    ragged = [np.ones((2, 3)), np.ones((2, 5))]
    element = next(iter(two.distribute_datasets_from_function(lambda _: ragged)))
    assert [part.shape for part in element.values] == [(2, 3), (2, 5)]


def test_a_single_replica_reads_its_pipeline_bare(mirrored: Callable[[int], Any]) -> None:
    strategy = mirrored(1)
    dataset = strategy.distribute_datasets_from_function(lambda _: batched(3, 2))
    assert [x.tolist() for x in dataset] == [[0, 1], [2]]


def test_replicas_need_elements_of_one_structure(two: Any) -> None:
    for group in ([np.zeros(1), (np.zeros(1),)], [np.zeros(1), np.zeros((1, 1))]):
        dataset = two.distribute_datasets_from_function(lambda _, group=group: group)
        with pytest.raises(InvalidArgument, match=r"need one structure|need one rank"):
            next(iter(dataset))
    pair = two.distribute_datasets_from_function(lambda _: [(np.zeros(1), np.zeros(2))] * 2)
    with pytest.raises(InvalidArgument, match=r"shapes \[0\] \(1,\), \[1\] \(2,\)"):
        next(iter(pair))


def test_a_dataset_function_is_a_function(two: Any) -> None:
    with pytest.raises(InvalidType, match=r"takes an InputContext.*Received: dataset_fn=\["):
        two.distribute_datasets_from_function([np.zeros(2)])


# Options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"experimental_per_replica_buffer_size": -1}, "buffer_size=-1. Pass 0"),
        ({"experimental_per_replica_buffer_size": 1.5}, "whole number of batches"),
        ({"experimental_replication_mode": "PER_REPLICA"}, "is an InputReplicationMode"),
    ],
)
def test_bad_options_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises((InvalidArgument, InvalidType), match=message):
        InputOptions(**arguments)


def test_options_of_another_kind_are_refused(two: Any) -> None:
    with pytest.raises(InvalidType, match=r"are paceline\.distribute\.InputOptions\. Received: 3"):
        two.experimental_distribute_dataset(batched(4, 2), 3)


def test_placing_is_public(two: Any) -> None:
    assert per_replica(np.arange(2), two).num_replicas == 2


def test_an_exhausted_iterator_leaves_no_arrays_behind(two: Any) -> None:
    dataset = two.experimental_distribute_dataset(ArrayBatches(np.ones((8, 3)), batch_size=4))
    gc.collect()
    gc.disable()  # what only the collector would find counts as left behind
    try:
        before = len(jax.live_arrays())
        for _ in range(3):
            for _batch in dataset:
                pass
        del _batch
        assert len(jax.live_arrays()) == before
    finally:
        gc.enable()
