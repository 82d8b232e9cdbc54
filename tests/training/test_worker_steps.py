"""Training steps of models in two halves: Keras's own, users' of both forms, lazily made state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.testing.tolerances import GOLDEN, assert_close
from paceline.training.message_runner import MessageRunner
from store_rig import HEAVY, Rig, cut_of, num_bytes, store_primitives

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.steps import Step


@pytest.fixture
def rig() -> Rig:
    return Rig()


def batches(count: int, size: int = 8) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [
        tuple(rng.normal(size=(size, width)).astype("float32") for width in (4, 3))
        for _ in range(count)
    ]


def training_step(rig: Rig, model: Any, batch: Any) -> Step:
    """What fit has a worker run for each batch."""
    model._symbolic_build(data_batch=batch)  # as Keras's fit does
    runner = MessageRunner(model, "train", rig.strategy)
    return rig.step(runner.one_step.python_function, batch)


# The forms of a train_step ---------------------------------------------------------------------


def keras_form(k: Any) -> Any:
    return k.Sequential([k.layers.Dense(3)])


def tensorflow_form(k: Any) -> Any:
    class Own(k.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = k.layers.Dense(3)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
                scaled = self.optimizer.scale_loss(loss)
            weights = self.trainable_variables
            grads = tape.gradient(scaled, weights)
            self.optimizer.apply_gradients(zip(grads, weights, strict=True))
            for metric in self.metrics:
                metric.update_state(loss) if metric.name == "loss" else None
            return {metric.name: metric.result() for metric in self.metrics}

    return Own()


def jax_form(k: Any) -> Any:
    class Own(k.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = k.layers.Dense(3)
            self.mean = k.metrics.Mean(name="mean")

        def call(self, x: Any, training: bool = False) -> Any:
            return self.dense(x)

        def train_step(self, state: Any, data: Any) -> Any:
            trainable, other, own, metrics = state
            x, y = data

            def compute(values: Any) -> Any:
                outputs, new = self.stateless_call(values, other, x, training=True)
                loss = jnp.mean((outputs - y) ** 2)
                return self.optimizer.scale_loss(loss), (loss, new)

            (_, (loss, other)), grads = jax.value_and_grad(compute, has_aux=True)(trainable)
            trainable, own = self.optimizer.stateless_apply(own, grads, trainable)
            place = [id(v) for v in self.metrics_variables].index(id(self.mean.variables[0]))
            new = self.mean.stateless_update_state(metrics[place : place + 2], loss)
            metrics = [*metrics[:place], *new, *metrics[place + 2 :]]
            return {"mean": loss}, (trainable, other, own, metrics)

    return Own()


FORMS = {"keras": keras_form, "tensorflow": tensorflow_form, "jax": jax_form}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda k: k.optimizers.SGD(0.1),
    "adamw": lambda k: k.optimizers.AdamW(0.1),
    "scaled": lambda k: k.optimizers.LossScaleOptimizer(k.optimizers.Adam(0.1), initial_scale=2),
    "accumulating": lambda k: k.optimizers.Adam(0.1, gradient_accumulation_steps=2),
}


class Reference:
    """The same model in plain Keras, with the gradients of overlapping workers by jax.grad."""

    def __init__(self, model: Any, optimizer: Any, batch: Any) -> None:
        self.model = model
        model.compile(optimizer=optimizer, loss="mse")
        model._symbolic_build(data_batch=batch)

    @property
    def state(self) -> list[Any]:
        return [np.asarray(v.value) for v in (*self.model.weights, *self.model.optimizer.variables)]

    def gradients(self, x: Any, y: Any) -> list[Any]:
        optimizer = self.model.optimizer

        def loss(values: Any) -> Any:
            outputs, _ = self.model.stateless_call(values, [], x)
            value = jnp.mean((outputs - y) ** 2)
            return optimizer.scale_loss(value)

        return jax.grad(loss)([v.value for v in self.model.trainable_variables])

    def apply(self, grads: list[Any]) -> None:
        optimizer, weights = self.model.optimizer, self.model.trainable_variables
        new = optimizer.stateless_apply(
            [v.value for v in optimizer.variables], grads, [v.value for v in weights]
        )
        for variable, value in zip((*weights, *optimizer.variables), (*new[0], *new[1])):  # noqa: B905
            variable.assign(value)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_of_a_step_gives_the_serial_result(
    rig: Rig, form: Callable[[Any], Any], make: Callable[[Any], Any]
) -> None:
    data = batches(5)
    plain = Reference(keras_form(keras), make(keras), data[0])
    with rig.strategy.scope():
        model = form(tf.keras)
        model.compile(optimizer=make(tf.keras), loss="mse")
    step = training_step(rig, model, data[0])
    model.set_weights(plain.model.get_weights())
    weights = [*model.trainable_variables, *model.optimizer.variables]
    plain.apply(plain.gradients(*data[0]))
    rig.run(step, data[0])
    for pair in (data[1:3], data[3:5]):
        gradients = [plain.gradients(*batch) for batch in pair]
        rig.overlap(step, *[(batch,) for batch in pair])
        for grads in gradients:
            plain.apply(grads)
    assert_close([v.value for v in weights], plain.state, GOLDEN)
    assert step.is_update
    counted = [m for m in model.metrics if m.name in ("loss", "mean")]
    assert max(float(np.asarray(m.count.value)) for m in counted) in (5.0, 5.0 * 8)
    cut = cut_of(step)
    residuals = num_bytes([cut.flat.avals[slot] for slot in cut.residuals])
    assert residuals <= num_bytes(model.trainable_variables) + 16  # the gradients, and the loss


def test_a_network_with_everything_leaves_nothing_heavy_to_the_store(rig: Rig) -> None:
    with rig.strategy.scope():
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [
                layers.Dense(8, kernel_regularizer="l2"),
                layers.BatchNormalization(),
                layers.Activation("relu"),
                layers.Dropout(0.5),
                layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(0.01, clipnorm=1.0, use_ema=True),
            loss="categorical_crossentropy",
            metrics=["accuracy", tf.keras.metrics.AUC(num_thresholds=10)],
        )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = np.eye(3, dtype="float32")[rng.integers(0, 3, 64)]
    step = training_step(rig, model, (x, y))
    assert not store_primitives(step) & (HEAVY | {"log", "reduce_max", "random_bits"})
    cut = cut_of(step)
    weights = num_bytes(model.trainable_variables)
    assert num_bytes([cut.flat.avals[slot] for slot in cut.residuals]) < weights + 1000
    rig.overlap(step, ((x, y),), ((x, y),), ((x, y),))
    assert int(model.optimizer.iterations.numpy()) == 3
    logs = {k: float(v) for k, v in model.get_metrics_result().items()}
    (accuracy,) = [
        v for v in model.metrics_variables if v.path.startswith("accuracy") and "count" in v.path
    ]
    assert_close(accuracy.value, 3 * 64.0)
    assert all(np.isfinite(value) for value in logs.values())
    seeds = [v for v in model.non_trainable_variables if "seed" in v.path]
    assert [int(np.asarray(v.value)[1]) for v in seeds] == [3]


def test_an_update_by_hand_in_a_stateless_step_keeps_both(rig: Rig) -> None:
    class ByHand(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3, use_bias=False)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, state: Any, data: Any) -> Any:
            trainable, other, own, metrics = state
            x, y = data

            def compute(values: Any) -> Any:
                return jnp.mean((self.stateless_call(values, other, x)[0] - y) ** 2)

            loss, grads = jax.value_and_grad(compute)(trainable)
            trainable = [w - 0.1 * g for w, g in zip(trainable, grads, strict=True)]
            return {"loss": loss}, (trainable, other, own, metrics)

    data = batches(2)
    linear = keras.Sequential([keras.layers.Dense(3, use_bias=False)])
    plain = Reference(linear, keras.optimizers.SGD(0.1), data[0])
    with rig.strategy.scope():
        model = ByHand()
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    step = training_step(rig, model, data[0])
    model.set_weights(plain.model.get_weights())
    gradients = [plain.gradients(*batch) for batch in data]
    rig.overlap(step, *[(batch,) for batch in data])
    for grads in gradients:
        plain.apply(grads)
    assert_close(model.get_weights(), plain.model.get_weights(), GOLDEN)
    assert step.is_update


# Made in the first call ------------------------------------------------------------------------


@pytest.mark.parametrize("in_scope", [True, False], ids=["in_scope", "outside"])
def test_what_the_first_call_makes_is_at_the_store(rig: Rig, in_scope: bool) -> None:
    def make() -> tuple[Any, Any, Any]:
        layers = [
            keras.layers.Dense(3, kernel_initializer="ones"),
            keras.layers.BatchNormalization(momentum=0.5),
        ]
        return keras.Sequential(layers), tf.keras.optimizers.Adam(0.1), keras.metrics.Mean()

    if in_scope:
        with rig.strategy.scope():
            model, adam, mean = make()
    else:
        model, adam, mean = make()

    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = jnp.mean(model(x, training=True) ** 2)
        weights = model.trainable_variables
        adam.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        mean.update_state(loss)
        return loss

    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    step = rig.step(train, x)
    assert [int(adam.iterations.numpy()), float(mean.count.numpy())] == [0, 0]
    assert_close(model.weights[0].value, np.ones((4, 3), np.float32))
    rig.overlap(step, (x,), (x,))
    assert [int(adam.iterations.numpy()), float(mean.count.numpy())] == [2, 2]
    for variable in (*model.weights, *adam.variables, *mean.variables):
        assert variable.distribute_strategy is rig.strategy
    assert rig.run(step, x) < rig.run(step, x) * 1.5


def test_a_step_that_fails_while_it_is_traced_makes_nothing_half(rig: Rig) -> None:
    with rig.strategy.scope():
        layer = keras.layers.Dense(3)

    def bad(x: Any) -> Any:
        layer(x)
        raise ZeroDivisionError

    x = np.ones((2, 4), np.float32)
    with pytest.raises(ZeroDivisionError):
        rig.step(bad, x)
    step = rig.step(lambda x: layer(x), x)
    assert rig.run(step, x).shape == (2, 3)
