"""Contract 2.1: which variable results from where it is made and what it declares."""

from __future__ import annotations

import copy
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.errors import ReplicaMismatch, TraceError
from replica_values import components, mirrored_strategy, per_replica, replica_number

Aggregation = tf.VariableAggregation
Synchronization = tf.VariableSynchronization
every_number_of_replicas = pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])


@pytest.mark.contract(1)
@every_number_of_replicas
@pytest.mark.parametrize("declared", ["AUTO", "ON_WRITE", None])
def test_variable_in_scope_has_an_equal_copy_on_every_replica(
    mirrored: Any, num_replicas: int, declared: str | None
) -> None:
    synchronization = declared and Synchronization[declared]
    with mirrored.scope():
        v = tf.Variable(1.0, synchronization=synchronization)
    assert components(v) == [1.0] * num_replicas
    assert v.synchronization is Synchronization.ON_WRITE
    assert v.aggregation is Aggregation.NONE
    assert v.distribute_strategy is mirrored
    placed = [next(iter(value.devices())) for value in v.values]
    assert placed == list(mirrored.devices)
    assert mirrored.experimental_local_results(v) == v.values


@pytest.mark.contract(2)
@every_number_of_replicas
@pytest.mark.parametrize(
    ("synchronization", "given", "expected"),
    [
        (Synchronization.ON_READ, None, False),
        (Synchronization.ON_READ, True, True),
        (Synchronization.ON_READ, False, False),
        (Synchronization.ON_WRITE, None, True),
        (Synchronization.ON_WRITE, False, False),
    ],
)
def test_on_read_is_not_trainable_unless_asked(
    mirrored: Any, num_replicas: int, synchronization: Any, given: bool | None, expected: bool
) -> None:
    with mirrored.scope():
        v = tf.Variable(1.0, trainable=given, synchronization=synchronization)
    assert v.trainable is expected
    assert v.synchronization is synchronization
    assert len(v.values) == num_replicas


@pytest.mark.contract(2)
def test_on_read_is_not_trainable_outside_of_every_scope_either() -> None:
    assert not tf.Variable(1.0, synchronization=Synchronization.ON_READ).trainable


@pytest.mark.contract(3)
@every_number_of_replicas
def test_synchronization_none_is_refused(mirrored: Any, num_replicas: int) -> None:
    with mirrored.scope(), pytest.raises(ValueError, match=r"(?s)NONE.*'unsynced'"):
        tf.Variable(1.0, name="unsynced", synchronization=Synchronization.NONE)


@pytest.mark.contract(3)
def test_synchronization_none_is_refused_inside_run(mirrored: Any) -> None:
    def replica_fn() -> None:
        tf.Variable(1.0, name="unsynced", synchronization=Synchronization.NONE)

    with pytest.raises(ValueError, match=r"(?s)NONE.*'unsynced'"):
        mirrored.run(replica_fn)


@pytest.mark.contract(4)
@pytest.mark.parametrize("in_scope", [True, False])
@pytest.mark.parametrize("argument", ["synchronization", "aggregation"])
@pytest.mark.parametrize("value", ["Invalid", 17])
def test_unknown_declaration_names_value_and_variable(
    mirrored: Any, in_scope: bool, argument: str, value: Any
) -> None:
    strategy = mirrored if in_scope else tf.distribute.get_strategy()
    with strategy.scope(), pytest.raises(ValueError, match=rf"'v'(?s:.*){value}"):
        tf.Variable(1.0, name="v", **{argument: value})


@pytest.mark.contract(5)
@pytest.mark.case("R3")
@every_number_of_replicas
@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
@pytest.mark.parametrize("synchronization", [Synchronization.ON_WRITE, Synchronization.ON_READ])
def test_mean_of_a_dtype_without_fractions_is_refused(
    mirrored: Any, num_replicas: int, dtype: str, synchronization: Any
) -> None:
    with mirrored.scope(), pytest.raises(ValueError, match=rf"(?s)MEAN.*'steps'.*{dtype}"):
        tf.Variable(
            1,
            dtype=dtype,
            name="steps",
            synchronization=synchronization,
            aggregation=Aggregation.MEAN,
        )


