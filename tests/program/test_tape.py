"""GradientTape against jax.grad and friends, eagerly and under jit."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jax_core
from keras.src.backend.common.variables import AutocastScope

from paceline.errors import ContextError, InvalidArgument, InvalidType, Unsupported
from paceline.program.tape import GradientTape, UnconnectedGradients, is_recording, notify_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

X = jnp.arange(1.0, 4.0)
Y = jnp.asarray([0.5, -1.0, 2.0])


class Pair(NamedTuple):
    first: Any
    second: Any


def current_trace() -> Any:
    with jax_core.take_current_trace() as trace:
        return trace


@pytest.fixture(autouse=True)
def trace_restored() -> Iterator[None]:
    """No test may leave a tape behind."""
    before = current_trace()
    yield
    assert current_trace() is before
    assert not is_recording()


def tape_gradient(fn: Callable[[Any], Any], at: Any, **options: Any) -> Any:
    with GradientTape(**options) as tape:
        tape.watch(at)
        result = fn(at)
    return tape.gradient(result, at)


@jax.custom_jvp
def tripled_rule(x: Any) -> Any:
    return jnp.sin(x)


tripled_rule.defjvp(lambda primals, tangents: (tripled_rule(primals[0]), 3 * tangents[0]))


@jax.custom_vjp
def reversed_gradient(x: Any) -> Any:
    return x


reversed_gradient.defvjp(lambda x: (x, None), lambda _, g: (-g,))


@jax.jit
def jitted_tanh(x: Any) -> Any:
    return jnp.tanh(x) * x


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: jnp.sum(x * x * Y + 3 / x - x**1.5),
    "matmul": lambda x: (jnp.outer(x, x) @ x).sum(),
    "norm": jnp.linalg.norm,
    "indexing": lambda x: x[0] * x[1:].sum() + x[jnp.argmax(x)],
    "integers between": lambda x: (x * jnp.take(x, jnp.floor(x).astype(int) % 3)).sum(),
    "scan": lambda x: lax.scan(lambda c, a: (c * jnp.sin(a) + x[0], c), x[1], x)[0],
    "fori": lambda x: lax.fori_loop(0, 4, lambda i, c: c * x[0] + x[1], x[2]),
    "while off the path": lambda x: x.sum() * lax.while_loop(lambda c: c < 9, lambda c: c * 2, 1.0),
    "cond": lambda x: lax.cond(x[0] > 0, lambda: (x * 3).sum(), lambda: x[0]),
    "switch": lambda x: lax.switch(1, [lambda a: a[0], lambda a: a[1] * a[2]], x),
    "checkpoint": lambda x: jax.checkpoint(lambda a: jnp.sin(a) * x)(x * 2).sum(),
    "vmap": lambda x: jax.vmap(lambda a: jnp.sin(a * x).sum())(Y).sum(),
    "grad": lambda x: (jax.grad(lambda a: (a**3).sum())(x) * x).sum(),
    "jit": lambda x: jitted_tanh(x).sum() + jitted_tanh(x * 2).sum(),
    "jit closing over": lambda x: jax.jit(lambda a: (a * x).sum())(Y),
    "jit in jit closing over": lambda x: jax.jit(
        lambda a: a * jax.jit(lambda b: (b * x).sum())(a).sum()
    )(Y).sum(),
    "scan in jit": lambda x: jax.jit(lambda a: lax.scan(lambda c, b: (c * b, None), a[0], a)[0])(x),
    "custom_jvp": lambda x: (tripled_rule(x) * x).sum(),
    "custom_vjp of the identity": lambda x: (reversed_gradient(x) * x).sum(),
    "custom_gradient": lambda x: jax.custom_gradient(lambda a: (a.sum(), lambda g: g * Y))(x),
    "stop_gradient": lambda x: (lax.stop_gradient(x) * x).sum(),
    "stop_gradient in jit": lambda x: (jax.jit(lax.stop_gradient)(x) * x).sum(),
    "identity in jit": lambda x: (jax.jit(lambda a: a)(x) * x).sum(),
    "device_put": lambda x: (jax.device_put(x) * x).sum(),
    "random": lambda x: (x * jax.random.normal(jax.random.key(0), x.shape)).sum(),
    "relu": lambda x: (jax.nn.relu(x - 2) * jax.nn.silu(x)).sum(),
    "keras ops": lambda x: keras.ops.vdot(keras.ops.softmax(x), keras.ops.gelu(x)),
    "shard_map": lambda x: jax.shard_map(
        lambda a: a * lax.psum(a.sum() * x[0] * a, "i"),
        mesh=jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=jax.sharding.PartitionSpec("i"),
        out_specs=jax.sharding.PartitionSpec("i"),
    )(x).sum(),
}


@pytest.mark.parametrize("watch_accessed", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_jax_grad(name: str, watch_accessed: bool) -> None:
    fn = FUNCTIONS[name]
    expected = jax.grad(fn)(X)
    options = {"watch_accessed_variables": watch_accessed}
    np.testing.assert_allclose(tape_gradient(fn, X, **options), expected, rtol=1e-5)
    if watch_accessed:
        compiled = jax.jit(lambda x: tape_gradient(fn, x, **options))
        np.testing.assert_allclose(compiled(X), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "norm",
        "scan",
        "cond",
        "checkpoint",
        "grad",
        "jit closing over",
        "custom_jvp",
        "custom_vjp of the identity",
        "stop_gradient",
        "keras ops",
    ],
)
def test_second_derivative_equals_jax_hessian(name: str) -> None:
    fn = FUNCTIONS[name]

    def hessian(x: Any) -> Any:
        with GradientTape() as outer:
            outer.watch(x)
            with GradientTape() as inner:
                inner.watch(x)
                result = fn(x)
            slope = inner.gradient(result, x)
        return outer.jacobian(slope, x, unconnected_gradients="zero")

    expected = jax.jacrev(jax.grad(fn))(X)
    np.testing.assert_allclose(hessian(X), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(hessian)(X), expected, rtol=1e-4, atol=1e-5)


def test_tape_inside_vmap_and_grad() -> None:
    def fn(x: Any) -> Any:
        return tape_gradient(lambda a: a**3, x)

    np.testing.assert_allclose(jax.vmap(fn)(X), 3 * X**2, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(fn)(jnp.asarray(2.0)), 12.0)


def test_tape_inside_scan_body() -> None:
    def body(w: Any, x: Any) -> tuple[Any, None]:
        return w - 0.1 * tape_gradient(lambda a: (a - x) ** 2, w), None

    expected = 0.0
    for x in np.asarray(X):
        expected -= 0.2 * (expected - x)
    np.testing.assert_allclose(lax.scan(body, 0.0, X)[0], expected, rtol=1e-6)


def test_three_nested_tapes() -> None:
    x = jnp.asarray(2.0)
    with GradientTape() as third:
        third.watch(x)
        with GradientTape() as second:
            second.watch(x)
            with GradientTape() as first:
                first.watch(x)
                y = x**4
            one = first.gradient(y, x)
        two = second.gradient(one, x)
    assert [float(one), float(two), float(third.gradient(two, x))] == [32.0, 48.0, 48.0]


@pytest.mark.parametrize(
    "build",
    [
        lambda a, b: [a, b],
        lambda a, b: (a, b),
        lambda a, b: {"x": a, "nested": [b, {"again": a}]},
        Pair,
        lambda a, b: [Pair(a, [b]), []],
    ],
    ids=["list", "tuple", "dict", "namedtuple", "nested"],
)
def test_structure_of_sources(build: Callable[[Any, Any], Any]) -> None:
    sources = build(X, Y)
    with GradientTape() as tape:
        tape.watch(sources)
        result = (X * X * Y).sum()
    gradients = tape.gradient(result, sources)
    expected = build(2 * X * Y, X * X)
    assert jax.tree.structure(gradients) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, gradients, expected)


def test_several_targets_are_summed_with_output_gradients() -> None:
    with GradientTape(persistent=True) as tape:
        tape.watch(X)
        squares, total = X * X, X.sum()
    targets = {"a": squares, "b": total}
    np.testing.assert_array_equal(tape.gradient(targets, X), 2 * X + 1)
    np.testing.assert_array_equal(tape.gradient([squares, squares], X), 4 * X)
    given = {"a": np.asarray(Y), "b": None}
    np.testing.assert_array_equal(tape.gradient(targets, X, output_gradients=given), 2 * X * Y + 1)


@pytest.mark.parametrize("vectorize", [True, False])
def test_jacobians(vectorize: bool) -> None:
    batch = jnp.arange(6.0).reshape(3, 2) + 1

    def per_example(a: Any) -> Any:
        return jnp.stack([a[..., 0] * a[..., 1], a[..., 0] ** 2, jnp.sin(a[..., 1])], -1)

    with GradientTape(persistent=True) as tape:
        tape.watch([batch, X])
        result = per_example(batch)
        unrelated = X * 2
    full = tape.jacobian(result, [batch, X], experimental_use_pfor=vectorize)
    np.testing.assert_allclose(full[0], jax.jacrev(per_example)(batch), rtol=1e-6)
    assert full[1] is None
    zeros = tape.jacobian(result, X, unconnected_gradients=UnconnectedGradients.ZERO)
    np.testing.assert_array_equal(zeros, np.zeros((3, 3, 3)))
    np.testing.assert_array_equal(tape.jacobian(unrelated, X), 2 * np.eye(3))
    rows = tape.batch_jacobian(result, batch, experimental_use_pfor=vectorize)
    np.testing.assert_allclose(rows, jax.vmap(jax.jacrev(per_example))(batch), rtol=1e-6)
    other = jnp.ones((3, 5))
    assert tape.batch_jacobian(result, other).shape == (3, 3, 5)
    with pytest.warns(UserWarning, match="Received: target of dtype int32"):
        assert tape.jacobian(result.astype(int), batch) is None


def test_unconnected_sources() -> None:
    with GradientTape(persistent=True) as tape:
        tape.watch([X, Y])
        result = (X * 2).sum()
    assert tape.gradient(result, [X, Y])[1] is None
    for zero in ("zero", UnconnectedGradients.ZERO):
        np.testing.assert_array_equal(tape.gradient(result, Y, unconnected_gradients=zero), 0 * Y)
    # Paths that come from elsewhere, or run backwards in time, connect nothing.
    assert tape.gradient(Y, X) is None
    assert tape.gradient(X, result) is None


def test_unwatched_array_and_operations_before_watch() -> None:
    with GradientTape(persistent=True) as tape:
        early = X * X
        tape.watch(X)
        late = X * 3 + early
        result = (late * Y).sum()
    assert tape.gradient(result, Y) is None
    np.testing.assert_array_equal(tape.gradient(result, X), 3 * Y)
    assert tape.gradient(early, X) is None
    np.testing.assert_array_equal(tape.gradient(X, X), 1 + 0 * X)


def test_intermediate_result_as_source_passes_the_gradient_on() -> None:
    with GradientTape(persistent=True) as tape:
        tape.watch(X)
        middle = X * X
        result = middle * middle * X
    both = tape.gradient(result, [X, middle])
    np.testing.assert_allclose(both[0], 5 * X**4)
    np.testing.assert_allclose(both[1], 2 * middle * X)
    np.testing.assert_array_equal(tape.gradient(middle, middle), 1 + 0 * X)


def test_only_watched_intermediate_results_without_accessed_variables() -> None:
    with GradientTape(watch_accessed_variables=False, persistent=True) as tape:
        unwatched = Y * Y
        tape.watch(unwatched)
        result = (unwatched * 3).sum()
        other = X * X
        sums = other.sum()
    np.testing.assert_array_equal(tape.gradient(result, unwatched), 3 + 0 * Y)
    assert tape.gradient(sums, other) is None


def test_stop_recording() -> None:
    with GradientTape() as tape:
        tape.watch(X)
        with tape.stop_recording():
            assert not is_recording()
            hidden = X * X
            same = lax.stop_gradient(X)
        assert is_recording()
        result = (hidden * X + same * X).sum()
    np.testing.assert_array_equal(tape.gradient(result, X), X * X + X)


def test_reset_forgets_what_was_recorded_and_watched() -> None:
    v = keras.Variable(2.0)
    with GradientTape(persistent=True) as tape:
        tape.watch([X, v])
        before = X * 2
        tape.reset()
        assert tape.watched_variables() == ()
        after = X * 3
        tape.watch(X)
        later = (before + after + X).sum()
    np.testing.assert_array_equal(tape.gradient(later, X), 1 + 0 * X)


def test_entering_again_continues_the_record() -> None:
    tape = GradientTape()
    with tape:
        tape.watch(X)
        middle = X * X
    outside = middle * 2
    with tape:
        result = (middle * X + outside).sum()
    np.testing.assert_allclose(tape.gradient(result, X), 3 * X**2)


def test_persistent_gradient_inside_the_block_is_recorded() -> None:
    x = jnp.asarray(3.0)
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        slope = tape.gradient(x**3, x)
    assert float(slope) == 27.0
    assert float(tape.gradient(slope, x)) == 18.0


def test_gradient_inside_the_block_ends_recording_of_a_tape_that_is_not_persistent() -> None:
    with GradientTape() as tape:
        tape.watch(X)
        slope = tape.gradient((X * X).sum(), X)
        assert not is_recording()
        _ = X * X
    np.testing.assert_array_equal(slope, 2 * X)
    with pytest.raises(ContextError, match="computes one set of gradients"):
        tape.gradient(slope, X)


def test_complex_values_follow_tensorflow() -> None:
    z = jnp.asarray([1 + 2j, -0.5 + 1j])
    np.testing.assert_allclose(tape_gradient(lambda a: a * a, z), jnp.conj(2 * z))
    # Of a real result: the direction of steepest ascent.
    np.testing.assert_allclose(tape_gradient(lambda a: jnp.sum(jnp.abs(a) ** 2), z), 2 * z)


# Variables


def test_keras_variables_are_watched_when_trainable() -> None:
    v = keras.Variable(3.0)
    frozen = keras.Variable(4.0, trainable=False)
    with GradientTape() as tape:
        result = v * v * frozen
    gradients = tape.gradient(result, {"v": v, "frozen": frozen})
    assert (float(gradients["v"]), gradients["frozen"]) == (24.0, None)
    with GradientTape() as tape:
        tape.watch(frozen)
        result = v * v * frozen
    assert tape.watched_variables() == (frozen,)
    assert [float(g) for g in tape.gradient(result, [v, frozen])] == [24.0, 9.0]
    assert tape.watched_variables() == (frozen,)
    with GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(frozen)
        result = v * v * frozen
    gradients = tape.gradient(result, [v, frozen])
    assert (gradients[0], float(gradients[1])) == (None, 9.0)


def test_variable_as_target() -> None:
    v = keras.Variable(3.0)
    with GradientTape() as tape:
        tape.watch(v)
    assert float(tape.gradient(v, v)) == 1.0


class NotedVariable(keras.Variable):
    """Tells of its reads and owns a copy of what is assigned, as Paceline's variables do."""

    @property
    def value(self) -> Any:
        notify_read(self, self._value)
        return super().value

    def _direct_assign(self, value: Any) -> None:
        super()._direct_assign(jnp.array(value, copy=True))


