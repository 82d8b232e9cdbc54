"""`paceline.function`: when it traces, what it takes and gives, and what it says when it cannot."""

from __future__ import annotations

import collections
import gc
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.errors import ContextError, TraceError
from paceline.testing import EXACT, assert_close
from replica_values import distributed, mirrored_strategy, per_replica, replica_number


class Pair(NamedTuple):
    first: Any
    second: Any


class MyDict(dict):  # type: ignore[type-arg]
    pass


class MyError(Exception):
    pass


@pytest.fixture
def calls() -> list[Any]:
    """Filled by functions under test: one entry per trace."""
    return []


# Tracing ----------------------------------------------------------------------------------------


def test_a_new_shape_or_dtype_is_traced_and_a_known_one_is_not(calls: list[Any]) -> None:
    @tf.function
    def double(x: Any) -> Any:
        calls.append(x.shape)
        return 2 * x

    for x in (np.float32([1, 2]), jnp.asarray([3.0, 4.0]), np.float32([5, 6])):
        assert_close(double(x), 2 * np.asarray(x), EXACT)
    assert len(calls) == 1
    double(jnp.ones(3))
    assert len(calls) == 2
    assert double(jnp.ones(2, "int32")).dtype == "int32"
    assert len(calls) == double.num_traces == 3
    double(jnp.zeros(3))
    assert len(calls) == 3


@pytest.mark.parametrize("value", [3, 2.5, True, "text", None, (1, "a"), len])
def test_python_values_are_part_of_the_program(calls: list[Any], value: Any) -> None:
    @tf.function
    def step(x: Any, option: Any) -> Any:
        calls.append(option)
        return x

    for _ in range(2):
        step(jnp.ones(2), value)
        step(jnp.ones(2), option=value)
    assert calls == [value, value]  # positional and named are two structures
    step(jnp.ones(2), "another")
    assert calls[2:] == ["another"]


def test_equal_numbers_of_other_types_are_other_values() -> None:
    step = tf.function(lambda x: jnp.asarray(x))
    assert [step(x).dtype for x in (1, 1.0, True)] == ["int32", "float32", "bool"]


def test_zeros_of_two_signs_are_two_values() -> None:
    step = tf.function(lambda x: jnp.copysign(1.0, x))
    assert [step(x) for x in (0.0, -0.0, 0.0)] == [1, -1, 1]
    sign_of_imaginary = tf.function(lambda x: jnp.copysign(1.0, x.imag))
    assert [sign_of_imaginary(complex(0, x)) for x in (0.0, -0.0)] == [1, -1]
    assert step.num_traces == sign_of_imaginary.num_traces == 2


def test_every_nan_is_the_same_value() -> None:
    step = tf.function(lambda x: jnp.asarray(x))
    assert [bool(jnp.isnan(step(float("nan")))) for _ in range(2)] == [True, True]
    assert step.num_traces == 1


def test_a_python_value_decides_a_branch() -> None:
    @tf.function
    def step(x: Any, training: bool) -> Any:
        return -x if training else x

    assert step(jnp.asarray(1.0), True) == -1
    assert step(jnp.asarray(1.0), training=False) == 1


def test_many_traces_are_told() -> None:
    step = tf.function(lambda x, i: x + i)
    for i in range(7):
        step(jnp.ones(()), i)
    with pytest.warns(UserWarning, match=r"traced 8 times.*pass numbers that change as arrays"):
        step(jnp.ones(()), 7)


def test_it_is_a_decorator_with_and_without_arguments() -> None:
    @tf.function(jit_compile=True, reduce_retracing=True)
    def step(x: Any) -> Any:
        """Adds one."""
        return x + 1

    assert step(jnp.asarray(1)) == 2
    assert step.__doc__ == "Adds one."
    assert step.__name__ == "step"
    assert tf.function(step) is step


@pytest.mark.parametrize(
    "nest",
    [
        lambda x: [x, (x, None)],
        lambda x: {"a": x, "b": {"c": [x]}},
        lambda x: Pair(x, {"x": x}),
        lambda x: collections.OrderedDict(b=x, a=x),
        lambda x: MyDict(b=x, a=[x]),
        lambda x: (),
        lambda x: x,
    ],
)
def test_nests_go_in_and_come_out(calls: list[Any], nest: Any) -> None:
    @tf.function
    def step(nest: Any) -> Any:
        calls.append(nest)
        return nest

    for i in (1.0, 2.0):
        result = step(nest(jnp.asarray(i)))
        expected = nest(jnp.asarray(i))
        assert type(result) is type(expected)
        assert repr(result) == repr(expected)
    assert len(calls) == 1


