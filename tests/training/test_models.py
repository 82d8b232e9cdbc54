"""Functional and subclassed models, steps of a user's own, saving and loading."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import examples, linear, mirrored, train_both
from paceline.testing import EXACT, GOLDEN, assert_close

if TYPE_CHECKING:
    from pathlib import Path

RAMP = np.arange(1, 8, dtype="float32")[:, None]
FITTED = [[0.22666675]]


def functional(k: Any) -> Any:
    a, b = k.Input((1,), name="a"), k.Input((1,), name="b")
    joined = k.layers.Concatenate()([a, b])
    return k.Model([a, b], k.layers.Dense(1, kernel_initializer="ones")(joined))


def subclassed(k: Any) -> Any:
    class Own(k.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = k.layers.Dense(2, kernel_initializer="ones")
            self.head = k.layers.Dense(1, kernel_initializer="ones")

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.head(self.dense(inputs[0]) * inputs[1])

    return Own()


def functional_subclass(k: Any) -> Any:
    class Doubling(k.Model):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().compute_loss(*args, **kwargs)

    a, b = k.Input((1,)), k.Input((1,))
    return Doubling(inputs=[a, b], outputs=k.layers.Dense(1)(a * b))


@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.parametrize("build", [functional, subclassed, functional_subclass])
def test_every_way_to_make_a_model(build: Any, num_replicas: int) -> None:
    def seeded(k: Any) -> Any:
        keras.utils.set_random_seed(2)
        return build(k)

    plain, model, expected, actual = train_both(
        seeded,
        num_replicas,
        ([RAMP, RAMP / 2], RAMP),
        compile_args=lambda k: {"optimizer": k.optimizers.SGD(0.001), "loss": "mse"},
        batch_size=4,
    )
    assert isinstance(model, tf.keras.Model)
    assert_close(actual, expected)
    assert_close(model.get_weights(), plain.get_weights())
    assert_close(
        model.predict([RAMP, RAMP], batch_size=4, verbose=0),
        plain.predict([RAMP, RAMP], batch_size=4, verbose=0),
    )


def test_functional_models_leave_the_class_alone() -> None:
    bases = tf.keras.Model.__bases__
    for _ in range(2):
        functional(tf.keras)
        functional_subclass(tf.keras)
    assert tf.keras.Model.__bases__ == bases
    assert isinstance(functional(tf.keras), keras.src.models.functional.Functional)
    assert not isinstance(subclassed(tf.keras), keras.src.models.functional.Functional)
    assert isinstance(linear(tf.keras), keras.Sequential)


class KerasStep(tf.keras.Model):
    """A stateless step, as the Keras guide for JAX writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.mae = tf.keras.metrics.MeanAbsoluteError(name="mae")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def loss_and_updates(self, trainable: Any, non_trainable: Any, x: Any, y: Any) -> Any:
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x)
        return jnp.mean((y_pred - y) ** 2), (y_pred, non_trainable)

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, non_trainable, optimizer, metrics = state
        x, y = data
        gradient = jax.value_and_grad(self.loss_and_updates, has_aux=True)
        (loss, (y_pred, non_trainable)), grads = gradient(trainable, non_trainable, x, y)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        index = [v is self.mae.variables[0] for v in self.metrics_variables].index(True)
        updated = self.mae.stateless_update_state(metrics[index : index + 2], y, y_pred)
        metrics = [*metrics[:index], *updated, *metrics[index + 2 :]]
        logs = {"own_loss": loss, "mae": self.mae.stateless_result(updated)}
        return logs, (trainable, non_trainable, optimizer, metrics)