@pytest.mark.parametrize("keep", [True, False])
def test_assigned_after_read(keep: bool) -> None:
    v = NotedVariable(3.0)
    with GradientTape() as tape:
        first = v * v
        v.assign(first)
        result = v * v + (first if keep else 0.0)
    assert tape.watched_variables() == (v,)
    # As in TensorFlow: both reads count, and what was assigned has no history.
    assert float(tape.gradient(result, v)) == 18.0 + (6.0 if keep else 0.0)


def test_assigned_after_the_last_read() -> None:
    v = NotedVariable(3.0)
    with GradientTape() as tape:
        result = v * v
        v.assign(100.0)
    v.assign(200.0)
    assert float(tape.gradient(result, v)) == 6.0


def test_variable_target_that_was_assigned() -> None:
    v = NotedVariable(3.0)
    with GradientTape() as tape:
        v.assign(v * 2)
        v.value  # noqa: B018  (a read)
    assert float(tape.gradient(v, v)) == 1.0


def test_notified_reads_of_nested_tapes_and_while_stopped() -> None:
    v, frozen = NotedVariable(3.0), NotedVariable(2.0, trainable=False)
    with GradientTape() as outer:
        with GradientTape() as inner, outer.stop_recording():
            hidden = v * 5.0
            _ = frozen.value
        seen = hidden + v * 2.0
    assert inner.watched_variables() == outer.watched_variables() == (v,)
    assert float(inner.gradient(hidden, v)) == 5.0
    assert float(outer.gradient(seen, v)) == 2.0


