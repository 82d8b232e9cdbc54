"""Contract 2.2, ON_WRITE: what an assignment means inside replicas and across them."""

from __future__ import annotations

from typing import Any

import jax
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
every_number_of_replicas = pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
several_replicas = pytest.mark.parametrize("num_replicas", [2, 3, 4])


def variable(strategy: Any, initial_value: Any, aggregation: str, **options: Any) -> Any:
    with strategy.scope():
        return tf.Variable(initial_value, aggregation=Aggregation[aggregation], **options)


# Arrays, which differ between replicas ------------------------------------------------------------


@pytest.mark.contract(6)
@every_number_of_replicas
@pytest.mark.parametrize(
    ("method", "start", "sign"),
    [("assign", 0.0, 1), ("assign_add", 1.0, 1), ("assign_sub", 5.0, -1)],
)
def test_mean(
    mirrored: Any, num_replicas: int, run: Any, method: str, start: float, sign: int
) -> None:
    v = variable(mirrored, start, "MEAN")
    expected = start + sign * (num_replicas - 1) / 2
    returned = run(mirrored, lambda: getattr(v, method)(replica_number()))
    assert per_replica(mirrored, returned) == [expected] * num_replicas
    assert components(v) == [expected] * num_replicas
    assert float(v.value) == expected


@pytest.mark.contract(7)
@every_number_of_replicas
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sum(mirrored: Any, num_replicas: int, run: Any, dtype: str) -> None:
    v = variable(mirrored, 1, "SUM", dtype=dtype)
    total = sum(3 + i for i in range(num_replicas))
    run(mirrored, lambda: v.assign(3 + replica_number(dtype)))
    assert components(v) == [total] * num_replicas
    total += sum(1 + i for i in range(num_replicas))
    returned = run(mirrored, lambda: v.assign_add(1 + replica_number(dtype)))
    assert components(v) == [total] * num_replicas
    assert per_replica(mirrored, returned) == [total] * num_replicas
    assert v.values[0].dtype == dtype


@pytest.mark.contract(8)
@every_number_of_replicas
def test_only_first_replica(mirrored: Any, num_replicas: int, run: Any) -> None:
    v = variable(mirrored, 15.0, "ONLY_FIRST_REPLICA")
    run(mirrored, lambda: v.assign(replica_number()))
    assert components(v) == [0.0] * num_replicas


@pytest.mark.contract(8)
@every_number_of_replicas
def test_only_first_replica_counts_once(mirrored: Any, num_replicas: int, run: Any) -> None:
    v = variable(mirrored, 0, "ONLY_FIRST_REPLICA", dtype="int64")
    run(mirrored, lambda: v.assign_add(1))
    assert components(v) == [1] * num_replicas
    assert v.dtype == "int64"


@pytest.mark.contract(9)
@pytest.mark.case("R1")
@several_replicas
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_none_refuses_arrays_and_names_the_choices(
    mirrored: Any, num_replicas: int, run: Any, method: str
) -> None:
    v = variable(mirrored, 1.0, "NONE", name="state")
    text = r"(?s)'state'.*NONE.*SUM.*MEAN.*ONLY_FIRST_REPLICA"
    with pytest.raises(ValueError, match=text):
        run(mirrored, lambda: getattr(v, method)(replica_number()))
    assert components(v) == [1.0] * num_replicas
    assert not tf.distribute.has_strategy()


@pytest.mark.case("R1")
def test_none_says_what_each_choice_would_give(mirrored: Any) -> None:
    v = variable(mirrored, 1.0, "NONE", name="state")
    text = r"(?s)SUM gives 1\.0.*MEAN gives 0\.5.*ONLY_FIRST_REPLICA gives 0\.0"
    with pytest.raises(ValueError, match=text):
        mirrored.run(lambda: v.assign(replica_number()))


@pytest.mark.contract(9)
def test_none_is_per_replica_only_where_replicas_are_several(run: Any) -> None:
    strategy = mirrored_strategy(1)
    v = variable(strategy, 1.0, "NONE")
    run(strategy, lambda: v.assign(3 + replica_number()))
    assert components(v) == [3.0]


@pytest.mark.case("R2")
@pytest.mark.parametrize(
    ("aggregation", "expected"), [("SUM", 3.0), ("MEAN", 1.5), ("ONLY_FIRST_REPLICA", 1.0)]
)
def test_what_each_aggregation_adds(
    mirrored: Any, run: Any, aggregation: str, expected: float
) -> None:
    v = variable(mirrored, 0.0, aggregation)
    run(mirrored, lambda: v.assign_add(replica_number() + 1))
    assert components(v) == [expected, expected]


