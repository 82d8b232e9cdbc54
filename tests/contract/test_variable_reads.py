"""Contract 2.2, ON_READ and reads: every replica its own copy, one value across them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from replica_values import components, one_per_replica, per_replica, replica_number

if TYPE_CHECKING:
    from collections.abc import Callable

Aggregation = tf.VariableAggregation
every_number_of_replicas = pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
several_replicas = pytest.mark.parametrize("num_replicas", [2, 3, 4])
every_aggregation = pytest.mark.parametrize("aggregation", list(Aggregation.__members__))

READS: dict[str, Callable[[Any], Any]] = {
    "value": lambda v: v.value,
    "read_value": lambda v: v.read_value(),
    "jnp.asarray": jnp.asarray,
    "convert_to_tensor": keras.ops.convert_to_tensor,
    "operator": lambda v: v + 0,
}


def on_read(strategy: Any, initial_value: Any, aggregation: str, **options: Any) -> Any:
    with strategy.scope():
        return tf.Variable(
            initial_value,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=Aggregation[aggregation],
            **options,
        )


# The value across replicas, and writes there ------------------------------------------------------


@pytest.mark.contract(15)
@every_number_of_replicas
def test_sum_reads_the_sum_and_divides_what_is_assigned(
    mirrored: Any, num_replicas: int, across: Any
) -> None:
    v = on_read(mirrored, 1.0, "SUM")
    assert components(v) == [1.0] * num_replicas
    assert float(across(mirrored, lambda: v.value)) == num_replicas
    assert float(across(mirrored, lambda: v.assign(6.0))) == 6.0
    assert components(v) == [6.0 / num_replicas] * num_replicas
    assert float(across(mirrored, lambda: v.value)) == 6.0
    v.assign(0.0)
    across(mirrored, lambda: v.assign(num_replicas * 1.0))
    assert components(v) == [1.0] * num_replicas


@pytest.mark.contract(16)
@pytest.mark.case("R7")
@several_replicas
@pytest.mark.parametrize("method", ["assign_add", "assign_sub"])
def test_sum_refuses_deltas_across_replicas(
    mirrored: Any, num_replicas: int, across: Any, method: str
) -> None:
    v = on_read(mirrored, 1.0, "SUM", name="total")
    text = rf"(?s){method}.*SUM.*ambiguous.*{method}.*'total'.*assign\("
    with pytest.raises(ValueError, match=text):
        across(mirrored, lambda: getattr(v, method)(1.0))
    assert components(v) == [1.0] * num_replicas


@pytest.mark.contract(17)
@every_number_of_replicas
@pytest.mark.parametrize("aggregation", ["MEAN", "ONLY_FIRST_REPLICA"])
def test_writes_across_replicas_reach_every_copy(
    mirrored: Any, num_replicas: int, across: Any, aggregation: str
) -> None:
    v = on_read(mirrored, 1.0, aggregation)
    assert float(across(mirrored, lambda: v.value)) == 1.0
    assert float(across(mirrored, lambda: v.assign(6.0))) == 6.0
    assert components(v) == [6.0] * num_replicas
    assert float(across(mirrored, lambda: v.assign_add(1.0))) == 7.0
    assert float(across(mirrored, lambda: v.assign_sub(2.0))) == 5.0
    assert components(v) == [5.0] * num_replicas


@pytest.mark.contract(17)
def test_deltas_across_replicas_keep_the_copies_apart(mirrored: Any, run: Any) -> None:
    v = on_read(mirrored, 1.0, "MEAN")
    run(mirrored, lambda: v.assign(one_per_replica([3, 4])))
    v.assign_add(1.0)
    assert components(v) == [4.0, 5.0]


@pytest.mark.contract(18)
@pytest.mark.parametrize(
    ("num_replicas", "read"),
    [*((n, READS["value"]) for n in (1, 3, 4)), *((2, read) for read in READS.values())],
    ids=[*(f"value-{n}" for n in (1, 3, 4)), *(f"{name}-2" for name in READS)],
)
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_replicas_read_their_own_and_the_rest_reads_all(
    mirrored: Any, num_replicas: int, run: Any, aggregation: str, read: Callable[[Any], Any]
) -> None:
    v = on_read(mirrored, 0.0, aggregation)
    total = sum(range(num_replicas))
    expected = {"SUM": total, "MEAN": total / num_replicas, "ONLY_FIRST_REPLICA": 0}[aggregation]

    def replica_fn() -> Any:
        v.assign(replica_number())
        return read(v)

    own = list(range(num_replicas))
    assert per_replica(mirrored, run(mirrored, replica_fn)) == own
    assert per_replica(mirrored, run(mirrored, lambda: read(v))) == own
    assert components(v) == own
    assert float(read(v)) == expected
    assert float(tf.function(lambda: read(v))()) == expected
    with mirrored.scope():
        assert float(read(v)) == expected
    assert float(v.numpy()) == expected
    assert float(np.asarray(v)) == expected


@pytest.mark.contract(18)
def test_a_read_in_merge_call_is_across_replicas(mirrored: Any, run: Any) -> None:
    v = on_read(mirrored, 0.0, "SUM")

    def replica_fn() -> Any:
        v.assign(1 + replica_number())
        context = tf.distribute.get_replica_context()
        return context.merge_call(lambda strategy: v.read_value() * 10) + v.value

    assert per_replica(mirrored, run(mirrored, replica_fn)) == [31.0, 32.0]


@pytest.mark.contract(19)
@several_replicas
def test_none_has_no_value_across_replicas(
    mirrored: Any, num_replicas: int, run: Any, across: Any
) -> None:
    v = on_read(mirrored, 1.0, "NONE", name="local")
    for read in READS.values():
        with pytest.raises(ValueError, match=r"(?s)'local'.*cross-replica.*NONE.*aggregation="):
            across(mirrored, lambda read=read: read(v))
    run(mirrored, lambda: v.assign(3 + replica_number()))
    assert components(v) == [3.0 + i for i in range(num_replicas)]
    assert per_replica(mirrored, run(mirrored, lambda: v + 1)) == [
        4.0 + i for i in range(num_replicas)
    ]


@pytest.mark.contract(19)
@several_replicas
def test_none_can_be_written_across_replicas_without_reading(
    mirrored: Any, num_replicas: int, across: Any
) -> None:
    # TensorFlow writes before it raises.
    v = on_read(mirrored, 1.0, "NONE")
    for method in (v.assign, v.assign_add, v.assign_sub):
        with pytest.raises(ValueError, match=r"(?s)NONE.*read_value=False"):
            across(mirrored, lambda method=method: method(6.0))
        assert components(v) == [1.0] * num_replicas
    across(mirrored, lambda: v.assign(6.0, read_value=False))
    assert components(v) == [6.0] * num_replicas
    across(mirrored, lambda: v.assign_add(1.0, read_value=False))
    assert components(v) == [7.0] * num_replicas


@pytest.mark.contract(20)
def test_only_first_replica_reads_replica_0(mirrored: Any, run: Any) -> None:
    v = on_read(mirrored, 2.0, "ONLY_FIRST_REPLICA")
    run(mirrored, lambda: v.assign_add(5 * (replica_number() + 1)))
    assert components(v) == [7.0, 12.0]
    assert float(v.value) == 7.0


@pytest.mark.contract(20)
def test_only_first_replica_on_write_adds_replica_0_s(mirrored: Any, run: Any) -> None:
    with mirrored.scope():
        v = tf.Variable(3.0, aggregation=Aggregation.ONLY_FIRST_REPLICA)
    run(mirrored, lambda: v.assign_add(7 * (replica_number() + 1)))
    assert components(v) == [10.0, 10.0]


@pytest.mark.case("R5")
@pytest.mark.parametrize(
    ("aggregation", "expected"), [("SUM", 3.0), ("MEAN", 1.5), ("ONLY_FIRST_REPLICA", 1.0)]
)
def test_local_sums(mirrored: Any, run: Any, aggregation: str, expected: float) -> None:
    v = on_read(mirrored, 0.0, aggregation)
    returned = run(mirrored, lambda: v.assign_add(replica_number() + 1))
    assert per_replica(mirrored, returned) == [1.0, 2.0]
    assert float(v.value) == expected


@pytest.mark.contract(15, 17, 19, 20)
@every_aggregation
def test_the_matrix_of_the_contract(mirrored: Any, run: Any, aggregation: str) -> None:
    v = on_read(mirrored, 1.0, aggregation)
    run(mirrored, lambda: v.assign(one_per_replica([3, 4])))
    assert components(v) == [3.0, 4.0]
    run(mirrored, lambda: v.assign_add(one_per_replica([1, 2])))
    assert components(v) == [4.0, 6.0]
    run(mirrored, lambda: v.assign_sub(one_per_replica([1, 2])))
    assert components(v) == [3.0, 4.0]
    run(mirrored, lambda: v.assign(5.0))
    assert components(v) == [5.0, 5.0]


# Operators ----------------------------------------------------------------------------------------


@pytest.mark.contract(21)
def test_operators_read_as_reads_do(mirrored: Any, run: Any, across: Any) -> None:
    v = on_read(mirrored, 0.0, "MEAN")
    run(mirrored, lambda: v.assign(replica_number()))
    assert float(across(mirrored, lambda: v + 1)) == 1.5
    assert per_replica(mirrored, run(mirrored, lambda: v + 1)) == [1.0, 2.0]
    assert per_replica(mirrored, run(mirrored, lambda: 1 - v)) == [1.0, 0.0]


@pytest.mark.contract(31)
@every_number_of_replicas
def test_operators_on_a_mirrored_integer(
    mirrored: Any, num_replicas: int, run: Any, across: Any
) -> None:
    with mirrored.scope():
        v = tf.Variable(1)
    value = across(mirrored, lambda: v + 1)
    assert (int(value), value.dtype) == (2, "int32")
    assert per_replica(mirrored, run(mirrored, lambda: v + 1)) == [2] * num_replicas


@pytest.mark.contract(31)
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_arithmetic_comparison_and_indexing(mirrored: Any, run: Any, synchronization: str) -> None:
    with mirrored.scope():
        v = tf.Variable([3.0, 4.0], synchronization=synchronization, aggregation=Aggregation.MEAN)
    x = np.array([3.0, 4.0], np.float32)
    expressions: list[Callable[[Any], Any]] = [
        lambda a: a + 2, lambda a: 2 + a, lambda a: a - 2, lambda a: 2 - a, lambda a: a * 2,
        lambda a: 2 * a, lambda a: a / 2, lambda a: 2 / a, lambda a: a // 2, lambda a: a % 2,
        lambda a: a**2, lambda a: -a, lambda a: abs(a), lambda a: a @ x, lambda a: a > 3.5,
        lambda a: a <= 3, lambda a: a[1], lambda a: a[::-1], lambda a: a[-1:],
    ]  # fmt: skip
    expected = [np.asarray(expression(x)).tolist() for expression in expressions]
    assert [np.asarray(expression(v)).tolist() for expression in expressions] == expected
    returned = run(mirrored, lambda: [expression(v) for expression in expressions])
    for i in range(2):
        own = [mirrored.experimental_local_results(value)[i] for value in returned]
        assert [np.asarray(value).tolist() for value in own] == expected


def test_numpy_shape_and_text(mirrored: Any) -> None:
    with mirrored.scope():
        v = tf.Variable([3.0, 4.0], name="pair", aggregation=Aggregation.SUM)
    assert v.numpy().tolist() == [3.0, 4.0]
    assert isinstance(v.numpy(), np.ndarray)
    assert (tuple(v.shape), v.ndim, v.dtype) == ((2,), 1, "float32")
    shown = repr(v)
    for text in ("pair", "(2,)", "float32", "ON_WRITE", "SUM", "[3., 4.]"):
        assert text in shown


# Update functions ---------------------------------------------------------------------------------


@pytest.mark.contract(22)
@every_number_of_replicas
@pytest.mark.parametrize("place", ["across", "function", "replicas"])
def test_update_writes_every_component(mirrored: Any, num_replicas: int, place: str) -> None:
    v = on_read(mirrored, 1.0, "SUM")

    def update() -> None:
        mirrored.extended.update(v, lambda component, x: component.assign(x), args=(5.0,))

    calls = {
        "across": update,
        "function": tf.function(update),
        "replicas": lambda: mirrored.run(update),
    }
    calls[place]()
    assert components(v) == [5.0] * num_replicas
    assert float(v.value) == 5.0 * num_replicas


@pytest.mark.contract(32)
@every_aggregation
@pytest.mark.parametrize("place", ["across", "function"])
def test_update_matches_per_replica_values_to_components(
    mirrored: Any, aggregation: str, place: str
) -> None:
    v = on_read(mirrored, 0.0, aggregation)
    value = mirrored.run(lambda: 1 + replica_number())

    def update(fn: Callable[..., Any], *args: Any) -> None:
        def call(*own: Any) -> None:
            mirrored.extended.update(v, fn, args=own)

        if place == "function":
            with mirrored.scope():
                tf.function(call)(*args)
        else:
            call(*args)

    update(lambda component, x: component.assign(x), value)
    assert components(v) == [1.0, 2.0]
    update(lambda component, x: component.assign_add(x), value)
    assert components(v) == [2.0, 4.0]
    update(lambda component, x: component.assign_sub(x), value)
    assert components(v) == [1.0, 2.0]
    update(lambda component: component.assign_add(component.value + component.read_value()))
    assert components(v) == [3.0, 6.0]


@pytest.mark.contract(32)
def test_update_of_integers_keeps_dtype_and_place(mirrored: Any) -> None:
    v = on_read(mirrored, 0, "SUM")
    mirrored.extended.update(v, lambda component, x: component.assign_add(x), args=(jnp.ones(()),))
    assert components(v) == [1, 1]
    assert [value.dtype for value in v.values] == ["int32", "int32"]
    assert [next(iter(value.devices())) for value in v.values] == list(mirrored.devices)


@pytest.mark.contract(32)
@every_aggregation
def test_update_keeps_the_copies_of_a_mirrored_variable_equal(
    mirrored: Any, aggregation: str
) -> None:
    # TensorFlow takes the per-replica value and leaves the copies different.
    with mirrored.scope():
        v = tf.Variable(1.0, name="v", aggregation=Aggregation[aggregation])
    value = mirrored.run(lambda: 1 + replica_number())
    with pytest.raises(ValueError, match=r"(?s)mirrored.*per-replica value.*'v'.*strategy\.reduce"):
        mirrored.extended.update(v, lambda component, x: component.assign(x), args=(value,))
    assert components(v) == [1.0, 1.0]
    mirrored.extended.update(v, lambda component, x: component.assign_add(x), args=(2.0,))
    assert components(v) == [3.0, 3.0]


# Integers -----------------------------------------------------------------------------------------


@pytest.mark.contract(23)
@pytest.mark.case("R6")
@every_number_of_replicas
@pytest.mark.parametrize("total", [7, 6, 0, -7, 1])
def test_an_integer_sum_keeps_its_remainder(
    mirrored: Any, num_replicas: int, across: Any, total: int
) -> None:
    # TensorFlow divides and truncates: 7 on two replicas becomes 3 and 3.
    v = on_read(mirrored, 0, "SUM", dtype="int32")
    across(mirrored, lambda: v.assign(total))
    values = components(v)
    assert sum(values) == total
    assert len(set(values[1:])) <= 1
    assert int(across(mirrored, lambda: v.value)) == total
    assert v.value.dtype == "int32"


@pytest.mark.contract(23)
@pytest.mark.case("R6")
def test_the_remainder_lies_on_replica_0(mirrored: Any) -> None:
    v = on_read(mirrored, 0, "SUM", dtype="int32")
    v.assign(7)
    assert components(v) == [4, 3]


@pytest.mark.case("R6")
def test_a_float_sum_divides(mirrored: Any) -> None:
    v = on_read(mirrored, 0.0, "SUM")
    v.assign(7.0)
    assert components(v) == [3.5, 3.5]
    assert float(v.value) == 7.0
