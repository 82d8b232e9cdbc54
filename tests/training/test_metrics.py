"""Metrics on replicas equal one device."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import linear, mirrored
from paceline.testing import GOLDEN, assert_close

METRICS: dict[str, Any] = {
    "mean metric wrapper": lambda k: k.metrics.BinaryCrossentropy(),
    "accuracy": lambda k: k.metrics.BinaryAccuracy(),
    "precision": lambda k: k.metrics.Precision(),
    "true positives": lambda k: k.metrics.TruePositives(thresholds=[0.3, 0.7]),
    "auc": lambda k: k.metrics.AUC(num_thresholds=20),
    "precision at recall": lambda k: k.metrics.PrecisionAtRecall(0.5, num_thresholds=20),
    "iou": lambda k: k.metrics.BinaryIoU(threshold=0.5),
    "root mean squared error": lambda k: k.metrics.RootMeanSquaredError(),
    "mean relative error": lambda k: k.metrics.MeanAbsolutePercentageError(),
    "r2": lambda k: k.metrics.R2Score(),
    "f1": lambda k: k.metrics.F1Score(average="micro", threshold=0.5),
    "cosine": lambda k: k.metrics.CosineSimilarity(axis=-1),
    "hinge": lambda k: k.metrics.Hinge(),
}


# Keras's own confusion matrix asks JAX for 64 bits.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize("name", METRICS)
def test_every_kind_of_metric_equals_one_device(name: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=(11, 1)).astype("float32")
    p = rng.uniform(0.05, 0.95, size=(11, 1)).astype("float32")
    w = rng.integers(1, 4, size=11).astype("int32")
    plain = METRICS[name](keras)
    strategy = mirrored(3)
    with strategy.scope():
        metric = METRICS[name](tf.keras)

    @tf.function
    def step(batch: Any) -> None:
        strategy.run(lambda y, p, w: metric.update_state(y, p, w), args=batch)

    # 5, 5 and 1 examples over 3 replicas: uneven, then empty.
    for i in (0, 5, 10):
        batch = (y[i : i + 5], p[i : i + 5], w[i : i + 5])
        plain.update_state(*batch)
        step(next(iter(strategy.experimental_distribute_dataset([batch]))))
    assert_close(np.asarray(metric.result()), np.asarray(plain.result()), GOLDEN)
    metric.reset_state()
    plain.reset_state()
    assert_close(np.asarray(metric.result()), np.asarray(plain.result()))


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.contract(112)
def test_a_mean_is_local_in_replicas_and_global_across(is_compiled: bool) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        metric = tf.keras.metrics.Mean()

    def replica_fn(x: Any) -> Any:
        metric.update_state(x)
        return metric.result()

    run = tf.function(replica_fn) if is_compiled else replica_fn
    batch = next(iter(strategy.experimental_distribute_dataset([np.float32([1, 3, 11, 13])])))
    local = strategy.run(run, args=(batch,))
    assert_close([float(value) for value in local.values], [2.0, 12.0])
    assert_close(metric.result(), 7.0)
    assert_close([float(value) for value in metric.total.values], [4.0, 24.0])
    metric.reset_state()
    assert_close(metric.result(), 0.0)
    for x in np.arange(10, dtype="float32").reshape(5, 2):
        strategy.run(run, args=(next(iter(strategy.experimental_distribute_dataset([x]))),))
    assert_close(metric.result(), 4.5)


@pytest.mark.case("R49")
def test_accuracy_is_never_more_than_one() -> None:
    with mirrored(2).scope():
        model = linear(tf.keras)
        model.compile(loss="mse", metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.5)])
    x, y = np.float32([[1], [1], [0], [0]]), np.float32([[1], [1], [0], [1]])
    assert_close(
        np.float32(model.evaluate(x, y, verbose=0, return_dict=True)["binary_accuracy"]), 0.75
    )


@pytest.mark.case("R52")
def test_an_update_across_replicas_counts_once() -> None:
    with mirrored(2).scope():
        metric = tf.keras.metrics.Mean()
        metric.update_state(4.0)
        metric.update_state(8.0)
    assert_close(metric.result(), 6.0)
    assert_close(metric.count, 2.0)


def test_metrics_made_outside_work() -> None:
    metric = keras.metrics.Mean()
    strategy = mirrored(2)
    strategy.run(lambda: metric.update_state(jnp.asarray([1.0, 3.0])))
    assert_close(metric.result(), 2.0)
    assert_close(metric.count, 4.0)


def test_metrics_of_a_model_of_ones_own() -> None:
    class Counting(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
            self.seen = tf.keras.metrics.Sum(name="seen")

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            self.seen.update_state(jnp.ones(x.shape[0]))
            return super().compute_metrics(x, y, y_pred, sample_weight)

    with mirrored(3).scope():
        model = Counting()
    model.compile("sgd", "mse", metrics=["mae"])
    history = model.fit(np.ones((7, 2)), np.ones((7, 1)), batch_size=4, verbose=0).history
    assert history["seen"] == [7.0]