@pytest.mark.contract(6, 7, 8)
@pytest.mark.parametrize(
    ("aggregation", "assigned", "added"),
    [("SUM", 7.0, 10.0), ("MEAN", 3.5, 5.0), ("ONLY_FIRST_REPLICA", 3.0, 4.0)],
)
def test_the_matrix_of_the_contract(
    mirrored: Any, run: Any, across: Any, aggregation: str, assigned: float, added: float
) -> None:
    v = variable(mirrored, 1.0, aggregation)
    assert float(across(mirrored, lambda: v.value)) == 1.0
    run(mirrored, lambda: v.assign(one_per_replica([3, 4])))
    assert components(v) == [assigned, assigned]
    run(mirrored, lambda: v.assign_add(one_per_replica([1, 2])))
    assert components(v) == [added, added]
    assert per_replica(mirrored, run(mirrored, lambda: v.value)) == [added, added]
    assert float(across(mirrored, lambda: v.value)) == added
    across(mirrored, lambda: v.assign(6.0))
    assert components(v) == [6.0, 6.0]
    across(mirrored, lambda: v.assign_add(1.0))
    assert components(v) == [7.0, 7.0]


@pytest.mark.contract(6)
@several_replicas
def test_arrays_aggregate_elementwise(mirrored: Any, num_replicas: int, run: Any) -> None:
    v = variable(mirrored, [[1.0, 2.0]], "SUM")
    run(mirrored, lambda: v.assign_add(jnp.ones((1, 2)) * replica_number()))
    rest = sum(range(num_replicas))
    assert components(v) == [[[1.0 + rest, 2.0 + rest]]] * num_replicas


@pytest.mark.contract(6)
def test_values_of_a_batch_reach_the_variable(mirrored: Any, run: Any) -> None:
    v = variable(mirrored, 0.0, "MEAN")
    batch = mirrored.experimental_distribute_values_from_function(
        lambda context: jnp.asarray([4.0, 8.0])[context.replica_id_in_sync_group]
    )
    run(mirrored, v.assign_add, batch)
    assert components(v) == [6.0, 6.0]


# Python and NumPy scalars, which are the same on every replica ------------------------------------


@pytest.mark.contract(10)
@several_replicas
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("scalar", [5.0, 5, np.float32(5)])
def test_sum_refuses_a_shared_scalar(
    mirrored: Any, num_replicas: int, run: Any, method: str, scalar: Any
) -> None:
    v = variable(mirrored, 1.0, "SUM", name="total")
    with pytest.raises(ValueError, match=r"(?s)scalar.*5.*'total'.*SUM.*jnp\.asarray"):
        run(mirrored, lambda: getattr(v, method)(scalar))
    assert components(v) == [1.0] * num_replicas


@pytest.mark.contract(10)
@several_replicas
@pytest.mark.parametrize("zero", [0, 0.0, np.float32(0)])
def test_sum_accepts_a_shared_zero(mirrored: Any, num_replicas: int, run: Any, zero: Any) -> None:
    v = variable(mirrored, 1.0, "SUM")
    run(mirrored, lambda: v.assign_add(zero))
    assert components(v) == [1.0] * num_replicas
    run(mirrored, lambda: v.assign(zero))
    assert components(v) == [0.0] * num_replicas


@pytest.mark.contract(10)
@several_replicas
def test_sum_counts_an_array_once_per_replica(mirrored: Any, num_replicas: int, run: Any) -> None:
    v = variable(mirrored, 0.0, "SUM")
    captured = jnp.asarray(5.0)
    run(mirrored, lambda: v.assign(captured))
    assert components(v) == [5.0 * num_replicas] * num_replicas


@pytest.mark.contract(11)
@several_replicas
@pytest.mark.parametrize("aggregation", ["MEAN", "ONLY_FIRST_REPLICA", "NONE"])
@pytest.mark.parametrize(
    ("method", "start", "scalar", "expected"),
    [("assign", 1.0, 5.0, 5.0), ("assign_add", 1.0, 5.0, 6.0), ("assign_sub", 5.0, 1.0, 4.0)],
)
def test_a_shared_scalar_is_used_as_it_is(
    mirrored: Any,
    num_replicas: int,
    run: Any,
    aggregation: str,
    method: str,
    start: float,
    scalar: float,
    expected: float,
) -> None:
    v = variable(mirrored, start, aggregation)
    run(mirrored, lambda: getattr(v, method)(scalar))
    assert components(v) == [expected] * num_replicas


@pytest.mark.contract(24)
@every_number_of_replicas
def test_a_write_is_visible_to_a_later_read_of_the_same_run(
    mirrored: Any, num_replicas: int, run: Any
) -> None:
    v = variable(mirrored, 1.0, "MEAN")

    def replica_fn() -> Any:
        v.assign_add(1.0)
        return v.read_value()

    assert per_replica(mirrored, run(mirrored, replica_fn)) == [2.0] * num_replicas


# Across replicas ----------------------------------------------------------------------------------


