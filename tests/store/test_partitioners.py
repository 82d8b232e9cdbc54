"""Contract 4.3: into how many shards a variable is divided, and which rows they hold."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline as tf
from paceline.errors import InvalidArgument
from paceline.store.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    partitions,
    row_ranges,
)

SHAPES = st.lists(st.integers(1, 50), min_size=1, max_size=3).map(tuple)
DTYPES = st.sampled_from(["float32", "bfloat16", "int8", "float64"])


def row_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape[1:]) * jnp.dtype(dtype).itemsize


@pytest.mark.contract(101)
@pytest.mark.parametrize(
    ("num_rows", "num_shards", "sizes"),
    [
        (5, 2, [3, 2]),
        (10, 4, [3, 3, 2, 2]),
        (13, 5, [3, 3, 3, 2, 2]),
        (3, 4, [1, 1, 1]),
        (1, 4, [1]),
    ],
)
def test_a_fixed_number_of_shards(num_rows: int, num_shards: int, sizes: list[int]) -> None:
    num = partitions(FixedShardsPartitioner(num_shards), (num_rows, 2), "int32")
    assert [len(rows) for rows in row_ranges(num_rows, num)] == sizes


@pytest.mark.contract(101)
def test_scalars_are_never_divided() -> None:
    def never(**_: Any) -> list[int]:
        raise AssertionError

    assert partitions(never, (), "float32") == 1


@pytest.mark.parametrize("partitioner", [FixedShardsPartitioner(3), MaxSizePartitioner(4)])
def test_a_variable_without_rows_is_not_divided(partitioner: Partitioner) -> None:
    assert partitions(partitioner, (0, 3), "float32") == 1


@pytest.mark.contract(102)
@pytest.mark.parametrize(
    ("partitioner", "shape", "expected"),
    [
        (MinSizePartitioner(4, 2), (6, 1), [2, 1]),
        (MinSizePartitioner(4, 10), (6, 1), [6, 1]),
        (MinSizePartitioner(10, 10), (6, 1), [3, 1]),  # of 8 bytes each, as in TensorFlow
        (MinSizePartitioner(), (1024, 1024), [1, 1]),
        (MinSizePartitioner(max_shards=16), (1024, 1024), [16, 1]),
        (MinSizePartitioner(max_shards=100), (1024, 1024), [16, 1]),
        (MinSizePartitioner(max_shards=4), (1024, 1024), [4, 1]),
        (MaxSizePartitioner(4), (6, 1), [6, 1]),
        (MaxSizePartitioner(4, 2), (6, 1), [2, 1]),
        (MaxSizePartitioner(1024), (6, 1), [1, 1]),
        (MaxSizePartitioner(10), (6, 1), [3, 1]),
        (MaxSizePartitioner(10), (13, 1), [7, 1]),
        (FixedShardsPartitioner(2), (10, 3), [2, 1]),
    ],
)
def test_the_numbers_of_tensorflow(
    partitioner: Partitioner, shape: tuple[int, ...], expected: list[int]
) -> None:
    assert partitioner(shape, "float32") == expected
    assert partitions(partitioner, shape, "float32") == expected[0]


def test_they_have_tensorflows_names() -> None:
    names = tf.distribute.experimental.partitioners
    assert names.FixedShardsPartitioner is FixedShardsPartitioner
    assert names.MinSizePartitioner is MinSizePartitioner
    assert names.MaxSizePartitioner is MaxSizePartitioner
    assert names.Partitioner is Partitioner


def test_another_axis_and_strings() -> None:
    assert MinSizePartitioner(16, 10)((2, 3), "string", axis=1) == [1, 3]
    assert MaxSizePartitioner(16, bytes_per_string=8)((4,), np.dtype("S3")) == [2]
    assert FixedShardsPartitioner(2)((4, 3), "float32", axis=-1) == [1, 2]
    with pytest.raises(InvalidArgument, match=r"axis=2 for shape=\(4, 3\)"):
        FixedShardsPartitioner(2)((4, 3), "float32", axis=2)


def test_a_base_class_for_ones_own() -> None:
    class Halves(Partitioner):
        def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
            assert dtype.itemsize == 2
            return [2, *[1] * (len(shape) - 1)]

    assert partitions(Halves(), (4, 3), "bfloat16") == 2
    assert partitions(lambda shape, dtype: [np.int64(9)], (4, 3), "int32") == 4
    with pytest.raises(NotImplementedError):
        partitions(Partitioner(), (4,), "int32")


@pytest.mark.contract(103)
@pytest.mark.parametrize(
    "returned", [None, [], [0, 1, 1], [2, 2, 1], [-1, 1, 1], [2, 1, 1, 1], [1.5, 1, 1], "2"]
)
def test_what_a_partitioner_returns_is_checked(returned: Any) -> None:
    def my_partitioner(shape: Any, dtype: Any) -> Any:
        return returned

    with pytest.raises(ValueError, match=r"(?s)Received: .* from the partitioner .*my_partitioner"):
        partitions(my_partitioner, (4, 3, 2), "float32")


@pytest.mark.contract(102)
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: FixedShardsPartitioner(0), "num_shards=0"),
        (lambda: FixedShardsPartitioner(2.5), "num_shards=2.5"),  # pyright: ignore
        (lambda: MinSizePartitioner(0), "min_shard_bytes=0"),
        (lambda: MinSizePartitioner(4, -1), "max_shards=-1"),
        (lambda: MinSizePartitioner(bytes_per_string=0), "bytes_per_string=0"),
        (lambda: MaxSizePartitioner(-4), "max_shard_bytes=-4"),
        (lambda: MaxSizePartitioner(4, 0), "max_shards=0"),
        (lambda: MaxSizePartitioner(4, bytes_per_string=0), "bytes_per_string=0"),
    ],
)
def test_sizes_are_positive(make: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()


@given(st.integers(1, 300), st.integers(1, 40))
def test_rows_are_divided_evenly_and_in_order(num_rows: int, num_shards: int) -> None:
    num_shards = min(num_rows, num_shards)
    ranges = row_ranges(num_rows, num_shards)
    sizes = [len(rows) for rows in ranges]
    assert [row for rows in ranges for row in rows] == list(range(num_rows))
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == num_shards
    assert max(sizes) - min(sizes) <= 1


@given(SHAPES, DTYPES, st.integers(1, 2000))
def test_shards_are_no_larger_than_the_maximum(
    shape: tuple[int, ...], dtype: str, max_bytes: int
) -> None:
    num = partitions(MaxSizePartitioner(max_bytes), shape, dtype)
    largest = len(row_ranges(shape[0], num)[0])
    size = row_bytes(shape, dtype)
    assert largest == 1 or largest * size <= max_bytes
    if num > 1:  # and no more of them than that takes
        assert math.ceil(shape[0] / (num - 1)) * size > max_bytes


@given(SHAPES, DTYPES, st.integers(1, 2000), st.integers(1, 60))
def test_no_more_shards_than_whole_and_begun_minima(
    shape: tuple[int, ...], dtype: str, min_bytes: int, max_shards: int
) -> None:
    num = partitions(MinSizePartitioner(min_bytes, max_shards), shape, dtype)
    total = shape[0] * row_bytes(shape, dtype)
    assert num == min(shape[0], max_shards, math.ceil(total / min_bytes))