def test_results_that_are_no_arrays_come_back_as_they_are() -> None:
    marker = object()
    step = tf.function(lambda x: {"x": x, "n": 5, "s": "text", "none": None, "o": marker})
    result = step(jnp.ones(()))
    result = step(jnp.ones(()))
    assert (result["n"], result["s"], result["none"]) == (5, "text", None)
    assert result["o"] is marker


def test_methods_trace_once_per_instance(calls: list[Any]) -> None:
    class Trainer:
        def __init__(self, factor: float) -> None:
            self.factor = factor
            self.count = tf.Variable(0)

        @tf.function
        def step(self, x: Any) -> Any:
            calls.append(self.factor)
            self.count.assign_add(1)
            return x * self.factor

    trainers = [Trainer(2.0), Trainer(3.0)]
    for _ in range(2):
        assert [float(t.step(jnp.asarray(1.0))) for t in trainers] == [2, 3]
    assert calls == [2, 3]
    assert [int(t.count.value) for t in trainers] == [2, 2]


def test_an_instance_is_freed_with_its_programs() -> None:
    class Trainer:
        @tf.function
        def step(self, x: Any) -> Any:
            return x + 1

    trainer = Trainer()
    trainer.step(jnp.ones(()))
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


def test_functions_nest(calls: list[Any]) -> None:
    @tf.function
    def inner(x: Any) -> Any:
        calls.append("inner")
        return x * 2

    @tf.function
    def outer(x: Any) -> Any:
        calls.append("outer")
        return inner(x) + inner(x)

    assert outer(jnp.asarray(1.0)) == 4
    assert outer(jnp.asarray(2.0)) == 8
    assert calls == ["outer", "inner", "inner"]


def test_jax_transforms_a_function() -> None:
    square = tf.function(lambda x: x * x)
    assert jax.grad(square)(3.0) == 6
    assert_close(jax.vmap(square)(jnp.arange(3.0)), [0, 1, 4])
    assert jax.jit(square)(3.0) == 9


# Variables --------------------------------------------------------------------------------------


def test_variables_are_read_and_written_without_another_trace(calls: list[Any]) -> None:
    total, factor = tf.Variable(0.0), keras.Variable(2.0)

    @tf.function
    def step(x: Any) -> Any:
        calls.append(1)
        total.assign_add(factor * x)
        return total + 0.0

    assert step(jnp.asarray(1.0)) == 2
    factor.assign(10.0)
    total.assign(100.0)
    assert step(jnp.asarray(1.0)) == 110
    assert float(total.value) == 110
    assert len(calls) == 1


def test_a_variable_argument_is_itself(calls: list[Any]) -> None:
    variables = [tf.Variable(1.0), tf.Variable(2.0)]

    @tf.function
    def add_one(variable: Any) -> Any:
        calls.append(variable)
        return variable.assign_add(1.0)

    for _ in range(2):
        for variable in variables:
            add_one(variable)
    assert [float(v.value) for v in variables] == [3, 4]
    assert len(calls) == 2
    assert all(a is b for a, b in zip(calls, variables, strict=True))


def test_variables_made_on_the_first_call_stay(calls: list[Any]) -> None:
    made: list[Any] = []

    @tf.function
    def step(x: Any) -> Any:
        calls.append(1)
        if not made:
            made.append(tf.Variable(10.0))
        made[0].assign_add(x)
        return made[0] * 1.0

    assert [float(step(jnp.asarray(1.0))) for _ in range(3)] == [11, 12, 13]
    assert float(made[0].value) == 13
    assert len(calls) == 1


def test_layers_build_on_the_first_call() -> None:
    layer = keras.layers.Dense(2, kernel_initializer="ones")
    step = tf.function(lambda x: layer(x))
    for _ in range(2):
        assert_close(step(jnp.ones((1, 3))), [[3, 3]])
    assert layer.built


def test_an_error_in_a_trace_leaves_the_variables_as_they_were() -> None:
    variable = tf.Variable(1.0)

    @tf.function
    def step() -> None:
        variable.assign(5.0)
        raise MyError("mine")

    with pytest.raises(MyError, match="mine"):
        step()
    assert float(variable.value) == 1
    assert not tf.distribute.has_strategy()


# Donation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_replicas", [None, 1, 2])
@pytest.mark.parametrize("sync", ["auto", "on_read"])
def test_arrays_that_the_user_holds_outlive_the_step(num_replicas: int | None, sync: str) -> None:
    given = jnp.asarray([1.0, 2.0])
    strategy = mirrored_strategy(num_replicas) if num_replicas else tf.distribute.get_strategy()
    with strategy.scope():
        variable = tf.Variable(given, synchronization=sync, aggregation="sum")

    @tf.function
    def step() -> Any:
        def add() -> Any:
            variable.assign_add(jnp.ones(2))
            return variable * 1.0

        return strategy.run(add), variable * 1.0

    held: list[tuple[Any, Any]] = [(given, np.asarray(given).copy())]
    for i in range(4):
        result = step()
        taken = [variable.value, variable.numpy(), *variable.values, *jax.tree.leaves(result)]
        if i == 2:
            assigned = jnp.asarray([7.0, 8.0])
            variable.assign(assigned)
            taken += [assigned, variable.value]
        held += [(array, np.array(array)) for array in taken]
    for array, copy in held:
        np.testing.assert_array_equal(np.asarray(array), copy)


