"""fit, evaluate and predict follow the strategy and equal plain Keras on one device."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import classifier, examples, linear, mirrored, train_both
from paceline.testing import EXACT, GOLDEN, REFERENCE, assert_close

RAMP = np.arange(1, 8, dtype="float32")[:, None]


def sgd(k: Any, **options: Any) -> dict[str, Any]:
    return {"optimizer": k.optimizers.SGD(0.01), "loss": "mse", **options}


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
@pytest.mark.contract(114)
def test_the_ramp(num_replicas: int) -> None:
    with mirrored(num_replicas).scope():
        model = linear(tf.keras)
    model.compile(**sgd(tf.keras, metrics=["mae"]))
    history = model.fit(RAMP, 0 * RAMP, batch_size=4, shuffle=False, verbose=0).history
    assert_close(np.float32(history["loss"]), [15.639318])
    assert_close(np.float32(history["mae"]), [3.614286])
    # TensorFlow weighs the short batch wrongly and gets 0.17425.
    assert_close(model.get_weights()[0], [[0.22666675]])


@pytest.mark.parametrize("num_replicas", [2, 3, 4])
@pytest.mark.case("R20", "R40")
def test_a_classifier_equals_one_device(num_replicas: int) -> None:
    x, y = examples(22)
    plain, model, expected, actual = train_both(
        classifier,
        num_replicas,
        (x, y),
        compile_args=lambda k: {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        batch_size=10,
        validation_data=(x[:5], y[:5]),
    )
    assert_close(actual, expected)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)
    assert_close(
        np.float32(model.evaluate(x, y, batch_size=10, verbose=0)),
        np.float32(plain.evaluate(x, y, batch_size=10, verbose=0)),
    )
    predicted = model.predict(x, batch_size=10, verbose=0)
    assert_close(predicted, plain.predict(x, batch_size=10, verbose=0), GOLDEN)


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
@pytest.mark.case("R18")
def test_the_loss_does_not_shrink_with_replicas(num_replicas: int) -> None:
    with mirrored(num_replicas).scope():
        model = linear(tf.keras)
        model.compile(**sgd(tf.keras))
    assert model.evaluate(np.ones((8, 1)), np.zeros((8, 1)), batch_size=8, verbose=0) == 1.0


@pytest.mark.case("R34")
def test_more_replicas_than_examples() -> None:
    plain, model, expected, actual = train_both(
        linear, 4, (RAMP[:5], 0 * RAMP[:5]), compile_args=sgd, batch_size=4
    )
    assert_close(actual, expected)
    assert_close(model.get_weights(), plain.get_weights())


@pytest.mark.case("R27")
def test_evaluate_agrees_with_a_loop_of_ones_own() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = linear(tf.keras)
        model.compile(loss="mae")
    x = np.arange(10, dtype="float32")[:, None]
    assert_close(np.float32(model.evaluate(x, 0 * x, batch_size=4, verbose=0)), 4.5)


class Recorder(keras.callbacks.Callback):
    """Notes the sizes of the batches that replicas see and the logs of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.logs.append({name: float(value) for name, value in logs.items()})


@pytest.mark.contract(119)
def test_the_batch_size_is_global() -> None:
    sizes: list[int] = []

    class Sizes(tf.keras.layers.Layer):
        def call(self, x: Any) -> Any:
            replica = tf.distribute.get_replica_context()
            if replica is not None and replica.num_replicas_in_sync == 2:
                sizes.append(x.shape[0])
            return x

    recorder = Recorder()
    with mirrored(2).scope():
        model = tf.keras.Sequential([tf.keras.Input((1,)), Sizes(), tf.keras.layers.Dense(1)])
        model.compile(**sgd(tf.keras))
    x = np.ones((100, 1), "float32")
    sizes.clear()
    model.fit(x, x, batch_size=16, callbacks=[recorder], verbose=0)
    assert len(recorder.logs) == 7
    assert set(sizes) == {8, 2}