class TapeStep(KerasStep):
    """A step in TensorFlow's form."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        self.mae.update_state(y, y_pred)
        return {"own_loss": loss, "mae": self.mae.result()}

    def test_step(self, data: Any) -> Any:
        x, y = data
        self.mae.update_state(y, self(x, training=False))
        return {"mae": self.mae.result()}

    def predict_step(self, data: Any) -> Any:
        return 2 * self(data[0] if isinstance(data, tuple) else data)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
@pytest.mark.parametrize("cls", [KerasStep, TapeStep])
def test_own_train_steps(cls: Any, num_replicas: int, eager: bool) -> None:
    with mirrored(num_replicas).scope():
        model = cls()
        model.compile(tf.keras.optimizers.SGD(0.01), "mse", run_eagerly=eager)
    seen: list[Any] = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs)
    )
    model.fit(RAMP, 0 * RAMP, batch_size=4, shuffle=False, verbose=0, callbacks=[record])
    assert_close(model.dense.kernel, FITTED)
    after_one = 1 - 0.01 * 2 * np.mean(RAMP[:4] ** 2)
    losses = [np.mean(RAMP[:4] ** 2), np.mean((after_one * RAMP[4:]) ** 2)]
    assert_close(np.float32([log["own_loss"] for log in seen]), np.float32(losses))
    assert_close(np.float32(seen[-1]["mae"]), 3.614286)


def test_a_step_in_tensorflows_form_without_a_strategy() -> None:
    model = TapeStep()
    model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    model.fit(RAMP, 0 * RAMP, batch_size=4, shuffle=False, verbose=0)
    assert_close(model.dense.kernel, FITTED)
    assert_close(model.predict(RAMP, verbose=0), 2 * FITTED[0][0] * RAMP, GOLDEN)
    assert_close(
        np.float32(model.evaluate(RAMP, 0 * RAMP, verbose=0, return_dict=True)["mae"]),
        np.float32(FITTED[0][0] * RAMP.mean()),
    )


def test_test_and_predict_steps_in_tensorflows_form() -> None:
    with mirrored(2).scope():
        model = TapeStep()
        model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    result = model.evaluate(RAMP, 0 * RAMP, batch_size=4, verbose=0, return_dict=True)
    assert_close(np.float32(result["mae"]), RAMP.mean())
    assert_close(model.predict(RAMP, batch_size=4, verbose=0), 2 * RAMP)


class NoOptimizer(tf.keras.Model):
    """Updates its weights by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w = self.add_weight(shape=(), initializer="zeros", name="w")
        self.built = True

    def call(self, x: Any) -> Any:
        return x * self.w

    def train_step(self, state: Any, data: Any) -> Any:
        _, *rest = state
        return {"loss": jnp.mean(data[0])}, ([jnp.mean(data[0])], *rest)


