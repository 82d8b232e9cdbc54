"""Variables that Keras makes, in layers, optimizers and metrics, obey the rules of variables."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from replica_values import (
    components,
    distributed,
    mirrored_strategy,
    one_per_replica,
    per_replica,
    replica_number,
)

every_number_of_replicas = pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])


class Remembers(keras.layers.Layer):
    """A user's layer that keeps a state of some dtype, and says or does not say how it combines."""

    def __init__(self, dtype: str, aggregation: str | None) -> None:
        super().__init__(name="remembers")
        options = {} if aggregation is None else {"aggregation": aggregation}
        self.state = self.add_weight(
            shape=(), initializer="zeros", dtype=dtype, trainable=False, name="state", **options
        )

    def call(self, x: Any) -> Any:
        self.state.assign_add(keras.ops.cast(keras.ops.sum(x), self.state.dtype))
        return x


# Aggregation --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("sum", 4.0), ("mean", 2.5), ("only_first_replica", 2.0)]
)
def test_declared_aggregations_take_effect(
    mirrored: Any, run: Any, aggregation: str, expected: float
) -> None:
    # Keras's own assign_add is assign(self + delta), which would count the old value per replica:
    # 1 + 1 + 1 + 2 = 5 under SUM.
    with mirrored.scope():
        v = keras.Variable(1.0, aggregation=aggregation)
    run(mirrored, lambda: v.assign_add(1 + replica_number()))
    assert components(v) == [expected, expected]
    assert v.distribute_strategy is mirrored


def test_declared_synchronization_takes_effect(mirrored: Any, run: Any) -> None:
    with mirrored.scope():
        v = keras.Variable(0.0, aggregation="sum", synchronization="on_read")
    run(mirrored, lambda: v.assign_add(1 + replica_number()))
    assert components(v) == [1.0, 2.0]
    assert float(v.value) == 3.0


@pytest.mark.parametrize(
    ("dtype", "expected", "name"),
    [("float32", 2.0, "MEAN"), ("int32", 1, "ONLY_FIRST_REPLICA")],
)
def test_state_of_a_user_s_layer_gets_a_safe_aggregation_and_one_warning(
    mirrored: Any, run: Any, dtype: str, expected: float, name: str
) -> None:
    with mirrored.scope():
        layer = Remembers(dtype, aggregation=None)
    x = distributed(mirrored, [1.0], [3.0])
    with pytest.warns(UserWarning, match=rf"(?s)'remembers/state'.*{name}.*aggregation=") as caught:
        run(mirrored, layer, x)
    assert len(caught) == 1
    assert components(layer.state) == [expected, expected]
    run(mirrored, layer, x)  # warnings are errors here
    assert components(layer.state) == [2 * expected, 2 * expected]


@pytest.mark.parametrize(("aggregation", "expected"), [("sum", 4.0), ("mean", 2.0)])
def test_state_of_a_user_s_layer_that_declares_it_is_taken_as_it_is(
    mirrored: Any, run: Any, aggregation: str, expected: float
) -> None:
    with mirrored.scope():
        layer = Remembers("float32", aggregation)
    run(mirrored, layer, distributed(mirrored, [1.0], [3.0]))
    assert components(layer.state) == [expected, expected]


@pytest.mark.contract(9)
def test_a_weight_without_aggregation_refuses_a_replica_s_value(mirrored: Any, run: Any) -> None:
    with mirrored.scope():
        layer = keras.layers.Dense(1, kernel_initializer="ones", name="dense")
        layer.build((None, 1))
    with pytest.raises(ValueError, match=r"(?s)'dense/kernel'.*aggregation='mean', 'sum'"):
        run(mirrored, lambda: layer.kernel.assign(one_per_replica([[[1.0]], [[2.0]]])))
    assert components(layer.kernel) == [[[1.0]]] * 2


@pytest.mark.contract(115)
def test_statistics_of_batch_normalization_are_averaged(mirrored: Any, run: Any) -> None:
    with mirrored.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(
            mirrored,
            lambda x: layer(x, training=True),
            distributed(mirrored, [[0.0], [2.0]], [[10.0], [12.0]]),
        )
    assert components(layer.moving_mean) == [[3.0], [3.0]]
    assert components(layer.moving_variance) == [[1.0], [1.0]]


# Optimizers ---------------------------------------------------------------------------------------


