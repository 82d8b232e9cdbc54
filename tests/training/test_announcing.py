"""The line that `fit` prints at the start."""

from __future__ import annotations

import numpy as np
import pytest

import paceline as tf
from keras_oracle import mirrored

X, Y = np.ones((96, 2), "float32"), np.ones((96, 1), "float32")


@pytest.mark.case("R69")
@pytest.mark.parametrize("num_replicas", [2, 3, 4])
def test_a_fixed_batch_per_replica_means_fewer_updates(
    num_replicas: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with mirrored(num_replicas).scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.25), "mse")
    model.fit(X, Y, batch_size=8 * num_replicas, verbose=2)
    updates = 96 // (8 * num_replicas)
    assert model.optimizer.iterations.numpy() == updates
    assert capsys.readouterr().out.startswith(
        f"{num_replicas} replicas, global batch {8 * num_replicas}, {updates} updates per epoch, "
        "learning rate 0.25\n"
    )


def test_it_is_silent_where_fit_is(capsys: pytest.CaptureFixture[str]) -> None:
    with mirrored(2).scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    assert capsys.readouterr().out == ""
