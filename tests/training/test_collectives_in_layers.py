"""Layers that meet in their forward pass, in `fit` with uneven batches."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import train_both
from paceline.testing import GOLDEN, assert_close

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3)).astype("float32")
Y = RNG.normal(size=(10, 1)).astype("float32")


class Centre(keras.layers.Layer):
    """Subtracts the mean over the global batch."""

    def __init__(self, collective: str) -> None:
        super().__init__()
        self.collective = collective

    def call(self, inputs: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return inputs - jnp.mean(inputs, axis=0)
        if self.collective == "gather":
            return inputs - jnp.mean(replica.all_gather(inputs, axis=0), axis=0)
        return inputs - replica.all_reduce("SUM", jnp.sum(inputs, 0)) / replica.global_examples


@pytest.mark.parametrize("collective", ["reduce", "gather"])
@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.parametrize("is_eager", [False, True])
def test_gradients_are_those_of_one_device(
    collective: str, num_replicas: int, is_eager: bool
) -> None:
    def build(k: Any) -> Any:
        dense = k.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        last = k.layers.Dense(1, kernel_initializer="ones")
        return k.Sequential([k.Input((3,)), dense, Centre(collective), last])

    plain, model, expected, actual = train_both(
        build,
        num_replicas,
        (X, Y),
        # 4, 4 and 2 examples: uneven on 3 replicas, and an empty one at the end.
        compile_args=lambda k: {
            "optimizer": k.optimizers.SGD(0.1),
            "loss": "mse",
            "run_eagerly": is_eager,
        },
        batch_size=4,
        shuffle=False,
    )
    assert_close(actual, expected, GOLDEN)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)