def test_mixed_precision_variable() -> None:
    x = jnp.asarray([1.5, 2.5], "bfloat16")
    for make in (keras.Variable, NotedVariable):
        v = make([0.5, 2.0])
        with AutocastScope("bfloat16"), GradientTape() as tape:
            result = keras.ops.sum(v * x)
        gradient = tape.gradient(result, v)
        assert gradient.dtype == "float32"
        np.testing.assert_array_equal(gradient, [1.5, 2.5])


def test_variables_in_a_stateless_scope_under_jit() -> None:
    v = keras.Variable([1.0, 2.0])

    @jax.jit
    def step(value: Any, x: Any) -> Any:
        with keras.StatelessScope(state_mapping=[(v, value)]):
            with GradientTape() as tape:
                result = keras.ops.sum(v * v * x)
            return tape.gradient(result, v)

    np.testing.assert_allclose(step(jnp.asarray([3.0, 4.0]), 10.0), [60.0, 80.0])
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])


def batch_norm_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    model.build((None, 8))
    return model


def network_loss(model: Any, x: Any, y: Any) -> Any:
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))


def network_data() -> tuple[Any, Any, Any, list[Any], list[Any]]:
    model = batch_norm_model()
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(32, 8)), "float32")
    y = jnp.asarray(rng.integers(0, 5, 32))
    # Copies, as the variables' own arrays are read by the tape.
    weights = [jnp.array(v.value, copy=True) for v in model.trainable_variables]
    others = [jnp.array(v.value, copy=True) for v in model.non_trainable_variables]

    def loss(values: list[Any]) -> Any:
        out = model.stateless_call(values, others, x, training=True)[0]
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, out))

    return model, x, y, weights, jax.grad(loss)(weights)