@pytest.mark.case("R3")
@every_number_of_replicas
def test_one_step_is_one_iteration(mirrored: Any, num_replicas: int, run: Any) -> None:
    with mirrored.scope():
        v = tf.Variable(0.0)
        optimizer = tf.keras.optimizers.SGD(0.5)
    run(mirrored, lambda: optimizer.apply_gradients([(1 + replica_number(), v)]))
    assert int(optimizer.iterations.value) == 1
    assert components(optimizer.iterations) == [1] * num_replicas
    assert components(v) == [-0.5 * sum(range(1, num_replicas + 1))] * num_replicas


@pytest.mark.case("R3")
@pytest.mark.parametrize(("aggregation", "expected"), [("SUM", 2), ("ONLY_FIRST_REPLICA", 1)])
def test_what_a_step_counter_counts(
    mirrored: Any, run: Any, aggregation: str, expected: int
) -> None:
    with mirrored.scope():
        step = tf.Variable(0, dtype="int64", aggregation=tf.VariableAggregation[aggregation])
    run(mirrored, lambda: step.assign_add(jnp.asarray(1)))
    assert components(step) == [expected, expected]


@pytest.mark.case("R4")
def test_slots_follow_the_aggregated_gradient(mirrored: Any, run: Any) -> None:
    with mirrored.scope():
        w = tf.Variable(0.0)
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)

    def step() -> None:
        optimizer.apply_gradients([(one_per_replica([1, 3]), w)])

    for velocity, weight in ((-0.4, -0.4), (-0.76, -1.16)):
        run(mirrored, step)
        (momentum,) = optimizer.momentums
        np.testing.assert_allclose(components(momentum), [velocity] * 2, rtol=1e-6)
        np.testing.assert_allclose(components(w), [weight] * 2, rtol=1e-6)


@pytest.mark.case("R11")
def test_an_optimizer_made_outside_follows_its_variables(mirrored: Any, run: Any) -> None:
    with mirrored.scope():
        v = tf.Variable([1.0, 2.0])
    optimizer = tf.keras.optimizers.Adam(0.1)
    run(mirrored, lambda: optimizer.apply_gradients([(jnp.ones(2), v)]))
    for own in optimizer.variables:
        assert own.distribute_strategy is mirrored
        assert [next(iter(value.devices())) for value in own.values] == list(mirrored.devices)
    assert components(v) == [pytest.approx([0.9, 1.9], rel=1e-6)] * 2


@pytest.mark.case("R11")
def test_an_optimizer_made_outside_fits_a_model_made_inside(mirrored: Any) -> None:
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)

    def fitted(strategy: Any) -> Any:
        with strategy.scope():
            model = tf.keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(tf.keras.optimizers.Adam(0.1), "mse")
        model.fit(x, y, batch_size=4, epochs=2, verbose=0)
        return model

    expected = fitted(tf.distribute.get_strategy()).get_weights()
    model = fitted(mirrored)
    for weight, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(weight, value, rtol=1e-5)
    assert all(v.distribute_strategy is mirrored for v in model.optimizer.variables)


# Made in one place and used in another ------------------------------------------------------------


@pytest.mark.case("R8")
@every_number_of_replicas
def test_weights_look_like_keras_s_own(mirrored: Any, num_replicas: int) -> None:
    def weights() -> list[Any]:
        layer = keras.layers.Dense(2, kernel_initializer="ones", name="dense")
        layer.build((None, 3))
        return layer.weights

    plain = weights()
    with mirrored.scope():
        placed = weights()
    for ours, keras_own in zip(placed, plain, strict=True):
        assert isinstance(ours, keras.Variable)
        for name in ("trainable", "dtype", "shape", "name", "path", "ndim"):
            assert getattr(ours, name) == getattr(keras_own, name), name
        for read in (
            lambda v: v.value,
            lambda v: v.numpy(),
            lambda v: v + 1,
            lambda v: v[:1],
            lambda v: v * v,
            np.asarray,
        ):
            np.testing.assert_array_equal(read(ours), read(keras_own))
            assert type(read(ours)) is type(read(keras_own))
        for refused in (len, bool):
            with pytest.raises(TypeError):
                refused(ours)


@pytest.mark.case("R9")
@every_number_of_replicas
def test_gradients_across_replicas(mirrored: Any, num_replicas: int) -> None:
    with mirrored.scope():
        layer = keras.layers.Dense(1, kernel_initializer="ones")
        layer.build((None, 2))
        with tf.GradientTape() as tape:
            loss = keras.ops.sum(layer(jnp.asarray([[1.0, 2.0]])) ** 2)
        kernel, bias = tape.gradient(loss, [layer.kernel, layer.bias])
    assert float(loss) == 9.0
    assert np.asarray(kernel).tolist() == [[6.0], [12.0]]
    assert np.asarray(bias).tolist() == [6.0]