@pytest.mark.contract(120)
@pytest.mark.parametrize("num_replicas", [2, 3])
def test_predictions_come_in_input_order(num_replicas: int) -> None:
    with mirrored(num_replicas).scope():
        model = linear(tf.keras)
    x = np.arange(11, dtype="float32")[:, None]
    assert_close(model.predict(x, batch_size=4, verbose=0), x, EXACT)
    assert_close(model.predict_on_batch(x[:1]), x[:1], EXACT)


def test_batch_logs_are_those_of_all_replicas() -> None:
    recorder = Recorder()
    with mirrored(2).scope():
        model = linear(tf.keras)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.0), loss="mse", metrics=["mae"])
    model.fit(RAMP, 0 * RAMP, batch_size=3, shuffle=False, callbacks=[recorder], verbose=0)
    means = [np.mean(RAMP[: 3 * (i + 1)] ** 2) for i in range(3)]
    assert_close(np.float32([logs["loss"] for logs in recorder.logs]), np.float32(means))


@pytest.mark.case("R54")
def test_callbacks_read_and_assign_weights() -> None:
    seen = []

    class Assign(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(float(self.model.get_weights()[0][0, 0]))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.layers[-1].kernel.assign([[0.5]])

    with mirrored(2).scope():
        model = linear(tf.keras)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.0), loss="mse")
    loss = model.fit(
        np.ones((8, 1)), np.zeros((8, 1)), batch_size=4, callbacks=[Assign()], verbose=0
    ).history["loss"]
    assert seen == [1.0, 0.5]
    assert_close(np.float32(loss), [(1.0 + 0.25) / 2])


@pytest.mark.case("R54")
def test_evaluate_inside_a_callback() -> None:
    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            before = self.model.get_weights()
            self.model.evaluate(RAMP, 0 * RAMP, verbose=0)
            assert_close(self.model.get_weights(), before, EXACT)

    _, model, _, _ = train_both(linear, 2, (RAMP, 0 * RAMP), compile_args=sgd, batch_size=4)
    with mirrored(2).scope():
        other = linear(tf.keras)
        other.compile(**sgd(tf.keras))
    other.fit(
        RAMP, 0 * RAMP, batch_size=4, epochs=2, shuffle=False, callbacks=[Evaluate()], verbose=0
    )
    assert_close(other.get_weights(), model.get_weights())


@pytest.mark.case("R65")
def test_callbacks_decide_on_aggregated_values() -> None:
    with mirrored(2).scope():
        model = linear(tf.keras)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.0), loss="mse")
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=3)
    model.optimizer.learning_rate = 0.25
    model.optimizer.learning_rate = 0.0
    history = model.fit(
        RAMP,
        0 * RAMP,
        epochs=9,
        verbose=0,
        validation_data=(RAMP, 0 * RAMP),
        callbacks=[plateau, stop],
    )
    assert len(history.history["loss"]) == 4
    assert all(float(copy) == 0.0 for copy in model.optimizer.learning_rate.values)


@pytest.mark.case("R43")
@pytest.mark.parametrize("steps", [None, 2])
def test_epochs_of_all_the_data(steps: int | None) -> None:
    recorder = Recorder()
    with mirrored(2).scope():
        model = linear(tf.keras)
        model.compile(**sgd(tf.keras))
    x = np.ones((8, 1), "float32")
    model.fit(x, x, batch_size=4, epochs=2, steps_per_epoch=steps, callbacks=[recorder], verbose=0)
    assert len(recorder.logs) == 4


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("num_examples", [24, 22])
def test_several_steps_in_one_execution(num_examples: int, num_replicas: int) -> None:
    x, y = examples(num_examples)
    plain, model, expected, actual = train_both(
        classifier,
        num_replicas,
        (x, y),
        compile_args=lambda k: {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
            "steps_per_execution": 3,
        },
        batch_size=4,
    )
    assert_close(actual, expected)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)
    assert model.train_function.many_steps.num_traces == 1
    assert_close(
        model.predict(x, batch_size=4, verbose=0), plain.predict(x, batch_size=4, verbose=0)
    )


