"""Contract 2.2, scatter operations: sparse writes inside replicas and across them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from replica_values import (
    components,
    mirrored_strategy,
    one_per_replica,
    per_replica,
    replica_number,
)

Aggregation = tf.VariableAggregation
several_replicas = pytest.mark.parametrize("num_replicas", [2, 3, 4])
OPERATIONS = ["add", "sub", "mul", "div", "min", "max", "update"]


def variable(strategy: Any, initial_value: Any, aggregation: str, **options: Any) -> Any:
    with strategy.scope():
        return tf.Variable(initial_value, aggregation=Aggregation[aggregation], **options)


def slices(values: Any, indices: Any) -> Any:
    return tf.IndexedSlices(jnp.asarray(values), jnp.asarray(indices))


def two_neighbours(dtype: Any) -> Any:
    """Values (i, i + 1) at rows (i, i + 1) on replica i."""
    i = replica_number(jnp.int32)
    indices = jnp.stack([i, i + 1])
    return tf.IndexedSlices(indices.astype(dtype), indices)


def one_own_row(dtype: Any) -> Any:
    """Value i + 2 at row i on replica i."""
    i = replica_number(jnp.int32)
    return tf.IndexedSlices((i + 2).astype(dtype)[None], i[None])


@pytest.mark.contract(27)
@pytest.mark.parametrize(
    ("operation", "aggregation", "start", "given", "expected"),
    [
        ("add", "SUM", [0, 0, 0], two_neighbours, [0, 2, 2]),
        ("add", "MEAN", [0.0, 0.0, 0.0], two_neighbours, [0.0, 1.0, 1.0]),
        ("sub", "SUM", [0, 0, 0], two_neighbours, [0, -2, -2]),
        ("sub", "MEAN", [0.0, 0.0, 0.0], two_neighbours, [0.0, -1.0, -1.0]),
        ("mul", "MEAN", [2.0, 1.0, 1.0], one_own_row, [2.0, 1.5, 1.0]),
        ("mul", "SUM", [2, 1, 1], one_own_row, [4, 3, 1]),
        ("div", "SUM", [1, 6, 1], one_own_row, [0, 2, 1]),
        ("div", "MEAN", [1.0, 6.0, 1.0], one_own_row, [1.0, 4.0, 1.0]),
    ],
)
def test_slices_of_all_replicas_count(
    mirrored: Any,
    run: Any,
    operation: str,
    aggregation: str,
    start: list[float],
    given: Any,
    expected: list[float],
) -> None:
    v = variable(mirrored, start, aggregation)
    write = getattr(v, f"scatter_{operation}")
    returned = run(mirrored, lambda: write(given(v.dtype)))
    assert components(v) == [expected, expected]
    assert per_replica(mirrored, returned) == [expected, expected]
    assert v.value.dtype == v.dtype


@pytest.mark.contract(27)
@several_replicas
def test_rows_that_several_replicas_name_add_up(mirrored: Any, num_replicas: int, run: Any) -> None:
    v = variable(mirrored, jnp.zeros((3, 2)), "SUM")
    run(mirrored, lambda: v.scatter_add(slices([[1.0, 2.0], [3.0, 4.0]], [1, 1])))
    row = [4.0 * num_replicas, 6.0 * num_replicas]
    assert components(v) == [[[0.0, 0.0], row, [0.0, 0.0]]] * num_replicas


@pytest.mark.contract(27)
def test_replicas_may_have_different_numbers_of_slices(mirrored: Any) -> None:
    v = variable(mirrored, [0.0, 0.0, 0.0], "SUM")

    def replica_fn() -> None:
        i = int(replica_number())
        v.scatter_add(slices(jnp.ones(i + 1), jnp.arange(i + 1)))

    mirrored.run(replica_fn)
    assert components(v) == [[2.0, 1.0, 0.0]] * 2


@pytest.mark.contract(28)
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN"])
@pytest.mark.parametrize("operation", ["min", "max", "update"])
def test_operations_that_do_not_add_up_are_unsupported(
    mirrored: Any, run: Any, across: Any, aggregation: str, operation: str
) -> None:
    v = variable(mirrored, [0.0, 2.0, 0.0], aggregation, name="table")
    write = getattr(v, f"scatter_{operation}")
    text = rf"(?s)scatter_{operation}.*'table'.*{aggregation}.*ONLY_FIRST_REPLICA"
    with pytest.raises(NotImplementedError, match=text):
        run(mirrored, lambda: write(slices([1.0], [1])))
    with pytest.raises(NotImplementedError, match=text):
        across(mirrored, lambda: write(slices([1.0], [1])))
    assert components(v) == [[0.0, 2.0, 0.0]] * 2


@pytest.mark.contract(28)
@pytest.mark.parametrize(
    ("operation", "start", "value", "row", "expected"),
    [
        ("min", [0, 2, 0], 1, 1, [0, 1, 0]),
        ("update", [0, 0, 0], 3, 1, [0, 3, 0]),
        ("max", [0, 0, 0], 1, 0, [1, 0, 0]),
        ("add", [0, 2, 0], 1, 1, [0, 3, 0]),
        ("div", [0, 7, 0], 2, 1, [0, 3, 0]),
    ],
)
def test_only_first_replica_takes_replica_0_s_slices(
    mirrored: Any,
    run: Any,
    operation: str,
    start: list[int],
    value: int,
    row: int,
    expected: list[int],
) -> None:
    v = variable(mirrored, start, "ONLY_FIRST_REPLICA")
    write = getattr(v, f"scatter_{operation}")

    def replica_fn() -> Any:
        values = one_per_replica([[value], [77]], v.dtype)
        return write(tf.IndexedSlices(values, one_per_replica([[row], [2]], jnp.int32)))

    run(mirrored, replica_fn)
    assert components(v) == [expected, expected]


@pytest.mark.contract(28)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_none_refuses_slices_inside_replicas(mirrored: Any, run: Any, operation: str) -> None:
    # TensorFlow writes every replica's slices to its own copy, which then differ.
    v = variable(mirrored, [1.0, 2.0], "NONE", name="table")
    write = getattr(v, f"scatter_{operation}")
    with pytest.raises(ValueError, match=r"(?s)'table'.*NONE.*SUM.*MEAN.*ONLY_FIRST_REPLICA"):
        run(mirrored, lambda: write(slices([3.0], [1])))
    assert components(v) == [[1.0, 2.0]] * 2


@pytest.mark.contract(28)
@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add", [1.0, 5.0]),
        ("sub", [1.0, -1.0]),
        ("mul", [1.0, 6.0]),
        ("div", [1.0, 2.0 / 3.0]),
        ("min", [1.0, 2.0]),
        ("max", [1.0, 3.0]),
        ("update", [1.0, 3.0]),
    ],
)
@pytest.mark.parametrize("aggregation", ["NONE", "ONLY_FIRST_REPLICA"])
def test_across_replicas_the_slices_are_written_once(
    mirrored: Any, across: Any, aggregation: str, operation: str, expected: list[float]
) -> None:
    v = variable(mirrored, [1.0, 2.0], aggregation)
    write = getattr(v, f"scatter_{operation}")
    across(mirrored, lambda: write(slices([3.0], [1])))
    assert components(v) == [np.float32(expected).tolist()] * 2


@pytest.mark.contract(27)
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN"])
def test_across_replicas_nothing_is_multiplied_or_divided(
    mirrored: Any, across: Any, aggregation: str
) -> None:
    v = variable(mirrored, [1.0, 2.0], aggregation)
    across(mirrored, lambda: v.scatter_add(slices([3.0], [1])))
    assert components(v) == [[1.0, 5.0]] * 2


@pytest.mark.contract(29)
@pytest.mark.parametrize(
    ("aggregation", "operation"),
    [*(("SUM", name) for name in OPERATIONS), *((name, "add") for name in Aggregation.__members__)],
)
def test_on_read_takes_no_slices(mirrored: Any, run: Any, aggregation: str, operation: str) -> None:
    v = variable(mirrored, [1.0, 2.0], aggregation, name="table", synchronization="on_read")
    write = getattr(v, f"scatter_{operation}")
    with pytest.raises(NotImplementedError, match=rf"(?s)ON_READ.*scatter_{operation}.*'table'"):
        run(mirrored, lambda: write(slices([3.0], [1])))
    with pytest.raises(NotImplementedError, match=rf"(?s)ON_READ.*scatter_{operation}.*'table'"):
        write(slices([3.0], [1]))
    assert components(v) == [[1.0, 2.0]] * 2


@pytest.mark.contract(27, 28, 29)
@pytest.mark.parametrize("kind", ["default", "one_device", "mirrored"])
@pytest.mark.parametrize("aggregation", list(Aggregation.__members__))
@pytest.mark.parametrize("synchronization", ["on_write", "on_read"])
def test_one_replica_writes_its_slices(
    run: Any, kind: str, aggregation: str, synchronization: str
) -> None:
    strategy = {
        "default": tf.distribute.get_strategy,
        "one_device": lambda: tf.distribute.OneDeviceStrategy("cpu:1"),
        "mirrored": lambda: mirrored_strategy(1),
    }[kind]()
    v = variable(strategy, [1.0, 2.0], aggregation, synchronization=synchronization)
    run(strategy, lambda: v.scatter_update(slices([3.0], [1])))
    assert components(v) == [[1.0, 3.0]]


@pytest.mark.contract(27)
def test_a_variable_made_outside_takes_the_slices_of_all_replicas(mirrored: Any, run: Any) -> None:
    v = tf.Variable([0.0, 0.0])
    run(mirrored, lambda: v.scatter_add(slices([1.0], [1])))
    assert np.asarray(v.value).tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (jnp.zeros(2), TypeError, r"(?s)IndexedSlices.*'table'"),
        (slices([1.0, 2.0], [0]), ValueError, r"(?s)\(2,\).*\(1,\).*'table'"),
        (slices([1.0], [2]), ValueError, r"(?s)indices=\[2\].*'table'.*2 rows"),
        (slices([1.0], [-1]), ValueError, r"(?s)indices=\[-1\].*'table'"),
        (slices([1.0], [0.0]), ValueError, r"(?s)integer.*float32.*'table'"),
    ],
)
def test_slices_that_do_not_fit_are_refused(
    mirrored: Any, given: Any, error: type[Exception], text: str
) -> None:
    v = variable(mirrored, [1.0, 2.0], "SUM", name="table")
    for write in (
        lambda: v.scatter_add(given),
        lambda: mirrored.run(lambda: v.scatter_add(given)),
        lambda: mirrored.run(tf.function(lambda: v.scatter_add(given))),
    ):
        with pytest.raises(error, match=text):
            write()
    assert components(v) == [[1.0, 2.0]] * 2


def test_indexed_slices_are_a_nest() -> None:
    doubled = tf.function(lambda s: tf.IndexedSlices(s.values * 2, s.indices))(slices([1.0], [3]))
    assert isinstance(doubled, tf.IndexedSlices)
    assert (doubled.values.tolist(), doubled.indices.tolist()) == ([2.0], [3])