@pytest.mark.case("R10")
def test_a_model_made_outside_joins_the_strategy_that_trains_it(mirrored: Any, run: Any) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    with mirrored.scope():
        optimizer = tf.keras.optimizers.SGD(0.125)

    def train_step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(model(x)[:, 0] ** 2, global_batch_size=2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    losses = run(mirrored, train_step, distributed(mirrored, [[1.0]], [[3.0]]))
    assert per_replica(mirrored, losses) == [0.5, 4.5]
    kernel, bias = model.trainable_variables
    # One device: loss = (w^2 + 9 w^2) / 2, so dw = 10 and, with x = 1 and 3, db = 4.
    assert components(kernel) == [[[-0.25]], [[-0.25]]]
    assert components(bias) == [[-0.5], [-0.5]]
    for variable in [*model.variables, *optimizer.variables]:
        assert variable.distribute_strategy is mirrored


@pytest.mark.case("R10")
def test_a_model_of_another_strategy_is_refused_by_name(mirrored: Any, run: Any) -> None:
    with mirrored_strategy(3).scope():
        layer = keras.layers.Dense(1, name="stray")
        layer.build((None, 1))
    with pytest.raises(RuntimeError, match=r"(?s)[Mm]ixing strategies.*'stray/kernel'"):
        run(mirrored, layer, distributed(mirrored, [[1.0]], [[3.0]]))


@pytest.mark.case("R14")
def test_state_made_before_the_strategy_is_placed_at_first_use(run: Any) -> None:
    metric = keras.metrics.Mean()
    seeds = keras.random.SeedGenerator(3)
    metric.update_state([5.0])
    strategy = mirrored_strategy(2)
    with strategy.scope():
        v = tf.Variable(1.0)
        optimizer = tf.keras.optimizers.SGD(0.5)

    def train_step(x: Any) -> Any:
        noise = keras.random.normal((), seed=seeds)
        metric.update_state(x)
        optimizer.apply_gradients([(keras.ops.sum(x), v)])
        return noise

    noise = per_replica(strategy, run(strategy, train_step, distributed(strategy, [1.0], [3.0])))
    assert noise[0] != noise[1]
    assert float(metric.result()) == 3.0  # of 5, 1 and 3: what it held before counts once
    assert components(v) == [-1.0, -1.0]
    for variable in (*metric.variables, seeds.state):
        assert variable.distribute_strategy is strategy
    metric.reset_state()
    assert float(metric.result()) == 0.0


@pytest.mark.case("R13")
@pytest.mark.parametrize(("num_replicas", "total"), [(2, "16"), (3, "24"), (4, "32")])
def test_the_sum_of_a_plain_number_asks_what_is_meant(
    mirrored: Any, num_replicas: int, total: str
) -> None:
    text = rf"(?s)8\.0 is the same on every replica.*did you mean {total}\.0 or 8\.0"
    with pytest.raises(ValueError, match=text):
        mirrored.reduce("SUM", 8.0, axis=None)
    assert float(mirrored.reduce("MEAN", 8.0, axis=None)) == 8.0


# Randomness ---------------------------------------------------------------------------------------


def _dropped(strategy: Any, run: Any) -> tuple[list[Any], Any]:
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=7)
    masks = run(strategy, lambda: layer(jnp.ones((4, 8)), training=True))
    return per_replica(strategy, masks), layer.seed_generator.state


@pytest.mark.case("R15")
@every_number_of_replicas
def test_dropout_differs_between_replicas_and_not_between_runs(
    mirrored: Any, num_replicas: int, run: Any
) -> None:
    masks, state = _dropped(mirrored, run)
    assert len({str(mask) for mask in masks}) == num_replicas
    again, _ = _dropped(mirrored, run)
    assert again == masks
    eager, _ = _dropped(mirrored, lambda strategy, fn: strategy.run(fn))
    assert eager == masks
    plain = keras.layers.Dropout(0.5, seed=7)
    plain(jnp.ones((4, 8)), training=True)
    assert components(state) == [plain.seed_generator.state.numpy().tolist()] * num_replicas


@pytest.mark.case("R15")
def test_a_model_with_dropout_trains(mirrored: Any) -> None:
    with mirrored.scope():
        model = tf.keras.Sequential(
            [keras.layers.Dense(4), keras.layers.Dropout(0.5, seed=7), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=4, verbose=0)
    state = model.layers[1].seed_generator.state
    before = state.numpy().tolist()
    assert components(state) == [before] * 2
    model.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=4, verbose=0)
    assert state.numpy().tolist() != before
