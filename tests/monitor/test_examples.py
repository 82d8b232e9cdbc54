"""Examples that the report counts: each once, whether or not a step is compiled."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from message_models import BATCH, STRATEGIES, central_storage, parameter_servers
from paceline.strategies.at_hand import leading_dim

NUM = 4 * BATCH + 5  # the last batch is short
X, Y = np.ones((NUM, 3), "float32"), np.ones((NUM, 1), "float32")


def weight_of(strategy: Any) -> Any:
    with strategy.scope():
        return tf.Variable(jnp.zeros((3, 1))), tf.keras.optimizers.SGD(0.1)


def train(pair: Any, x: Any, y: Any) -> None:
    weight, optimizer = pair
    with tf.GradientTape() as tape:
        loss = jnp.mean((x @ weight - y) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit(name: str, run_eagerly: bool) -> None:
    strategy = STRATEGIES[name]()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=run_eagerly)
    model.fit(X, Y, batch_size=BATCH, verbose=0)
    report = strategy.monitor.report()
    assert (report.applied, report.examples) == (5, NUM)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_run_under_central_storage(is_compiled: bool) -> None:
    strategy = central_storage()
    trained = weight_of(strategy)

    def step(x: Any, y: Any) -> None:
        train(trained, x, y)

    fn = tf.function(step) if is_compiled else step
    data = tf.data.ArrayBatches(X, Y, batch_size=BATCH)
    for x, y in strategy.experimental_distribute_dataset(data):
        strategy.run(fn, args=(x, y))
    assert np.isfinite(trained[0].numpy()).all()  # waits
    report = strategy.monitor.report()
    assert (report.applied, report.examples) == (5, NUM)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("by", ["iterator", "arguments"])
def test_scheduled_functions(is_compiled: bool, by: str) -> None:
    strategy = parameter_servers(2)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    trained = weight_of(strategy)

    def step(x: Any, y: Any) -> None:
        train(trained, x, y)

    def step_of(batches: Any) -> None:
        step(*next(batches))

    data = tf.data.ArrayBatches(X, Y, batch_size=BATCH, repeat=None)
    batches = iter(coordinator.create_per_worker_dataset(lambda: data))
    fn = step_of if by == "iterator" else step
    args = (batches,) if by == "iterator" else (X[:BATCH], Y[:BATCH])
    for _ in range(4):  # two workers with four whole batches each
        coordinator.schedule(tf.function(fn) if is_compiled else fn, args=args)
    coordinator.join()
    report = strategy.monitor.report()
    assert (report.applied, report.examples) == (4, 4 * BATCH)


def test_two_updates_of_one_batch_count_it_once() -> None:
    strategy = parameter_servers(1)
    first, second = weight_of(strategy), weight_of(strategy)

    def step(x: Any, y: Any) -> None:
        train(first, x, y)
        train(second, x, y)

    strategy.submit(step, (X, Y)).fetch()
    report = strategy.monitor.report()
    assert (report.applied, report.examples) == (2, NUM)


def test_a_function_that_takes_two_batches_counts_both() -> None:
    strategy = parameter_servers(1)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    trained = weight_of(strategy)

    def steps(batches: Any) -> None:
        for x, y in batches:
            train(trained, x, y)

    data = tf.data.ArrayBatches(X, Y, batch_size=BATCH)
    coordinator.schedule(steps, args=(iter(coordinator.create_per_worker_dataset(data)),))
    coordinator.join()
    report = strategy.monitor.report()
    assert (report.applied, report.examples) == (5, NUM)


def test_what_a_worker_had_is_let_go() -> None:
    strategy = parameter_servers(1)
    strategy.submit(lambda x: None, (X,)).fetch()
    strategy.driver.join()
    assert strategy.at_hand._batches == {}


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(None, 0), ((1, "a", np.float32(2)), 0), ({"a": 3.0, "b": np.zeros((4, 2))}, 4)],
)
def test_the_leading_dim(batch: Any, expected: int) -> None:
    assert leading_dim(batch) == expected