@pytest.mark.contract(5)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float16", "bfloat16", "float32"])
def test_mean_of_every_floating_dtype_is_accepted(mirrored: Any, dtype: str) -> None:
    with mirrored.scope():
        v = tf.Variable(1, dtype=dtype, aggregation=Aggregation.MEAN)
    assert components(v) == [1.0, 1.0]
    assert v.dtype == dtype


@pytest.mark.contract(5)
def test_integer_mean_made_outside_is_refused_at_first_use(mirrored: Any) -> None:
    v = tf.Variable(1, dtype="int32", name="steps", aggregation=Aggregation.MEAN)
    with pytest.raises(ValueError, match=r"(?s)MEAN.*'steps'.*int32"):
        mirrored.run(lambda: v.value)
    assert int(v.value) == 1


@pytest.mark.contract(25)
@every_number_of_replicas
@pytest.mark.parametrize("name", [None, "noise"])
def test_random_initial_value_inside_run_is_the_same_everywhere(
    mirrored: Any, num_replicas: int, run: Any, name: str | None
) -> None:
    v = run(mirrored, lambda: tf.Variable(lambda: keras.random.normal((3,)), name=name))
    assert isinstance(v, tf.Variable)
    values = components(v)
    assert values == [values[0]] * num_replicas
    assert len(set(values[0])) == 3


@pytest.mark.contract(25)
def test_initial_value_callable_is_called_once(mirrored: Any) -> None:
    calls = []

    def initial_value() -> Any:
        calls.append(None)
        return np.float32(len(calls))

    with mirrored.scope():
        v = tf.Variable(initial_value)
    assert components(v) == [1.0, 1.0]
    assert len(calls) == 1


@pytest.mark.contract(26)
@every_number_of_replicas
def test_variable_made_inside_run_starts_from_replica_0(mirrored: Any, num_replicas: int) -> None:
    seen = []

    def replica_fn() -> Any:
        v = tf.Variable(replica_number() + 5.0, name="lazy")
        seen.append(v)
        return v

    v = mirrored.run(replica_fn)
    assert all(each is v for each in seen)
    assert len(seen) == num_replicas
    assert components(v) == [5.0] * num_replicas
    assert v.distribute_strategy is mirrored


@pytest.mark.contract(26)
def test_variable_made_inside_a_compiled_run_is_one_variable(
    mirrored: Any, run_compiled: Any
) -> None:
    made: list[Any] = []

    def replica_fn() -> Any:
        if not made:
            made.append(tf.Variable(lambda: jnp.asarray(5.0), aggregation=Aggregation.MEAN))
        return made[0].assign_add(replica_number())

    assert per_replica(mirrored, run_compiled(mirrored, replica_fn)) == [5.5, 5.5]
    assert per_replica(mirrored, run_compiled(mirrored, replica_fn)) == [6.0, 6.0]
    assert components(made[0]) == [6.0, 6.0]
    assert made[0].distribute_strategy is mirrored


@pytest.mark.contract(26)
def test_initial_value_of_a_traced_array_says_what_to_do(mirrored: Any, run_compiled: Any) -> None:
    # TensorFlow refuses it inside tf.function, too: the array has no value yet.
    with pytest.raises(TraceError, match=r"(?s)initial value.*'lazy'.*callable"):
        run_compiled(mirrored, lambda: tf.Variable(replica_number() + 5.0, name="lazy"))


@pytest.mark.contract(26)
def test_replicas_must_make_the_same_variables(mirrored: Any) -> None:
    def replica_fn() -> None:
        name = "foo" if replica_number(jnp.int32) == 0 else "bar"
        tf.Variable(1.0, name=name)

    with pytest.raises(RuntimeError, match=r"(?s)'foo'.*'bar'") as caught:
        mirrored.run(replica_fn)
    assert isinstance(caught.value, ReplicaMismatch)


@pytest.mark.contract(26)
def test_replicas_may_number_the_names_of_their_variables(mirrored: Any) -> None:
    v = mirrored.run(lambda: tf.Variable(1.0, name=f"foo_{replica_number(jnp.int32)}"))
    assert v.name == "foo_0"
    assert components(v) == [1.0, 1.0]