def test_two_variables_may_start_from_one_array() -> None:
    array = jnp.zeros(2)
    first, second = tf.Variable(array), keras.Variable(array)

    @tf.function
    def step() -> None:
        first.assign_add(jnp.ones(2))
        second.assign_add(jnp.ones(2))

    for _ in range(3):
        step()
    second.assign(first.value)
    step()
    assert_close([first.value, second.value, array], [[4, 4], [4, 4], [0, 0]], EXACT)


# What cannot be traced --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda x: 1 if x > 0 else 2,
        lambda x: not x,
        lambda x: (x > 0) and 1,
        lambda x: next(x for _ in iter(int, 1) if x),
    ],
)
def test_a_python_condition_on_an_array_is_explained(use: Any) -> None:
    with pytest.raises(TraceError, match=r"a Python condition.*jnp\.where, jax\.lax\.cond"):
        tf.function(use)(jnp.asarray(1.0))


@pytest.mark.parametrize("use", [float, int, np.asarray, lambda x: [1, 2][x], lambda x: range(x)])
def test_a_number_that_python_needs_is_explained(use: Any) -> None:
    with pytest.raises(TypeError, match=r"needs the number behind a traced array") as caught:
        tf.function(use)(jnp.asarray(1))
    assert isinstance(caught.value, TraceError)
    assert caught.value.__cause__ is not None


def test_a_condition_on_a_variable_is_explained() -> None:
    variable = tf.Variable(1.0)
    with pytest.raises(TraceError, match="a Python condition"):
        tf.function(lambda: 1 if variable > 0 else 2)()


def test_a_value_kept_from_an_earlier_call_is_explained() -> None:
    kept: list[Any] = []
    tf.function(lambda x: kept.append(x))(jnp.ones(2))
    with pytest.raises(TraceError, match=r"kept by an earlier call.*side effect"):
        tf.function(lambda x: x + kept[0])(jnp.ones(2))


@pytest.mark.parametrize("inside_run", [False, True])
@pytest.mark.parametrize("form", ["cond", "scan", "while_loop", "fori_loop", "vmap", "grad"])
def test_an_assignment_that_cannot_leave_is_explained(form: str, inside_run: bool) -> None:
    mirrored = mirrored_strategy(2)
    variable = tf.Variable(0.0, aggregation="sum", name="counter")

    def assign(x: Any) -> Any:
        variable.assign(jnp.sum(jnp.asarray(x, jnp.float32)))
        return x

    forms = {
        "cond": lambda x: jax.lax.cond(x[0] > 0, assign, lambda x: x, x),
        "scan": lambda x: jax.lax.scan(lambda c, y: (assign(c), y), x[0], x),
        "while_loop": lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: assign(c + 1), x),
        "fori_loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: assign(c), x),
        "vmap": lambda x: jax.vmap(assign)(x),
        "grad": lambda x: jax.grad(lambda y: assign(y).sum())(x),
    }
    fn = forms[form]
    step = tf.function(lambda x: mirrored.run(fn, args=(x,)) if inside_run else fn(x))
    with pytest.raises(TraceError, match=r"cannot leave.*'counter'.*assign it outside"):
        step(jnp.ones(2))
    assert float(variable.value) == 0


def test_a_variable_is_read_inside_control_flow() -> None:
    variable = tf.Variable(2.0)

    @tf.function
    def power() -> Any:
        return jax.lax.scan(lambda c, _: (c * variable, None), jnp.asarray(1.0), None, length=3)[0]

    assert power() == 8
    variable.assign(3.0)
    assert power() == 27


def test_errors_of_user_code_surface_unchanged() -> None:
    for error in (MyError("mine"), TypeError("mine"), ValueError("mine"), KeyError("mine")):

        @tf.function
        def fail(x: Any, error: Any = error) -> Any:
            raise error

        with pytest.raises(type(error), match="mine") as caught:
            fail(jnp.ones(2))
        assert caught.value is error


def test_shape_errors_of_jax_surface_unchanged() -> None:
    with pytest.raises(TypeError, match="incompatible shapes") as caught:
        tf.function(lambda x: x + jnp.ones(3))(jnp.ones(2))
    assert not isinstance(caught.value, TraceError)


