"""`merge_call` on replicas that hold different numbers of examples, eagerly and compiled."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.errors import InvalidArgument, ReplicaMismatch
from paceline.testing import REFERENCE, assert_close
from replica_values import mirrored_strategy

SIZES = [(3, 2, 2), (1, 1, 0)]


@pytest.fixture(params=[False, True], ids=["eager", "compiled"])
def compiled(request: pytest.FixtureRequest) -> Any:
    return tf.function if request.param else lambda function: function


def merge_call(merge_fn: Any, *args: Any) -> Any:
    return tf.distribute.get_replica_context().merge_call(merge_fn, args=args)


def run(compiled: Any, sizes: tuple[int, ...], function: Any) -> list[np.ndarray]:
    """Runs `function(x)` on rows 0, 1, ... of a batch; returns each replica's result."""
    strategy = mirrored_strategy(3)
    batch = np.arange(2.0 * sum(sizes), dtype="float32").reshape(-1, 2)
    per_replica = next(iter(strategy.experimental_distribute_dataset([batch])))
    assert tuple(len(part) for part in per_replica.values) == sizes
    result = strategy.run(compiled(function), args=(per_replica,))
    parts = strategy.experimental_local_results(result)
    return [np.asarray(part) for part in (parts if len(parts) > 1 else parts * 3)]


@pytest.mark.parametrize("sizes", SIZES)
def test_merge_fn_sees_every_replicas_examples(compiled: Any, sizes: tuple[int, ...]) -> None:
    seen = []

    def merge_fn(strategy: Any, x: Any) -> Any:
        seen.append(tuple(part.shape for part in x.values))
        return strategy.gather(x, axis=0), strategy.reduce("mean", x, axis=0)

    def step(x: Any) -> Any:
        rows, mean = merge_call(merge_fn, x)
        return jnp.concatenate([rows, mean[None]])

    rows = np.arange(2.0 * sum(sizes)).reshape(-1, 2)
    for part in run(compiled, sizes, step):
        assert_close(part, [*rows, rows.mean(axis=0)], REFERENCE)
    assert set(seen) == {tuple((size, 2) for size in sizes)}


@pytest.mark.parametrize("sizes", SIZES)
def test_each_replica_gets_its_part_back(compiled: Any, sizes: tuple[int, ...]) -> None:
    def merge_fn(strategy: Any, x: Any) -> Any:
        return strategy.run(lambda own: (own * 10, own.sum(axis=0)), args=(x,))

    def step(x: Any) -> Any:
        times, total = merge_call(merge_fn, x)
        return times + total

    start = 0
    for size, part in zip(sizes, run(compiled, sizes, step), strict=True):
        own = np.arange(2.0 * start, 2.0 * (start + size)).reshape(-1, 2)
        assert_close(part, own * 10 + own.sum(axis=0), REFERENCE)
        start += size


def test_shapes_that_have_nothing_to_do_with_the_examples(compiled: Any) -> None:
    def step(x: Any) -> Any:
        size = x.shape[0]
        own = jnp.ones((size * size, 4 - size)) * size
        return merge_call(lambda _, merged: merged, own)

    parts = run(compiled, (3, 2, 2), step)
    assert [part.shape for part in parts] == [(9, 1), (4, 2), (4, 2)]
    assert [set(part.ravel()) for part in parts] == [{3}, {2}, {2}]


def test_python_numbers_differ_as_the_examples_do(compiled: Any) -> None:
    def merge_fn(strategy: Any, size: Any, name: str) -> Any:
        assert name == "same"
        return strategy.experimental_local_results(size), size

    def step(x: Any) -> Any:
        sizes, own = merge_call(merge_fn, x.shape[0], "same")
        return jnp.asarray([*sizes, own])

    parts = run(compiled, (3, 2, 2), step)
    assert [part.tolist() for part in parts] == [[3, 2, 2, 3], [3, 2, 2, 2], [3, 2, 2, 2]]


def test_numpy_arrays_are_each_replicas_own(compiled: Any) -> None:
    def step(x: Any) -> Any:
        return merge_call(lambda s, ones: s.reduce("sum", ones, axis=0), np.ones(x.shape[0]))

    assert run(compiled, (3, 2, 2), step) == [7, 7, 7]


def test_what_changes_from_trace_to_trace_is_refused() -> None:
    numbers = itertools.count()

    def step(x: Any) -> Any:
        return merge_call(lambda _, number: number, x.shape[0] * 100 + next(numbers))

    with pytest.raises(ReplicaMismatch, match="the same each time it is traced"):
        run(tf.function, (3, 2, 2), step)


def test_ranks_must_agree_when_compiled() -> None:
    def step(x: Any) -> Any:
        own = x if x.shape[0] == 3 else x[0]
        return merge_call(lambda _, merged: merged, own)

    with pytest.raises(InvalidArgument, match=r"as many dims .* shapes \[\(3, 2\), \(2,\), \(2,\)"):
        run(tf.function, (3, 2, 2), step)
