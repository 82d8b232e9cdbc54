"""Variables that take their gradient as their value, as the scales of float8 training do."""

from __future__ import annotations

from typing import Any

import keras
import pytest

import paceline as tf
from keras_oracle import NUM_CLASSES, NUM_FEATURES, examples, mirrored
from paceline.testing import REFERENCE, assert_close

HISTORY = 4
LOSS = "sparse_categorical_crossentropy"


def float8_model(k: Any) -> Any:
    """A model in float8. No biases: Keras rounds their gradients to bfloat16 before the sum."""
    keras.utils.set_random_seed(7)
    policy = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32", HISTORY)
    dense = {"use_bias": False, "dtype": policy}
    return k.Sequential(
        [
            k.Input((NUM_FEATURES,)),
            k.layers.Dense(6, activation="tanh", **dense),
            k.layers.Dense(NUM_CLASSES, activation="softmax", **dense),
        ]
    )


def fitted(k: Any, num_examples: int, **optimizer: Any) -> Any:
    model = float8_model(k)
    model.compile(k.optimizers.SGD(0.1, **optimizer), LOSS)
    model.fit(*examples(num_examples), batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model


def assert_same_variables(model: Any, plain: Any) -> None:
    for ours, theirs in zip(model.variables, plain.variables, strict=True):
        assert_close(ours.numpy(), theirs.numpy(), REFERENCE)


@pytest.mark.parametrize("num_replicas", [2, 3])
def test_float8_statistics_are_those_of_the_whole_batch(num_replicas: int) -> None:
    plain = fitted(keras, 20)
    with mirrored(num_replicas).scope():
        model = fitted(tf.keras, 20)
    assert_same_variables(model, plain)


def test_they_are_accumulated_as_on_one_device() -> None:
    plain = fitted(keras, 20, gradient_accumulation_steps=2)
    with mirrored(3).scope():
        model = fitted(tf.keras, 20, gradient_accumulation_steps=2)
    assert_same_variables(model, plain)


def test_own_loops_in_float8() -> None:
    x, y = examples(7)
    plain = float8_model(keras)
    plain.compile(keras.optimizers.SGD(0.1), LOSS)
    for _ in range(2):
        plain.train_on_batch(x, y)
    strategy = mirrored(3)
    with strategy.scope():
        model = float8_model(tf.keras)
        optimizer = tf.keras.optimizers.SGD(0.1)
        loss = tf.keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for batch in strategy.experimental_distribute_dataset([(x, y)] * 2):
        strategy.run(step, args=batch)
    assert_same_variables(model, plain)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_the_largest_value_of_the_replicas_is_taken(is_compiled: bool) -> None:
    strategy = mirrored(3)
    with strategy.scope():
        largest = tf.Variable([1.0, 1.0])
        largest.overwrite_with_gradient = True
        optimizer = tf.keras.optimizers.SGD(0.1)

    def step(found: Any) -> None:
        optimizer.apply([found], [largest])

    step = tf.function(step) if is_compiled else step
    per_replica = [[0.1, -3.0], [0.5, -1.0], [0.2, -2.0]]
    found = strategy.experimental_distribute_values_from_function(
        lambda c: keras.ops.array(per_replica[c.replica_id_in_sync_group])
    )
    strategy.run(step, args=(found,))
    assert_close(largest.numpy(), [0.5, -1.0])


def test_a_replica_without_examples_has_no_maximum() -> None:
    with mirrored(3).scope(), pytest.raises(tf.errors.Unsupported, match="without examples"):
        fitted(tf.keras, 2)