def test_keras_network_eagerly_is_exact() -> None:
    model, x, y, _, expected = network_data()
    with GradientTape() as tape:
        loss = network_loss(model, x, y)
    for gradient, reference in zip(
        tape.gradient(loss, model.trainable_variables), expected, strict=True
    ):
        np.testing.assert_array_equal(gradient, reference)


def test_keras_network_under_jit() -> None:
    model, x, y, weights, expected = network_data()

    @jax.jit
    def step(values: list[Any]) -> Any:
        variables = model.trainable_variables
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            with GradientTape() as tape:
                loss = network_loss(model, x, y)
            return tape.gradient(loss, variables)

    for gradient, reference in zip(step(weights), expected, strict=True):
        np.testing.assert_allclose(gradient, reference, rtol=1e-5, atol=1e-7)


def test_recurrent_layer_eagerly() -> None:
    layer = keras.layers.GRU(4)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)), "float32")
    layer.build(x.shape)
    with GradientTape() as tape:
        loss = keras.ops.sum(layer(x) ** 2)
    gradients = tape.gradient(loss, layer.trainable_variables)
    values = [v.value for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]
    expected = jax.grad(lambda t: (layer.stateless_call(t, others, x)[0] ** 2).sum())(values)
    for gradient, reference in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, reference, rtol=1e-5, atol=1e-6)