def test_equal_batches_compile_once() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = linear(tf.keras)
        model.compile(**sgd(tf.keras))
        model.fit(RAMP[:4], RAMP[:4], batch_size=2, epochs=2, verbose=0)
    model.fit(RAMP[:4], RAMP[:4], batch_size=2, epochs=2, verbose=0)
    assert model.train_function.one_step.num_traces == 1


def test_eager_replicas() -> None:
    plain, model, expected, actual = train_both(
        linear,
        2,
        (RAMP, 0 * RAMP),
        compile_args=lambda k: sgd(k, metrics=["mae"], run_eagerly=True),
        batch_size=4,
        epochs=1,
    )
    assert_close(actual, expected)
    assert_close(model.get_weights(), plain.get_weights())
    assert_close(model.predict(RAMP, verbose=0), plain.predict(RAMP, verbose=0))


def test_class_weights() -> None:
    x, y = examples(10)
    plain, model, expected, actual = train_both(
        classifier,
        2,
        (x, y),
        compile_args=lambda k: {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy"},
        class_weight={0: 1.0, 1: 2.0, 2: 0.5},
    )
    assert_close(actual, expected)
    assert_close(model.get_weights(), plain.get_weights())


@pytest.mark.case("R30", "R31")
def test_single_batches() -> None:
    with mirrored(2).scope():
        model = linear(tf.keras)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.0), loss="mse")
    one, three = np.ones((3, 1), "float32"), np.full((3, 1), 3**0.5, "float32")
    assert_close(np.float32(model.train_on_batch(one, 0 * one)), 1.0)
    assert_close(np.float32(model.train_on_batch(three, 0 * three)), 3.0)
    assert_close(np.float32(model.train_on_batch(three, 0 * three, np.ones(3))), 3.0)
    assert_close(np.float32(model.test_on_batch(three, 0 * three)), 3.0)


@pytest.mark.case("R44")
def test_no_data() -> None:
    with mirrored(2).scope():
        model = linear(tf.keras)
        model.compile(**sgd(tf.keras))
    with pytest.raises(ValueError, match="data"):
        model.fit(np.zeros((0, 1)), np.zeros((0, 1)), verbose=0)


@pytest.mark.contract(116)
@pytest.mark.parametrize("num_replicas", [2, 3])
def test_regularisers_and_added_losses_count_once(num_replicas: int) -> None:
    def build(k: Any) -> Any:
        class Extra(k.layers.Layer):
            def call(self, x: Any) -> Any:
                self.add_loss(0.1 * keras.ops.mean(x**2))
                return x

        layers = [
            k.layers.Dense(
                2,
                kernel_initializer="ones",
                kernel_regularizer=k.regularizers.L1L2(0.01, 0.02),
                activity_regularizer=k.regularizers.L2(0.03),
            ),
            Extra(),
            k.layers.Dense(1, kernel_initializer="ones"),
        ]
        return k.Sequential([k.Input((1,)), *layers])

    plain, model, expected, actual = train_both(
        build, num_replicas, (RAMP / 7, RAMP), compile_args=sgd, batch_size=4
    )
    assert_close(actual, expected)
    assert_close(model.get_weights(), plain.get_weights())


def test_dropout_differs_between_replicas_and_is_reproducible() -> None:
    def predictions() -> np.ndarray:
        keras.utils.set_random_seed(5)
        strategy = mirrored(2)
        with strategy.scope():
            dropout = tf.keras.layers.Dropout(0.5, seed=3)

        @tf.function
        def step(x: Any) -> Any:
            return strategy.run(lambda x: dropout(x, training=True), args=(x,))

        batch = next(iter(strategy.experimental_distribute_dataset([np.ones((8, 16), "float32")])))
        return np.stack([np.concatenate([np.asarray(v) for v in step(batch).values])] * 1)[0]

    first, again = predictions(), predictions()
    assert_close(first, again, EXACT)
    assert not np.array_equal(first[:4], first[4:])

    with mirrored(1).scope():
        one = tf.keras.layers.Dropout(0.5, seed=3)
    plain = keras.layers.Dropout(0.5, seed=3)
    x = np.ones((4, 16), "float32")
    assert_close(one(x, training=True), plain(x, training=True), EXACT)
    assert_close(first[:4], plain.__class__(0.5, seed=3)(x, training=True), EXACT)