def test_weights_updated_without_the_optimizer_are_averaged_with_a_warning() -> None:
    with mirrored(2).scope():
        model = NoOptimizer()
        model.compile("sgd")
    with pytest.warns(UserWarning, match="without the compiled optimizer"):
        model.fit(RAMP[:3], RAMP[:3], batch_size=3, shuffle=False, verbose=0)
    assert_close(model.w, 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(RAMP[:5], RAMP[:5], batch_size=5, shuffle=False, verbose=0)


class Counter(tf.keras.layers.Layer):
    """Keeps state without naming an aggregation."""

    def __init__(self) -> None:
        super().__init__()
        self.average = self.add_weight(shape=(), trainable=False, name="average")

    def call(self, x: Any) -> Any:
        self.average.assign(jnp.mean(x))
        return x


def test_state_of_a_users_layer_is_averaged_with_one_warning() -> None:
    with mirrored(2).scope():
        model = tf.keras.Sequential([tf.keras.Input((1,)), Counter(), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="average.*MEAN"):
        model.fit(RAMP[:3], RAMP[:3], batch_size=3, verbose=0)
    assert_close(model.layers[0].average, 2.0)


def trained(strategy: Any = None) -> Any:
    model = tf.keras.Sequential(
        [
            tf.keras.Input((4,)),
            tf.keras.layers.Dense(3, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dropout(0.5, seed=1),
            tf.keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(*examples(8), batch_size=4, verbose=0)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model trained and saved on 2 replicas."""
    strategy = mirrored(2)
    with strategy.scope():
        model = trained()
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    model.save_weights(path.with_suffix(".weights.h5"))
    return path, model


def test_saved_models_load_in_plain_keras(saved: tuple[Path, Any]) -> None:
    path, model = saved
    plain = keras.models.load_model(path)
    assert type(plain) is keras.Sequential
    assert type(plain.optimizer) is keras.optimizers.Adam
    assert_close(plain.get_weights(), model.get_weights(), EXACT)
    assert_close(
        [np.asarray(v) for v in plain.optimizer.variables],
        [np.asarray(v) for v in model.optimizer.variables],
        EXACT,
    )
    plain.fit(*examples(8), verbose=0)


@pytest.mark.parametrize("num_replicas", [None, 1, 2, 3])
def test_saved_models_load_in_and_out_of_a_scope(
    saved: tuple[Path, Any], num_replicas: int | None
) -> None:
    path, model = saved
    strategy = tf.distribute.get_strategy() if num_replicas is None else mirrored(num_replicas)
    with strategy.scope():
        loaded = tf.keras.models.load_model(path)
    assert loaded.distribute_strategy is strategy
    assert_close(loaded.get_weights(), model.get_weights(), EXACT)
    x, y = examples(8)
    assert_close(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    assert int(loaded.optimizer.iterations) == 2
    loaded.fit(x, y, batch_size=4, verbose=0)
    assert int(loaded.optimizer.iterations) == 4
    if num_replicas:
        assert all(v.distribute_strategy is strategy for v in loaded.variables)


def test_weights_load_in_a_scope(saved: tuple[Path, Any]) -> None:
    path, model = saved
    with mirrored(3).scope():
        other = trained()
        other.load_weights(path.with_suffix(".weights.h5"))
    assert_close(other.get_weights(), model.get_weights(), EXACT)


def test_models_of_plain_keras_load_in_a_scope(tmp_path: Path) -> None:
    plain = functional(keras)
    plain.compile("adam", "mse")
    plain.fit([RAMP, RAMP], RAMP, verbose=0)
    plain.save(tmp_path / "plain.keras")
    strategy = mirrored(2)
    with strategy.scope():
        loaded = tf.keras.models.load_model(tmp_path / "plain.keras")
        clone = tf.keras.models.clone_model(loaded)
    assert_close(loaded.get_weights(), plain.get_weights(), EXACT)
    loaded.fit([RAMP, RAMP], RAMP, verbose=0)
    plain.fit([RAMP, RAMP], RAMP, verbose=0)
    assert_close(loaded.get_weights(), plain.get_weights())
    assert clone.distribute_strategy is strategy


def test_plain_models_of_a_scope_train_in_plain_keras() -> None:
    with mirrored(2).scope():
        model = linear(keras)
    model.compile("sgd", "mse", metrics=["mae"])
    plain = linear(keras)
    plain.compile("sgd", "mse", metrics=["mae"])
    histories = [m.fit(RAMP, RAMP * 2, verbose=0, epochs=2).history for m in (model, plain)]
    assert_close(histories[0], histories[1], GOLDEN)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)


@pytest.mark.parametrize("num_replicas", [2, 3])
def test_layers_may_hold_arrays_made_of_variables(num_replicas: int) -> None:
    def build(k: Any) -> Any:
        normalization = k.layers.Normalization()
        normalization.adapt(RAMP)  # which leaves the moments as arrays on the layer
        return k.Sequential([k.Input((1,)), normalization, *linear(k).layers])

    plain, model, expected, actual = train_both(
        build,
        num_replicas,
        (RAMP, RAMP),
        compile_args=lambda k: {"optimizer": k.optimizers.SGD(0.1), "loss": "mse"},
        batch_size=4,
    )
    assert_close(actual, expected, GOLDEN)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)


@pytest.mark.parametrize("build", [functional, functional_subclass])
def test_functional_models_save_and_load(build: Any, tmp_path: Path) -> None:
    with mirrored(2).scope():
        model = build(tf.keras)
        model.compile("adam", "mse")
    model.fit([RAMP, RAMP], RAMP, verbose=0)
    model.save(tmp_path / "model.keras")
    known = {type(model).__name__: type(model)} if build is functional_subclass else None
    with mirrored(2).scope():
        loaded = tf.keras.models.load_model(tmp_path / "model.keras", custom_objects=known)
    assert_close(loaded.get_weights(), model.get_weights(), EXACT)
    loaded.fit([RAMP, RAMP], RAMP, verbose=0)


def test_synchronized_batch_normalization_saves_and_loads(tmp_path: Path) -> None:
    with mirrored(2).scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((1,)), tf.keras.layers.BatchNormalization(synchronized=True)]
        )
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].synchronized
    assert type(loaded.layers[0]) is tf.keras.layers.BatchNormalization


def test_checkpoint_callbacks_save_the_current_weights(tmp_path: Path) -> None:
    with mirrored(2).scope():
        model = linear(tf.keras)
        model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    path = tmp_path / "epoch.weights.h5"
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model.fit(RAMP, 0 * RAMP, batch_size=4, shuffle=False, callbacks=[save], verbose=0)
    other = linear(keras)
    other.load_weights(path)
    assert_close(other.get_weights()[0], FITTED)


def test_the_namespace_is_keras() -> None:
    assert tf.keras.metrics is keras.metrics
    assert tf.keras.layers.Dense is keras.layers.Dense
    assert set(keras.__all__ if hasattr(keras, "__all__") else dir(tf.keras)) <= set(
        [*dir(tf.keras), *vars(keras)]
    )
    from paceline.keras.datasets import mnist

    assert mnist is keras.datasets.mnist
    for module in ("optimizers", "losses", "layers", "models"):
        names = {name for name in dir(getattr(keras, module)) if not name.startswith("_")}
        ours = getattr(tf.keras, module)
        assert names <= set(dir(ours))
        assert all(getattr(ours, name) is not None for name in names)
    with pytest.raises(AttributeError):
        tf.keras.no_such_name  # noqa: B018
