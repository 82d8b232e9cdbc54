"""Mistakes are named where they are made: the rule, what was received, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline import errors

if TYPE_CHECKING:
    from collections.abc import Callable

jax.devices()  # the number of devices is fixed from here on
X, Y = np.ones((5, 3), "float32"), np.zeros((5, 1), "float32")


@pytest.fixture
def strategy() -> tf.distribute.MirroredStrategy:
    return tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: tf.distribute.MirroredStrategy("cpu:0"), TypeError, r"devices=\['cpu:0'\]"),
        (lambda: tf.distribute.MirroredStrategy([0]), TypeError, "of type int"),
        (lambda: tf.distribute.MirroredStrategy(["a b"]), ValueError, "named like 'cpu:0'"),
        (lambda: tf.distribute.MirroredStrategy(["cpu:7"]), ValueError, "no device cpu:7"),
        (lambda: tf.distribute.MirroredStrategy(["gpu:0"]), ValueError, "no GPU devices"),
        (lambda: tf.distribute.OneDeviceStrategy("/task:1/cpu:0"), ValueError, "task 0"),
        (lambda: tf.config.set_cpu_devices(0), ValueError, "positive integer"),
        (lambda: tf.config.set_cpu_devices(True), ValueError, "Received: True"),
        (lambda: tf.config.set_cpu_devices(3), RuntimeError, "JAX runs with 4"),
        (lambda: tf.Variable(), ValueError, "needs an initial value"),
        (lambda: tf.Variable(1.0, name="a/b"), ValueError, "cannot contain character `/`"),
        (lambda: tf.Variable([1.0, 2.0], shape=(3,), name="v"), ValueError, r"shape=\(3,\).*'v'"),
        (lambda: tf.Variable(1.0, aggregation="max", name="v"), ValueError, "'v'.*SUM.*'max'"),
        (lambda: tf.Variable(1.0, synchronization=7, name="v"), ValueError, "'v'.*ON_READ.*7"),
        (lambda: tf.Variable([1.0], name="v").assign([1.0, 2.0]), ValueError, "variable's shape"),
        (lambda: tf.distribute.ReduceOp.parse("max"), ValueError, "SUM, MEAN"),
        (lambda: tf.distribute.ReduceOp.parse(1), TypeError, "of type int"),
    ],
)
def test_values(make: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        make()
    assert isinstance(caught.value, errors.PacelineError) or kind is ValueError


def test_a_refused_assignment_writes_nothing() -> None:
    variable = tf.Variable([1.0, 2.0])
    with pytest.raises(
        errors.InvalidArgument, match=r"shape \(1,\) for 'variable' of shape \(2,\)"
    ):
        variable.assign([5.0])
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_values_of_another_strategy(strategy: tf.distribute.MirroredStrategy) -> None:
    three = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])
    value = strategy.run(lambda: jnp.ones(2))
    with pytest.raises(errors.InvalidArgument, match=r"value with 2 parts under .*cpu:2"):
        three.run(lambda x: x, args=(value,))


def test_a_plain_optimizer_in_an_own_loop(strategy: tf.distribute.MirroredStrategy) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.build((None, 3))
        optimizer = keras.optimizers.SGD(1.0)
    weights = model.get_weights()

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = jnp.sum(model(X))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    with pytest.raises(errors.InvalidArgument, match=r"optimizer of plain Keras.*distribute"):
        strategy.run(step)
    assert [w.tolist() for w in model.get_weights()] == [w.tolist() for w in weights]
    strategy.distribute(optimizer)
    strategy.run(step)
    # The gradient of the sum over five ones is five for each weight, on both replicas.
    assert model.get_weights()[0].tolist() == pytest.approx(weights[0] - 10, rel=1e-6)


@pytest.mark.case("R44")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_no_data(strategy: tf.distribute.MirroredStrategy) -> None:
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    for loop in (model.fit, model.evaluate):
        with pytest.raises(errors.InvalidArgument, match=r"at least one batch.*'sequential'"):
            loop(X[:0], Y[:0], verbose=0)
    with pytest.raises(errors.InvalidArgument, match="at least one batch"):
        model.predict(X[:0], verbose=0)


def test_weights_frozen_after_compile(strategy: tf.distribute.MirroredStrategy) -> None:
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    model.layers[0].trainable = False
    with pytest.raises(errors.InvalidArgument, match=r"2 trainable variables.*compile again"):
        model.fit(X, Y, verbose=0)
    frozen = model.layers[0].get_weights()[0]
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    assert model.layers[0].get_weights()[0].tolist() == frozen.tolist()


def test_following_something_else(strategy: tf.distribute.MirroredStrategy) -> None:
    with pytest.raises(TypeError, match=r"keras\.Model"):
        strategy.distribute(keras.layers.Dense(1))


def test_a_collective_under_plain_jit(strategy: tf.distribute.MirroredStrategy) -> None:
    def replica() -> Any:
        context = tf.distribute.get_replica_context()
        return jax.jit(lambda x: context.all_reduce("sum", x))(jnp.ones(2))

    with pytest.raises(Exception, match=r"paceline\.function|lowering|Lowering|all_reduce"):
        strategy.run(replica)