@pytest.mark.contract(33)
@pytest.mark.parametrize("in_scope", [True, False])
@pytest.mark.parametrize("synchronization", [Synchronization.ON_WRITE, Synchronization.ON_READ])
def test_deepcopy_has_the_values_and_the_place_but_not_the_storage(
    mirrored: Any, in_scope: bool, synchronization: Any
) -> None:
    with mirrored.scope():
        v = tf.Variable(1.0, synchronization=synchronization, aggregation=Aggregation.MEAN)
    with (mirrored if in_scope else tf.distribute.get_strategy()).scope():
        copied = copy.deepcopy(v)
    assert components(copied) == components(v) == [1.0, 1.0]
    for old, new in zip(v.values, copied.values, strict=True):
        assert old is not new
        assert old.devices() == new.devices()
    assert copied.distribute_strategy is mirrored
    assert copied.aggregation is Aggregation.MEAN
    assert copied.synchronization is synchronization
    v.assign(2.0)
    assert components(v) == [2.0, 2.0]
    assert components(copied) == [1.0, 1.0]


@pytest.mark.contract(33)
def test_deepcopy_under_another_strategy_is_refused(mirrored: Any) -> None:
    with mirrored.scope():
        v = tf.Variable(1.0, name="owned")
    with mirrored_strategy(3).scope(), pytest.raises(RuntimeError, match=r"(?s)copy.*'owned'"):
        copy.deepcopy(v)


def _single_replica_strategy(kind: str) -> Any:
    if kind == "default":
        return tf.distribute.get_strategy()
    return tf.distribute.OneDeviceStrategy("cpu:1")


@pytest.mark.contract(39)
@pytest.mark.parametrize("kind", ["default", "one_device"])
@pytest.mark.parametrize("aggregation", list(Aggregation))
@pytest.mark.parametrize("synchronization", list(Synchronization))
def test_declarations_are_inert_labels_with_one_replica(
    run: Any, kind: str, aggregation: Any, synchronization: Any
) -> None:
    strategy = _single_replica_strategy(kind)
    with strategy.scope():
        v = tf.Variable(1, dtype="int32", synchronization=synchronization, aggregation=aggregation)
    assert v.aggregation is aggregation
    assert v.synchronization is synchronization
    assert int(run(strategy, lambda: v.assign(jnp.asarray(3)))) == 3
    assert components(v) == [3]
    assert int(run(strategy, lambda: v.assign_add(2))) == 5
    assert int(v.assign_sub(1)) == 4
    assert int(v.value) == 4


@pytest.mark.contract(39)
@pytest.mark.parametrize("aggregation", list(Aggregation))
@pytest.mark.parametrize("synchronization", [Synchronization.ON_WRITE, Synchronization.ON_READ])
def test_one_mirrored_device_aggregates_nothing(
    run: Any, aggregation: Any, synchronization: Any
) -> None:
    strategy = mirrored_strategy(1)
    with strategy.scope():
        v = tf.Variable(1.0, synchronization=synchronization, aggregation=aggregation)
    assert per_replica(strategy, run(strategy, lambda: v.assign(5.0))) == [5.0]
    assert per_replica(strategy, run(strategy, lambda: v.assign_add(jnp.asarray(1.0)))) == [6.0]
    assert components(v) == [6.0]


@pytest.mark.contract(39)
def test_one_device_strategy_places_the_variable() -> None:
    strategy = tf.distribute.OneDeviceStrategy("cpu:1")
    with strategy.scope():
        v = tf.Variable(1.0)
    assert v.values[0].devices() == {strategy.devices[0]}
    strategy.run(lambda: v.assign_add(1.0))
    assert v.values[0].devices() == {strategy.devices[0]}


@pytest.mark.parametrize(
    ("given", "dtype", "expected"),
    [
        (1.5, None, "float32"),
        (1, None, "int32"),
        (True, None, "bool"),
        (1, "float16", "float16"),
        (np.ones((2,), np.float32), None, "float32"),
        (lambda: np.int8(3), None, "int8"),
    ],
)
def test_dtype_is_the_initial_value_s_unless_given(given: Any, dtype: Any, expected: str) -> None:
    assert tf.Variable(given, dtype=dtype).dtype == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "(?s)initial value.*initial_value=None"),
        ({"initial_value": [1.0, 2.0], "shape": (3,)}, r"(?s)shape=\(3,\).*shape \(2,\)"),
    ],
)
def test_bad_initial_value_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        tf.Variable(**arguments)