def test_training_with_dropout_is_reproducible() -> None:
    def weights() -> list[np.ndarray]:
        with mirrored(2).scope():
            model = classifier(tf.keras, tf.keras.layers.Dropout(0.5, seed=1))
            model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(*examples(20), batch_size=8, shuffle=False, verbose=0)
        return model.get_weights()

    assert_close(weights(), weights(), EXACT)


@pytest.mark.parametrize("where", ["inside", "outside", "with objects from outside"])
def test_compile_inside_or_outside_the_scope(where: str) -> None:
    strategy = mirrored(2)
    outside = {"optimizer": keras.optimizers.SGD(0.01), "loss": keras.losses.MeanSquaredError()}
    with strategy.scope():
        model = linear(tf.keras)
        if where == "inside":
            model.compile(**sgd(tf.keras))
    if where == "outside":
        model.compile(**sgd(tf.keras))
    elif where != "inside":
        model.compile(**outside)
    model.fit(RAMP, 0 * RAMP, batch_size=4, shuffle=False, verbose=0)
    assert_close(model.get_weights()[0], [[0.22666675]])
    assert all(v.distribute_strategy is strategy for v in model.optimizer.variables)


def test_a_plain_model_follows_after_distribute() -> None:
    strategy = mirrored(2)
    model = linear(keras)
    model.compile(**sgd(keras))
    kernel = model.layers[-1].kernel
    assert strategy.distribute(model) is model
    model.fit(RAMP, 0 * RAMP, batch_size=4, shuffle=False, verbose=0)
    assert_close(kernel, [[0.22666675]])
    assert kernel.distribute_strategy is strategy
    assert model.distribute_strategy is strategy


def test_an_unbuilt_model_is_built_under_its_strategy() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(RAMP, 0 * RAMP, verbose=0)
    assert all(v.distribute_strategy is strategy for v in model.variables)
    with strategy.scope():
        other = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    assert other.predict(RAMP, verbose=0).shape == (7, 1)
    assert all(v.distribute_strategy is strategy for v in other.variables)


def test_only_models_and_optimizers_can_be_distributed() -> None:
    with pytest.raises(TypeError, match=r"takes a keras\.Model or a keras\.optimizers\.Optimizer"):
        mirrored(2).distribute([1, 2])


def test_without_a_strategy_models_are_plain_keras() -> None:
    model = linear(tf.keras)
    model.compile(**sgd(tf.keras))
    model.fit(RAMP, 0 * RAMP, batch_size=4, shuffle=False, verbose=0)
    assert_close(model.get_weights()[0], [[0.22666675]])
    assert not hasattr(model.layers[-1].kernel, "placement")


def test_the_one_device_strategy() -> None:
    with tf.distribute.OneDeviceStrategy("cpu:1").scope():
        model = linear(tf.keras)
        model.compile(**sgd(tf.keras))
    model.fit(RAMP, 0 * RAMP, batch_size=4, shuffle=False, verbose=0)
    assert_close(model.get_weights()[0], [[0.22666675]])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    x, y = examples(12)

    def build(k: Any) -> Any:
        keras.utils.set_random_seed(7)
        return k.Sequential(
            [
                k.Input((4,)),
                k.layers.Dense(6, activation="tanh", dtype=policy),
                k.layers.Dense(3, activation="softmax", dtype="float32"),
            ]
        )

    keras.config.set_dtype_policy(policy)
    try:
        plain, model, expected, actual = train_both(
            build,
            2,
            (x, y),
            compile_args=lambda k: {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy"},
        )
    finally:
        keras.config.set_dtype_policy("float32")
    is_scaled = policy == "mixed_float16"
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == is_scaled
    # Rounding in half precision depends on the order of sums.
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        assert_close(jnp.asarray(ours, "bfloat16"), jnp.asarray(theirs, "bfloat16"))
    assert_close(jnp.asarray(actual["loss"], "bfloat16"), jnp.asarray(expected["loss"], "bfloat16"))
    assert REFERENCE