# What is kept and what is run


def test_callbacks_and_unneeded_operations_run_once() -> None:
    calls: list[str] = []

    def noted(x: Any, name: str) -> Any:
        jax.debug.callback(lambda: calls.append(name))
        return x * 2

    def fn(x: Any) -> Any:
        inner = jax.jit(lambda a: noted(a, "jit"))(noted(x, "plain"))
        looped = lax.scan(lambda c, _: (noted(c, "scan"), None), inner, None, length=2)[0]
        return lax.cond(x[0] > 0, lambda a: noted(a, "cond"), lambda a: a, looped).sum()

    np.testing.assert_array_equal(tape_gradient(fn, X), 32 + 0 * X)
    jax.effects_barrier()
    assert sorted(calls) == ["cond", "jit", "plain", "scan", "scan"]
    calls.clear()
    np.testing.assert_array_equal(jax.jit(lambda x: tape_gradient(fn, x))(X), 32 + 0 * X)
    jax.effects_barrier()
    assert sorted(calls) == ["cond", "jit", "plain", "scan", "scan"]


def test_only_the_path_is_differentiated() -> None:
    # A while loop has no reverse derivative; off the path it does no harm.
    with GradientTape() as tape:
        tape.watch(X)
        lax.while_loop(lambda c: c[0] < 9, lambda c: c * 2, X)
        before = lax.while_loop(lambda c: c[0] < 9, lambda c: c * 2, Y + 1)
        result = (X * before).sum()
    np.testing.assert_array_equal(tape.gradient(result, X), before)


def test_no_retracing_of_jitted_functions() -> None:
    traced: list[int] = []

    @jax.jit
    def fn(x: Any) -> Any:
        traced.append(1)
        return (x * Y).sum()

    for _ in range(5):
        np.testing.assert_array_equal(tape_gradient(fn, X), Y)
    assert len(traced) == 1


