"""Global batches on the replicas' devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline as tf
from paceline.data.placing import per_replica, per_replica_steps, stack_parts
from paceline.data.splitting import split_sizes
from paceline.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
@pytest.mark.case("R78")
def test_every_part_lies_on_its_own_replicas_device(
    mirrored: Callable[[int], Any], count: int, kind: Callable[[Any], Any]
) -> None:
    strategy = mirrored(count)
    for batch_size in (12, 7, 1):
        placed = per_replica(kind(np.arange(batch_size)), strategy)
        assert [part.devices() for part in placed.values] == [{d} for d in strategy.devices]
        assert placed.array.shape[0] == count
        assert placed.array.sharding.device_set == set(strategy.devices)


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(0, 9),
    count=st.integers(1, 4),
    trailing=st.sampled_from([(), (3,), (2, 1)]),
    dtype=st.sampled_from(["float32", "int32", "uint8", "bool", "float16", "bfloat16"]),
    kind=st.sampled_from([np.asarray, jnp.asarray]),
)
def test_parts_hold_the_batch_in_order(
    batch: int, count: int, trailing: tuple[int, ...], dtype: str, kind: Callable[[Any], Any]
) -> None:
    strategy = tf.distribute.MirroredStrategy(jax.devices("cpu")[:count])
    shape = (batch, *trailing)
    values = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(jnp.dtype(dtype))
    parts = strategy.experimental_local_results(per_replica(kind(values), strategy))
    assert [part.shape for part in parts] == [(n, *trailing) for n in split_sizes(batch, count)]
    assert all(part.dtype == values.dtype for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), values)


@pytest.mark.case("R36")
def test_empty_parts_keep_dtype_and_trailing_shape(mirrored: Callable[[int], Any]) -> None:
    placed = per_replica(np.ones((1, 5, 2), np.uint8), mirrored(3))
    assert [part.shape for part in placed.values] == [(1, 5, 2), (0, 5, 2), (0, 5, 2)]
    assert {str(part.dtype) for part in placed.values} == {"uint8"}
    assert placed.shapes == ((1, 5, 2), (0, 5, 2), (0, 5, 2))


def test_a_padded_row_is_zero(two: Any) -> None:
    placed = per_replica(np.array([1, 2, 3], np.int32), two)
    np.testing.assert_array_equal(placed.array, [[1, 2], [3, 0]])


def test_nests_keep_their_structure_and_none(two: Any) -> None:
    batch = {"x": np.zeros((4, 2)), "rest": (np.arange(4), None)}
    placed = per_replica(batch, two)
    assert placed["rest"][1] is None
    assert [part.tolist() for part in placed["rest"][0].values] == [[0, 1], [2, 3]]
    assert placed["x"].shapes is None


def test_one_replica_gets_the_whole_batch(mirrored: Callable[[int], Any]) -> None:
    for strategy in (mirrored(1), tf.distribute.OneDeviceStrategy("cpu:3")):
        x, y = per_replica((np.ones((3, 2), np.float32), np.arange(3)), strategy)
        assert isinstance(x, jax.Array)
        assert x.devices() == y.devices() == set(strategy.devices)
        np.testing.assert_array_equal(y, [0, 1, 2])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_loader_may_fill_its_buffer_again(mirrored: Callable[[int], Any], count: int) -> None:
    # JAX borrows aligned NumPy memory on the CPU, so try buffers at every alignment it knows.
    for offset in range(0, 64, 4):
        raw = np.zeros(4 * 8 * 16 + 64, np.uint8)
        buffer = raw[offset:][: 4 * 8 * 16].view(np.float32).reshape(8, 16)
        placed = per_replica(buffer, mirrored(count))
        buffer[:] = 7
        assert all(not np.any(leaf) for leaf in jax.tree.leaves(placed))


def test_numbers_are_cut_to_the_widths_jax_uses(two: Any) -> None:
    placed = per_replica((np.zeros((2,), np.int64), np.zeros((3,), np.float64)[:2]), two)
    assert [leaf.array.dtype.name for leaf in placed] == ["int32", "float32"]


def test_leaves_that_disagree_on_the_batch_size_are_named(two: Any) -> None:
    batch = {"image": np.zeros((4, 2)), "label": np.zeros((3,))}
    with pytest.raises(InvalidArgument, match=r"\['image'\] \(4, 2\), \['label'\] \(3,\)"):
        per_replica(batch, two)


@pytest.mark.parametrize("leaf", [3, 2.5, np.float32(1), np.zeros(()), jnp.zeros(())])
def test_numbers_without_a_batch_dim_are_refused(two: Any, leaf: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"must be a batch.*has no batch dim\. Batch the"):
        per_replica((np.zeros(2), leaf), two)


def test_strings_and_objects_are_refused(two: Any) -> None:
    with pytest.raises(InvalidType, match=r"no strings or objects\. Received: an array of dtype"):
        per_replica(np.array(["a", "b"]), two)
    with pytest.raises(InvalidType, match=r"Received: a leaf 'a' of type str"):
        per_replica(["a", "b"], two)


def test_a_batch_without_arrays_is_refused(two: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"at least one array.*Received: \(None, \(\)\)"):
        per_replica((None, ()), two)


def test_parts_of_any_shape_are_padded_in_every_dim(two: Any) -> None:
    parts = [np.ones((1, 3), np.float32), np.ones((2, 2), np.float32)]
    stacked = stack_parts(parts, two)
    assert stacked.array.shape == (2, 2, 3)
    assert [part.shape for part in stacked.values] == [(1, 3), (2, 2)]
    assert float(jnp.sum(stacked.array)) == 7


def test_parts_of_other_ranks_or_dtypes_are_refused(two: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"one rank and one dtype.*int64\[1\].*float64\[1\]"):
        stack_parts([np.array([1]), np.array([1.0])], two)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_several_steps_lie_behind_each_other(
    mirrored: Callable[[int], Any], count: int, kind: Callable[[Any], Any]
) -> None:
    strategy = mirrored(count)
    batches = [(kind(np.arange(8) + 8 * step), None) for step in range(3)]
    placed, nothing = per_replica_steps(batches, strategy)
    assert nothing is None
    parts = strategy.experimental_local_results(placed)
    assert [part.shape for part in parts] == [(3, 8 // count)] * count
    for step in range(3):
        np.testing.assert_array_equal(np.concatenate([p[step] for p in parts]), batches[step][0])
    assert [part.devices() for part in parts] == [{d} for d in strategy.devices]


@pytest.mark.parametrize(
    "batches",
    [
        [np.zeros((4,)), np.zeros((2,))],
        [np.zeros((4,)), np.zeros((4,), np.int32)],
        [np.zeros((4,)), (np.zeros((4,)),)],
        [np.zeros((3,)), np.zeros((3,))],
    ],
)
def test_steps_that_differ_or_are_uneven_are_refused(two: Any, batches: list[Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"divided evenly by 2 replicas.*one by one"):
        per_replica_steps(batches, two)
    with pytest.raises(InvalidArgument, match="at least one batch"):
        per_replica_steps([], two)