def test_a_collective_outside_of_run_says_where_it_belongs() -> None:
    kept: list[Any] = []
    mirrored_strategy(2).run(lambda: kept.append(tf.distribute.get_replica_context()))
    with pytest.raises(ContextError, match=r"only inside strategy\.run"):
        tf.function(lambda: kept[0].all_reduce("sum", jnp.ones(())))()


# With strategies --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_around_run_it_traces_once_for_all_replicas(calls: list[Any], num_replicas: int) -> None:
    mirrored = mirrored_strategy(num_replicas)

    @tf.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            calls.append(1)
            return x * 2 + replica_number()

        return mirrored.reduce("sum", mirrored.run(replica_fn, args=(x,)), axis=None)

    ids = range(num_replicas)
    for scale in (1.0, 2.0):
        x = distributed(mirrored, *[scale * i for i in ids])
        assert step(x) == sum((2 * scale + 1) * i for i in ids)
        with mirrored.scope():
            assert step(x) == sum((2 * scale + 1) * i for i in ids)
    assert len(calls) == 2  # inside and outside the scope


def test_inside_run_it_sees_each_replicas_values() -> None:
    mirrored = mirrored_strategy(2)
    with mirrored.scope():
        total = tf.Variable(0.0, aggregation="sum")

    @tf.function
    def inner(x: Any) -> Any:
        total.assign_add(x)
        return x * 10 + replica_number()

    def outer(x: Any) -> Any:
        return inner(x + 1) + 100

    result = mirrored.run(outer, args=(distributed(mirrored, 1.0, 2.0),))
    assert per_replica(mirrored, result) == [120, 131]
    assert float(total.value) == 5


def test_run_of_a_function_traces_once_per_shape(calls: list[Any]) -> None:
    mirrored = mirrored_strategy(2)

    @tf.function
    def step(x: Any) -> Any:
        calls.append(x.shape)
        return x.sum()

    for _ in range(2):
        mirrored.run(step, args=(distributed(mirrored, np.ones(3), np.ones(3)),))
    assert calls == [(3,)]
    for _ in range(2):  # a short batch: once per local size, in one program
        mirrored.run(step, args=(distributed(mirrored, np.ones(3), np.ones(2)),))
    assert calls == [(3,), (3,), (2,)]


def test_one_function_serves_several_strategies() -> None:
    @tf.function
    def count() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", jnp.asarray(1.0))

    for num_replicas in (2, 3, 2):
        strategy = mirrored_strategy(num_replicas)
        assert per_replica(strategy, strategy.run(count)) == [num_replicas] * num_replicas
    assert count() == 1


def test_variables_made_inside_a_compiled_run_belong_to_the_strategy() -> None:
    mirrored = mirrored_strategy(2)
    made: list[Any] = []

    @tf.function
    def step() -> Any:
        if not made:
            made.append(tf.Variable(1.0, aggregation="sum"))
        made[0].assign_add(replica_number() + 1)
        return made[0] * 1.0

    for total in (4, 7):
        assert per_replica(mirrored, mirrored.run(step)) == [total, total]
    assert len(made[0].values) == 2
    assert mirrored.extended.variable_created_in_scope(made[0])


def test_a_tape_sees_numpy_arrays_times_variables() -> None:
    variable = tf.Variable([[1.0], [2.0]])
    with tf.GradientTape() as tape:
        loss = jnp.sum(np.float32([[3, 4]]) @ variable) + jnp.sum(np.float32(1) * variable)
    assert_close(tape.gradient(loss, variable), [[4], [5]])


@pytest.mark.parametrize("kind", ["one device", "mirrored", "workers"])
def test_closed_over_arrays_are_those_of_the_trace(kind: str) -> None:
    """As in TensorFlow, and the same ones for all replicas and workers, whatever comes later."""
    constant = np.ones(3, "float32")

    def body(x: Any) -> Any:
        return x + jnp.max(constant) + jax.jit(lambda: jnp.sum(constant))()

    if kind == "workers":
        cluster = tf.cluster.Local(2, devices=["cpu:0", "cpu:1"])
        strategy = tf.distribute.ParameterServerStrategy(cluster=cluster)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        step = tf.function(body)

        def results() -> list[Any]:
            works = [coordinator.schedule(step, args=(np.float32(0),)) for _ in range(6)]
            return [work.fetch() for work in works]
    else:
        strategy = mirrored_strategy(2) if kind == "mirrored" else tf.distribute.get_strategy()
        step = tf.function(lambda x: strategy.run(body, args=(x,)))

        def results() -> list[Any]:
            return list(strategy.experimental_local_results(step(np.float32(0))))

    before = results()
    constant[...] = 5
    for value in (*before, *results()):
        assert_close(value, np.float32(4))