def test_eager_steps_leave_nothing_in_the_caches() -> None:
    def count() -> int:
        gc.collect()
        return sum(isinstance(o, weakref.ReferenceType) for o in gc.get_objects())

    def steps(num: int) -> None:
        for _ in range(num):
            tape_gradient(lambda x: jitted_tanh(x).sum(), X)

    steps(5)
    before = count()
    steps(50)
    assert count() < before + 10


def test_one_object_is_not_mistaken_for_another() -> None:
    # Results die and their ids are used again unless the tape keeps them.
    with GradientTape() as tape:
        tape.watch(X)
        total = jnp.zeros(())
        for i in range(200):
            total = total + (X * float(i)).sum() * 0.5
    np.testing.assert_allclose(tape.gradient(total, X), 0 * X + 199 * 200 / 4)


def test_record_is_released_after_gradient_and_when_dropped() -> None:
    def recorded(**options: Any) -> tuple[GradientTape, Any, Any]:
        with GradientTape(**options) as tape:
            tape.watch(X)
            middle = X * 3
            result = middle.sum()
        return tape, weakref.ref(middle), result

    tape, middle, result = recorded()
    assert middle() is not None
    tape.gradient(result, X)
    gc.collect()
    assert middle() is None
    tape, middle, result = recorded(persistent=True)
    tape.gradient(result, X)
    assert middle() is not None
    del tape
    gc.collect()
    assert middle() is None


def test_trace_is_restored_after_an_exception() -> None:
    before = current_trace()
    tape = GradientTape()
    with pytest.raises(ZeroDivisionError), GradientTape(), tape:  # noqa: PT012
        tape.watch(X)
        with tape.stop_recording():
            raise ZeroDivisionError
    assert current_trace() is before
    assert not is_recording()
    with pytest.raises(ZeroDivisionError):
        jax.jit(lambda x: tape_gradient(lambda a: a / (1 / 0), x))(X)
    assert current_trace() is before
    gone = weakref.ref(tape)
    del tape
    gc.collect()
    assert gone() is None