@pytest.mark.contract(12)
@every_number_of_replicas
def test_writes_across_replicas(mirrored: Any, num_replicas: int, across: Any) -> None:
    v = variable(mirrored, 1.0, "MEAN")
    assert float(across(mirrored, lambda: v.assign(6.0))) == 6.0
    assert components(v) == [6.0] * num_replicas
    v.assign(1.0)
    assert float(across(mirrored, lambda: v.assign_add(6.0))) == 7.0
    across(mirrored, lambda: v.assign_add(2.0, read_value=False))
    assert components(v) == [9.0] * num_replicas
    v.assign(5.0)
    assert float(across(mirrored, lambda: v.assign_sub(jnp.asarray(2.0)))) == 3.0
    assert components(v) == [3.0] * num_replicas


@pytest.mark.contract(12)
def test_tf_s_arguments_of_assign_are_accepted(mirrored: Any) -> None:
    v = variable(mirrored, 1.0, "MEAN")
    assert float(v.assign(2.0, False, "name", True)) == 2.0
    assert float(v.assign_add(1.0, use_locking=True, name=None, read_value=True)) == 3.0
    assert float(v.assign_sub(1.0, use_locking=False, name="name")) == 2.0


@pytest.mark.contract(13)
@every_number_of_replicas
def test_sum_is_not_multiplied_across_replicas(
    mirrored: Any, num_replicas: int, across: Any
) -> None:
    v = variable(mirrored, 1.0, "SUM")
    across(mirrored, lambda: v.assign(6.0))
    assert components(v) == [6.0] * num_replicas
    across(mirrored, lambda: v.assign_add(1.0))
    assert components(v) == [7.0] * num_replicas


@pytest.mark.contract(14)
@every_number_of_replicas
@pytest.mark.parametrize("aggregation", list(Aggregation.__members__))
def test_writes_outside_of_every_scope_reach_all_copies(
    mirrored: Any, num_replicas: int, aggregation: str
) -> None:
    v = variable(mirrored, 1.0, aggregation)
    v.assign(3.0)
    assert components(v) == [3.0] * num_replicas
    assert not tf.distribute.has_strategy()


@pytest.mark.parametrize("aggregation", list(Aggregation.__members__))
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_a_per_replica_value_across_replicas_is_refused(
    mirrored: Any, across: Any, aggregation: str, synchronization: str
) -> None:
    # TensorFlow takes it and the copies of the "mirrored" variable differ from then on.
    v = variable(mirrored, 1.0, aggregation, name="v", synchronization=synchronization)
    value = mirrored.run(lambda: 2 + replica_number())
    for method in (v.assign, v.assign_add, v.assign_sub):
        with pytest.raises(ValueError, match=r"(?s)per-replica value.*'v'.*strategy\.run"):
            across(mirrored, lambda method=method: method(value))
    assert components(v) == [1.0, 1.0]


def test_a_per_replica_value_captured_by_a_replica_is_refused(mirrored: Any, run: Any) -> None:
    v = variable(mirrored, 1.0, "MEAN", name="v")
    value = mirrored.run(lambda: 2 + replica_number())
    with pytest.raises(ValueError, match=r"(?s)per-replica value.*'v'.*args"):
        run(mirrored, lambda: v.assign(value))
    assert components(v) == [1.0, 1.0]


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_a_wrong_shape_is_refused_before_anything_is_written(
    mirrored: Any, run: Any, across: Any, method: str
) -> None:
    v = variable(mirrored, [1.0, 2.0], "MEAN", name="v")
    write = getattr(v, method)
    text = r"(?s)shape.*\(3,\).*'v'.*\(2,\)"
    with pytest.raises(ValueError, match=text):
        run(mirrored, lambda: write(jnp.zeros(3)))
    with pytest.raises(ValueError, match=text):
        across(mirrored, lambda: write(jnp.zeros(3)))
    assert components(v) == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_values_from_other_devices_can_be_assigned(
    mirrored: Any, run: Any, across: Any, synchronization: str
) -> None:
    v = variable(mirrored, 1.0, "MEAN", synchronization=synchronization)
    other = variable(mirrored, 4.0, "MEAN")
    reduced = mirrored.reduce("SUM", mirrored.run(lambda: 1 + replica_number()), axis=None)
    for value in (other, other.value, reduced, jax.device_put(3.0, mirrored.devices[1])):
        number = float(value)
        across(mirrored, lambda value=value: v.assign(value))
        assert components(v) == [number, number]
        across(mirrored, lambda value=value: v.assign_add(value))
        assert components(v) == [2 * number, 2 * number]
        run(mirrored, lambda value=value: v.assign_sub(value))
        assert components(v) == [number, number]
        run(mirrored, v.assign_add, value)
        assert components(v) == [2 * number, 2 * number]
