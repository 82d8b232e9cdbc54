"""State that layers declare an aggregation for, in `fit` and `evaluate`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import mirrored

X, Y = np.ones((100, 2), "float32"), np.ones((100, 1), "float32")


class Counter(keras.layers.Layer):
    """Counts the examples it has seen, over all replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = tf.Variable(0.0, aggregation="sum", trainable=False)

    def call(self, inputs: Any) -> Any:
        self.seen.assign_add(jnp.float32(inputs.shape[0]))
        return inputs


@pytest.mark.parametrize(
    "options", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str
)
def test_sums_add_what_each_replica_adds(options: dict[str, Any]) -> None:
    with mirrored(2).scope():
        counter = Counter()
        model = tf.keras.Sequential([counter, tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", **options)
    model.fit(X, Y, batch_size=50, verbose=0)
    assert counter.seen.numpy() == 100
    model.fit(X, Y, batch_size=33, verbose=0)  # ends with one example and an empty replica
    assert counter.seen.numpy() == 200
    model.evaluate(X, Y, verbose=0)
    assert [float(part) for part in counter.seen.values] == [300, 300]


def test_a_layer_that_rewrites_a_weight_keeps_the_copies_equal() -> None:
    with mirrored(2).scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.SpectralNormalization(tf.keras.layers.Dense(3)),
                tf.keras.layers.Dropout(0.5, seed=1),
                tf.keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    model.fit(X, Y, batch_size=33, verbose=0)
    for variable in model.weights:
        first, second = variable.values
        assert np.array_equal(first, second), variable.path


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("mean", 3.5), ("only_first_replica", 3), ("sum", 7)]
)
def test_eager_replicas_may_assign_different_python_numbers(
    aggregation: str, expected: float
) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(1.0, aggregation=aggregation)
    context = tf.distribute.get_replica_context
    strategy.run(lambda: variable.assign(3.0 + context().replica_id_in_sync_group))  # pyright: ignore[reportOptionalMemberAccess]
    assert [float(part) for part in variable.values] == [expected] * 2
