"""The cut: what overlapping pushes leave behind, what travels, and what the store computes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.testing.tolerances import EXACT, assert_close
from store_rig import HEAVY, Rig, cut_of, f32, num_bytes, store_primitives

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def rig() -> Rig:
    return Rig()


# The numbers of the issue ----------------------------------------------------------------------


@pytest.mark.parametrize(("order", "mean"), [((0, 1), 2.5), ((1, 0), 2.0)])
def test_batch_statistics_of_overlapping_workers_both_count(
    rig: Rig, order: tuple[int, int], mean: float
) -> None:
    with rig.strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 3))
    step = rig.step(lambda x: layer(x, training=True), np.ones((4, 3), np.float32))
    pushes = [
        rig.compute(step, np.full((4, 3), value, np.float32), worker=worker)
        for worker, value in enumerate((2, 4))
    ]
    rig.apply(*[pushes[k] for k in order])
    assert_close(layer.moving_mean, [mean] * 3)
    assert_close(layer.moving_variance, [0.25] * 3)
    assert store_primitives(step) <= {"mul", "add", "sub"}


def test_two_overlapping_adam_pushes_of_one_make_two_steps(rig: Rig) -> None:
    weight = tf.Variable(0.0)
    adam = tf.keras.optimizers.Adam(0.1, epsilon=1e-12)
    step = rig.step(lambda g: adam.apply([g], [weight]), f32(1))
    rig.overlap(step, (f32(1),), (f32(1),))
    assert_close(weight, -0.2)
    assert int(adam.iterations.numpy()) == 2


def test_only_gradients_travel_for_dense_and_adam(rig: Rig) -> None:
    with rig.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)])
        model.build((None, 8))
    adam = tf.keras.optimizers.Adam()

    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = jnp.mean((model(x) - y) ** 2)
        adam.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    step = rig.step(train, np.ones((32, 8), np.float32), np.ones((32, 4), np.float32))
    cut = cut_of(step)
    assert set(cut.residuals) == set(cut.commits)
    residuals = [cut.flat.avals[slot] for slot in cut.residuals]
    assert num_bytes(residuals) == num_bytes(model.trainable_variables)
    assert not store_primitives(step) & (HEAVY | {"reduce_sum"})
    assert step.examples == 32


# Assignments -----------------------------------------------------------------------------------


def test_what_is_added_travels_as_a_delta(rig: Rig) -> None:
    total, count = tf.Variable(10.0), tf.Variable(0, dtype="int32", trainable=False)

    def add(x: Any) -> None:
        total.assign_add(x * total)  # the delta is computed from the snapshot
        total.assign_sub(1.0)
        count.assign_add(1)

    step = rig.step(add, f32(1))
    rig.overlap(step, (f32(1),), (f32(2),))
    assert_close(total, 10 + 10 - 1 + 20 - 1)
    assert int(count.numpy()) == 2


@pytest.mark.parametrize(("order", "value"), [((0, 1), 5.0), ((1, 0), 7.0)])
def test_a_function_of_the_old_value_is_of_the_value_at_its_turn(
    rig: Rig, order: tuple[int, int], value: float
) -> None:
    variable = tf.Variable(1.0)
    step = rig.step(lambda x, y: variable.assign(variable * x + y), f32(1), f32(1))
    calls = (f32(2), f32(1)), (f32(3), f32(-4))
    pushes = [rig.compute(step, *args, worker=k) for k, args in enumerate(calls)]
    rig.apply(*[pushes[k] for k in order])
    # (1 * 2 + 1) * 3 - 4, and (1 * 3 - 4) * 2 + 1 = -1
    assert_close(variable, value if order == (0, 1) else -1.0)


def test_a_function_of_another_variable_is_of_the_snapshot(rig: Rig) -> None:
    first, second = tf.Variable(1.0), tf.Variable(10.0)

    def swap() -> None:
        old = first.value
        first.assign(second + 0.5)
        second.assign(second + old)

    step = rig.step(swap)
    rig.overlap(step, (), ())
    assert_close(first, 10.5)  # both saw 10
    assert_close(second, 12.0)


def test_an_assignment_without_a_read_is_won_by_the_last_writer(rig: Rig) -> None:
    variable = tf.Variable(f32(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = rig.step(lambda x: variable.assign(x * 2), f32(0, 0))
    rig.overlap(step, (f32(1, 1),), (f32(3, 4),))
    assert_close(variable, [6, 8])


def test_a_variable_of_plain_keras_may_be_written_before_it_is_read(rig: Rig) -> None:
    variable = keras.Variable(1.0)
    step = rig.step(lambda x: variable.assign(x), f32(0))
    rig.overlap(step, (f32(1),), (f32(2),))
    assert_close(variable.value, 2.0)


def test_a_constant_may_be_assigned_and_need_not_travel(rig: Rig) -> None:
    vector, number = tf.Variable(f32(1, 2)), tf.Variable(3, dtype="int32")

    def clear() -> None:
        vector.assign(jnp.zeros(2))
        number.assign(7)

    step = rig.step(clear)
    rig.run(step)
    assert_close(vector, [0, 0])
    assert int(number.numpy()) == 7
    assert cut_of(step).residuals == ()


def test_a_heavy_function_of_the_old_value_is_computed_by_the_worker_with_a_warning(
    rig: Rig,
) -> None:
    matrix = tf.Variable(np.eye(2, dtype=np.float32), name="orthogonal")
    with pytest.warns(UserWarning, match="'orthogonal'.* too heavy for the store") as caught:
        step = rig.step(lambda x: matrix.assign(x @ matrix.value), np.eye(2, dtype=np.float32))
    assert len(caught) == 1
    assert store_primitives(step) == set()
    two, three = 2 * np.eye(2, dtype=np.float32), 3 * np.eye(2, dtype=np.float32)
    rig.overlap(step, (two,), (three,))
    assert_close(matrix, three)


@pytest.mark.parametrize(
    "heavy",
    [
        pytest.param(lambda w, x: x @ w, id="product"),
        pytest.param(jax.checkpoint(lambda w, x: x @ w), id="rematerialized"),
        pytest.param(jax.jit(lambda w, x: x @ w), id="jit"),
        pytest.param(
            lambda w, x: jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x @ w + 1), id="cond"
        ),
        pytest.param(lambda w, x: jax.lax.map(lambda row: row @ w, x), id="scan"),
    ],
)
def test_gradient_descent_by_hand_keeps_all_updates(rig: Rig, heavy: Callable[..., Any]) -> None:
    start = np.arange(6, dtype=np.float32).reshape(3, 2) / 10
    weight = tf.Variable(start)

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(heavy(w, x) ** 2)

    def train(x: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss(weight.value, x)
        weight.assign(weight - 0.01 * tape.gradient(value, weight))

    batches = [np.random.default_rng(k).normal(size=(4, 3)).astype("float32") for k in (0, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = rig.step(train, batches[0])
    assert store_primitives(step) == {"sub"}
    assert step.is_update
    rig.overlap(step, *[(batch,) for batch in batches])
    grads = [jax.grad(loss)(start, batch) for batch in batches]
    assert_close(weight, start - 0.01 * grads[0] - 0.01 * grads[1])


def test_what_grows_to_the_size_of_a_batch_stays_at_the_worker(rig: Rig) -> None:
    weight = tf.Variable(1.0)

    def train(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.mean((weight * x) ** 2)
        weight.assign(weight - 0.1 * tape.gradient(loss, weight))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = rig.step(train, np.ones(2000, np.float32))
    cut = cut_of(step)
    assert num_bytes([cut.flat.avals[slot] for slot in cut.residuals]) <= 16
    rig.overlap(step, (np.ones(2000, np.float32),), (np.ones(2000, np.float32),))
    assert_close(weight, 1 - 0.2 - 0.2)


def test_large_residuals_without_a_light_end_are_left_to_the_last_writer(rig: Rig) -> None:
    weight = tf.Variable(1.0, name="summary")
    with pytest.warns(UserWarning, match="'summary'"):
        step = rig.step(
            lambda x: weight.assign(jnp.max(jnp.sin(weight * x))), np.ones(5000, np.float32)
        )
    cut = cut_of(step)
    assert num_bytes([cut.flat.avals[slot] for slot in cut.residuals]) == 4


def test_a_read_after_a_write_sees_it(rig: Rig) -> None:
    variable, seen = tf.Variable(1.0), tf.Variable(0.0)

    def twice(x: Any) -> Any:
        variable.assign_add(x)
        variable.assign(variable * 2)
        seen.assign(variable.value)
        return variable.value

    step = rig.step(twice, f32(1))
    assert rig.overlap(step, (f32(1),), (f32(3),)) == [4, 8]  # as each worker sees it
    assert_close(variable, ((1 + 1) * 2 + 3) * 2)
    assert_close(seen, variable.value, EXACT)


def test_weights_clipped_after_the_update_are_clipped_at_the_store(rig: Rig) -> None:
    weight = tf.Variable(f32(0.5, -0.5))
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(g: Any) -> None:
        sgd.apply([g], [weight])
        weight.assign(jnp.clip(weight.value, -1, 1))

    step = rig.step(train, f32(0, 0))
    rig.overlap(step, (f32(-0.75, 0.0),), (f32(0.75, -3.0),))
    assert_close(weight, [0.25, 1.0])  # 0.5 + 0.75 was clipped to 1
    assert len(cut_of(step).residuals) == 1


def test_an_average_of_weights_follows_the_weights_at_the_store(rig: Rig) -> None:
    weight, average = tf.Variable(0.0), tf.Variable(0.0, trainable=False)
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(g: Any) -> None:
        sgd.apply([g], [weight])
        average.assign(0.5 * average + 0.5 * weight)

    step = rig.step(train, f32(0))
    rig.overlap(step, (f32(-1),), (f32(-2),))
    assert_close(weight, 3.0)
    assert_close(average, 0.5 * 0.5 + 0.5 * 3)


def test_heavy_work_on_updated_weights_stays_at_the_worker(rig: Rig) -> None:
    weight, norm = tf.Variable(np.eye(2, dtype=np.float32)), tf.Variable(0.0, trainable=False)
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(g: Any) -> None:
        sgd.apply([g], [weight])
        norm.assign(jnp.trace(weight.value @ weight.value))

    eye = np.eye(2, dtype=np.float32)
    step = rig.step(train, eye)
    assert not store_primitives(step) & HEAVY
    rig.overlap(step, (-eye,), (-2 * eye,))
    assert_close(weight, 4 * eye)
    assert_close(norm, 2 * 9)  # of the weights as the second worker left them


def test_weights_overwritten_by_heavy_work_after_the_update_are_named(rig: Rig) -> None:
    weight = tf.Variable(np.eye(2, dtype=np.float32), name="squared")
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(g: Any) -> None:
        sgd.apply([g], [weight])
        weight.assign(weight.value @ weight.value)

    with pytest.warns(UserWarning, match="'squared'"):
        rig.step(train, np.eye(2, dtype=np.float32))


# Seeds and metrics -----------------------------------------------------------------------------


def test_the_first_worker_draws_what_one_device_draws_and_others_differ(rig: Rig) -> None:
    with rig.strategy.scope():
        dropout = keras.layers.Dropout(0.5, seed=3)
    plain = keras.layers.Dropout(0.5, seed=3)
    ones = np.ones((1, 64), np.float32)
    step = rig.step(lambda x: dropout(x, training=True), ones)
    draws = rig.overlap(step, (ones,), (ones,), (ones,))
    assert_close(draws[0], plain(ones, training=True), EXACT)
    assert len({np.asarray(draw).tobytes() for draw in draws}) == 3
    for _ in range(2):
        plain(ones, training=True)
    state = dropout.seed_generator.state
    assert_close(state.value, plain.seed_generator.state.value, EXACT)  # three draws were counted
    again = rig.run(step, ones)
    assert_close(again, plain(ones, training=True), EXACT)
    assert np.asarray(again).tobytes() not in {np.asarray(draw).tobytes() for draw in draws}


def test_several_draws_in_one_step_follow_each_other(rig: Rig) -> None:
    with rig.strategy.scope():
        seeds = keras.random.SeedGenerator(1)
    plain = keras.random.SeedGenerator(1)
    step = rig.step(lambda: [keras.random.uniform((4,), seed=seeds) for _ in range(3)])
    drawn = rig.run(step)
    assert_close(drawn, [keras.random.uniform((4,), seed=plain) for _ in range(3)], EXACT)
    assert_close(seeds.state.value, plain.state.value, EXACT)


@pytest.mark.parametrize("in_scope", [True, False], ids=["in_scope", "outside"])
def test_metrics_count_every_example_of_overlapping_pushes(rig: Rig, in_scope: bool) -> None:
    def make() -> list[Any]:
        return [
            keras.metrics.Mean(),
            keras.metrics.AUC(num_thresholds=11),
            keras.metrics.BinaryAccuracy(),
        ]

    if in_scope:
        with rig.strategy.scope():
            metrics = make()
    else:
        metrics = make()
    plain = make()

    def update(those: list[Any], labels: Any, scores: Any) -> None:
        mean, auc, accuracy = those
        mean.update_state(scores)
        auc.update_state(labels, scores)
        accuracy.update_state(labels, scores)

    rng = np.random.default_rng(0)
    batches = [
        (rng.integers(0, 2, size).astype("float32"), rng.random(size, np.float32))
        for size in (8, 8, 8, 8)
    ]
    step = rig.step(lambda y, p: update(metrics, y, p), *batches[0])
    rig.overlap(step, *batches)
    for batch in batches:
        update(plain, *batch)
    for metric, expected in zip(metrics, plain, strict=True):
        assert_close(metric.result(), expected.result())
    assert_close(metrics[0].count.value, 32.0)


def test_a_step_that_trains_nothing_keeps_no_pace(rig: Rig) -> None:
    with rig.strategy.scope():
        mean = tf.keras.metrics.Mean()
    assert not rig.step(mean.update_state, f32(1)).is_update
    assert not rig.step(lambda x: x + 1, f32(1)).has_writes