def test_threads_are_independent() -> None:
    results: dict[int, Any] = {}
    barrier = threading.Barrier(2, timeout=30)
    v = NotedVariable(2.0)

    def work(index: int) -> None:
        with GradientTape() as tape:
            barrier.wait()
            result = v.value ** (index + 2.0)
            barrier.wait()
        results[index] = float(tape.gradient(result, v))

    with GradientTape() as outer:
        threads = [threading.Thread(target=work, args=(i,), name=f"tape-{i}") for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {0: 4.0, 1: 12.0}
    assert outer.watched_variables() == ()


# Mistakes


def test_values_without_gradients_warn_and_give_none() -> None:
    integers = jnp.arange(3)
    with GradientTape(persistent=True) as tape:
        with pytest.warns(UserWarning, match="Received: watched tensor of dtype int32"):
            tape.watch(integers)
        tape.watch(X)
        rounded = X.astype(int)
        result = (X * integers).sum()
    with pytest.warns(UserWarning, match="floating and complex.*Received: target of dtype int32"):
        assert tape.gradient(rounded, X) is None
    with pytest.warns(UserWarning, match="Received: source of dtype int32"):
        gradients = tape.gradient(result, [X, integers], unconnected_gradients="zero")
    np.testing.assert_array_equal(gradients[0], [0.0, 1.0, 2.0])
    assert gradients[1].dtype == integers.dtype
    with pytest.warns(UserWarning, match="Received: target of dtype int32"):
        both = tape.gradient([rounded, result], X)
    np.testing.assert_array_equal(both, [0.0, 1.0, 2.0])


def used_tape() -> GradientTape:
    with GradientTape() as tape:
        tape.watch(X)
        result = X.sum()
    tape.gradient(result, X)
    return tape


def live_tape() -> GradientTape:
    with GradientTape() as tape:
        tape.watch(X)
    return tape


def enter_twice() -> None:
    with GradientTape() as tape:
        tape.__enter__()


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "used twice": (
        lambda: used_tape().gradient(X, X),
        ContextError,
        r"not persistent computes one set of gradients or jacobians\. Received: `gradient` after "
        r"its record was released\. Differentiate .* or use GradientTape\(persistent=True\)\.",
    ),
    "used twice for a jacobian": (
        lambda: used_tape().jacobian(X, X),
        ContextError,
        "Received: `jacobian` after its record was released",
    ),
    "never entered": (
        lambda: GradientTape().gradient(X, X),
        ContextError,
        r"needs a tape that records\. Received: `gradient` on a GradientTape that was never "
        r"entered\. Put the computation into `with paceline\.GradientTape\(\) as tape:`",
    ),
    "watch before entering": (
        lambda: GradientTape().watch(X),
        ContextError,
        "Received: `watch` on a GradientTape that was never entered",
    ),
    "entered twice": (
        enter_twice,
        ContextError,
        r"cannot be entered while it is active\. Received: a second `with`.* Use a new",
    ),
    "stop_recording outside": (
        lambda: live_tape().stop_recording().__enter__(),
        ContextError,
        r"`stop_recording` is called inside the tape's `with` block, while it records\. Received: "
        r"`stop_recording` on a GradientTape that is not recording\. Call it before the block ends",
    ),
    "reset outside": (
        lambda: live_tape().reset(),
        ContextError,
        "Received: `reset` on a GradientTape that is not recording",
    ),
    "sources in the constructor": (
        lambda: GradientTape([X]),  # pyright: ignore[reportArgumentType]
        InvalidType,
        r"takes bools\. Received: persistent=\[.*of type list\. Use persistent=True",
    ),
    "watch numpy": (
        lambda: live_tape().watch(np.ones(3)),
        InvalidType,
        r"works on JAX arrays and Keras variables.*Received: tensor=array\(\[1\., 1\., 1\.\]\) of "
        r"type ndarray\. Convert it once with jax\.numpy\.asarray",
    ),
    "None as a source": (
        lambda: live_tape().gradient(X, [X, None]),
        InvalidType,
        "Received: sources=None of type NoneType",
    ),
    "number as a target": (
        lambda: live_tape().gradient(3.0, X),
        InvalidType,
        "Received: target=3.0 of type float",
    ),
    "unknown unconnected_gradients": (
        lambda: live_tape().gradient(X, X, unconnected_gradients="nothing"),  # pyright: ignore[reportArgumentType]
        InvalidArgument,
        r"UnconnectedGradients\.NONE or \.ZERO.*Received: unconnected_gradients='nothing'\. Use",
    ),
    "number of output gradients": (
        lambda: live_tape().gradient([X, X], X, output_gradients=[X]),
        InvalidArgument,
        r"one element per target\. Received: 1 output gradient\(s\) for 2 target\(s\)\. Use None",
    ),
    "shape of output gradients": (
        lambda: live_tape().gradient(X, X, output_gradients=jnp.ones(())),
        InvalidArgument,
        r"the shape of its target\. Received: shape \(\) for a target of shape \(3,\)\. Broadcast",
    ),
    "batch jacobian of vectors": (
        lambda: live_tape().batch_jacobian(X, X),
        InvalidArgument,
        r"at least two dims.*Received: target\.shape=\(3,\), source\.shape=\(3,\)\. Use `jacobian`",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()


def test_mistakes_leave_the_tape_usable() -> None:
    with GradientTape() as tape:
        tape.watch(X)
        result = (X * X).sum()
    with pytest.raises(InvalidArgument):
        tape.gradient(result, X, output_gradients=[X, X])
    np.testing.assert_array_equal(tape.gradient(result, X), 2 * X)


def test_left_out_of_order() -> None:
    first, second = GradientTape(), GradientTape()
    first.__enter__()
    second.__enter__()
    with pytest.raises(ContextError, match=r"reverse order of entering.*Nest `with` blocks"):
        first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)


def test_array_captured_too_deep() -> None:
    def fn(x: Any) -> Any:
        captured = jax.jit(lambda a: a * x.sum())
        return lax.scan(lambda c, a: (c + captured(a), None), 0.0, Y)[0]

    message = r"jitted function closed over.*Received: such an array inside `scan`\. Pass the array"
    with pytest.raises(Unsupported, match=message):
        tape_gradient(fn, X)
    # Only eagerly: under jit the array is an argument already.
    np.testing.assert_allclose(jax.jit(lambda x: tape_gradient(fn, x))(X), Y.sum() + 0 * X)


def test_notify_read_costs_little_without_a_tape() -> None:
    v = keras.Variable(1.0)
    notify_read(v, v.value)
    with GradientTape() as tape:
        pass
    notify_read(v, v.value)
    assert tape.watched_variables() == ()
