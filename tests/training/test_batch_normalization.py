"""BatchNormalization on replicas: pooled statistics, or local ones combined by examples."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import linear, mirrored, train_both
from paceline.testing import GOLDEN, assert_close


def trained_on(parts: list[Any], compiled: bool = True, **options: Any) -> tuple[Any, Any]:
    """A layer called for training on a part per replica; returns it and the outputs."""
    strategy = mirrored(len(parts))
    with strategy.scope():
        layer = tf.keras.layers.BatchNormalization(**options)
        layer.build((None, 1))
    values = strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(parts[ctx.replica_id_in_sync_group], "float32").reshape(-1, 1)
    )

    def step(values: Any) -> Any:
        return strategy.run(lambda x: layer(x, training=True), args=(values,))

    outputs = (tf.function(step) if compiled else step)(values)
    for statistic in (layer.moving_mean, layer.moving_variance):
        for copy in statistic.values:
            assert_close(copy, statistic)
    return layer, outputs


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.contract(115)
@pytest.mark.case("R55")
def test_local_statistics_are_averaged(compiled: bool) -> None:
    layer, _ = trained_on([[0, 2], [10, 12]], compiled, momentum=0.5)
    assert_close(layer.moving_mean, [3.0])
    layer, _ = trained_on([[1, 1], [3, 3]], compiled, momentum=0.9)
    assert_close(layer.moving_mean, [0.2])


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.contract(115)
@pytest.mark.case("R57")
def test_synchronized_statistics_are_pooled(compiled: bool) -> None:
    layer, _ = trained_on([[0, 2], [10, 12]], compiled, momentum=0.5, synchronized=True)
    assert_close(layer.moving_mean, [3.0])
    assert_close(layer.moving_variance, [13.5])
    layer, outputs = trained_on(
        [[1, 3, 5], [7]], compiled, momentum=0.0, epsilon=0.0, synchronized=True
    )
    assert_close(layer.moving_mean, [4.0])
    assert_close(layer.moving_variance, [5.0])
    pooled = np.concatenate([np.asarray(value) for value in outputs.values])
    assert_close(pooled, (np.float32([[1], [3], [5], [7]]) - 4) / np.float32(5**0.5))


@pytest.mark.case("R41")
@pytest.mark.parametrize("synchronized", [True, False])
def test_an_empty_replica_contributes_nothing(synchronized: bool) -> None:
    layer, _ = trained_on([[4], []], momentum=0.5, synchronized=synchronized)
    assert_close(layer.moving_mean, [2.0])
    assert_close(layer.moving_variance, [0.5])


def test_uneven_local_statistics_are_weighted() -> None:
    layer, _ = trained_on([[1, 1, 1], [5]], momentum=0.0)
    assert_close(layer.moving_mean, [2.0])


def test_a_large_mean_costs_no_digits() -> None:
    rng = np.random.default_rng(0)
    x = (256 + rng.normal(size=8)).astype("float32")
    layer, _ = trained_on([x[:4], x[4:]], momentum=0.0, synchronized=True)
    assert_close(layer.moving_variance, [np.var(x.astype("float64"))], GOLDEN)


@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.parametrize("is_masked", [False, True])
def test_synchronized_training_equals_one_device(num_replicas: int, is_masked: bool) -> None:
    def build(k: Any) -> Any:
        norm = tf.keras.layers.BatchNormalization if k is tf.keras else k.layers.BatchNormalization
        options = {"synchronized": True} if k is tf.keras else {}
        layers = [k.layers.Masking()] if is_masked else []
        layers += [norm(momentum=0.8, **options), k.layers.Dense(1, kernel_initializer="ones")]
        return k.Sequential([k.Input((2, 2)), *layers])

    x = np.random.default_rng(0).normal(size=(9, 2, 2)).astype("float32")
    if is_masked:
        x[::2, 1] = 0
    y = x.sum(-1, keepdims=True)
    # Batches of 4, 4 and 1: the last one leaves replicas empty.
    plain, model, expected, actual = train_both(
        build,
        num_replicas,
        (x, y),
        compile_args=lambda k: {"optimizer": k.optimizers.SGD(0.1), "loss": "mse"},
        batch_size=4,
    )
    assert_close(actual, expected, GOLDEN)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)


@pytest.mark.parametrize("num_replicas", [2, 3])
def test_gradients_reach_layers_before_it_with_empty_replicas(num_replicas: int) -> None:
    def build(k: Any) -> Any:
        keras.utils.set_random_seed(0)
        options = {"synchronized": True} if k is tf.keras else {}
        norm = k.layers.BatchNormalization(**options)
        first = k.layers.Dense(2)
        return k.Sequential([k.Input((2,)), first, norm, *linear(k, 2).layers])

    x = np.random.default_rng(0).normal(size=(9, 2)).astype("float32")
    plain, model, expected, actual = train_both(
        build,
        num_replicas,
        (x, x.sum(-1, keepdims=True)),
        compile_args=lambda k: {"optimizer": k.optimizers.SGD(0.1), "loss": "mse"},
        batch_size=4,
    )
    assert_close(actual, expected, GOLDEN)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)


def test_gradients_flow_through_the_pooled_moments() -> None:
    x = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    plain = keras.layers.BatchNormalization()
    plain.build((None, 2))
    target = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])

    def plain_loss(x: Any) -> Any:
        state = [v.value for v in plain.non_trainable_variables]
        out, _ = plain.stateless_call(
            [v.value for v in plain.trainable_variables], state, x, training=True
        )
        return jnp.mean((out - target) ** 2)

    strategy = mirrored(2)
    with strategy.scope():
        layer = tf.keras.layers.BatchNormalization(synchronized=True)
        layer.build((None, 2))

    @tf.function
    def step(batch: Any) -> Any:
        def replica_fn(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.nn.compute_average_loss((layer(x, training=True) - y) ** 2) / 2
            return tape.gradient(loss, x)

        return strategy.run(replica_fn, args=batch)

    batch = next(iter(strategy.experimental_distribute_dataset([(x, target)])))
    gradient = np.concatenate([np.asarray(g) for g in step(batch).values])
    assert_close(gradient, jax.grad(plain_loss)(x), GOLDEN)


@pytest.mark.case("R41")
def test_local_statistics_in_fit_stay_finite() -> None:
    with mirrored(2).scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((1,)), tf.keras.layers.BatchNormalization(), *linear(tf.keras).layers]
        )
        model.compile("sgd", "mse")
    x = np.arange(5, dtype="float32")[:, None]
    history = model.fit(x, x, batch_size=4, verbose=0).history
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert np.isfinite(history["loss"]).all()


def test_without_replicas_it_is_keras() -> None:
    x = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    ours = tf.keras.layers.BatchNormalization(synchronized=True)
    plain = keras.layers.BatchNormalization()
    assert_close(ours(x, training=True), plain(x, training=True))
    assert ours.get_config()["synchronized"] is True
    assert ours.name == "batch_normalization"
