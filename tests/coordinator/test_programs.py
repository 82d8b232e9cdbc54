"""Whole programs in the spelling of tf.distribute."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import paceline as tf

if TYPE_CHECKING:
    from collections.abc import Iterator


def resolver(workers: int, servers: int) -> Any:
    cluster = {
        "chief": ["localhost:0"],
        "worker": [f"localhost:{1 + i}" for i in range(workers)],
        "ps": [f"localhost:{1 + workers + i}" for i in range(servers)],
    }
    return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster))


def line(context: tf.distribute.InputContext) -> Iterator[Any]:
    """Batches of y = 2x, other ones for each worker, without end."""
    random = np.random.default_rng(context.input_pipeline_id)
    while True:
        x = random.uniform(-1, 1, (8, 1)).astype("float32")
        yield x, 2 * x


@pytest.mark.case("R79")
def test_the_tutorial() -> None:
    strategy = tf.distribute.ParameterServerStrategy(
        resolver(3, 2),
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=256 << 10, max_shards=2
        ),
    )
    assert (strategy.cluster.workers, strategy.cluster.servers) == (3, 2)
    coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False)])
        model.build((None, 1))
        optimizer = tf.keras.optimizers.SGD(0.2)
        error = tf.keras.metrics.MeanAbsoluteError()

    @tf.function
    def step_fn(iterator: Any) -> Any:
        def replica_fn(batch: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                prediction = model(batch, training=True)
                per_example = (prediction - labels)[:, 0] ** 2
                loss = tf.nn.compute_average_loss(per_example)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            error.update_state(labels, prediction)
            return loss

        batch, labels = next(iterator)
        losses = strategy.run(replica_fn, args=(batch, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def per_worker_dataset_fn() -> Any:
        return strategy.distribute_datasets_from_function(line)

    iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
    results, losses = [], []
    for _ in range(4):
        error.reset_state()
        values = [coordinator.schedule(step_fn, args=(iterator,)) for _ in range(15)]
        coordinator.join()
        assert coordinator.done()
        losses.append(float(values[-1].fetch()))
        results.append(float(error.result()))

    assert optimizer.iterations.numpy() == 60
    assert model.trainable_variables[0].numpy() == pytest.approx(2.0, abs=0.05)
    assert losses[-1] < losses[0]
    assert results[-1] < results[0]
    assert results[-1] < 0.1


@pytest.mark.case("R79")
def test_a_loop_that_polls_and_stops_by_itself(coordinator: Any) -> None:
    strategy = coordinator.strategy
    with strategy.scope():
        w = tf.Variable(0.0)
        optimizer = tf.keras.optimizers.Adam(0.1)

    @tf.function
    def step(iterator: Any, scale: float) -> Any:
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = (((w * x - y) * scale) ** 2).mean()
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(line))
    for epoch in itertools.count():
        values = [coordinator.schedule(step, args=(iterator, 1.0)) for _ in range(10)]
        while not coordinator.done():
            values[-1].get()
        coordinator.join()
        if np.mean(coordinator.fetch(values)) < 1e-4:
            break
        assert epoch < 100
    assert w.numpy() == pytest.approx(2.0, abs=0.05)
    assert optimizer.iterations.numpy() == 10 * (epoch + 1)


def test_evaluation_is_scheduled_like_training(coordinator: Any) -> None:
    strategy = coordinator.strategy
    with strategy.scope():
        mean = tf.keras.metrics.Mean()
    batches = tf.data.ArrayBatches(np.arange(10.0, dtype="float32"), batch_size=4)

    @tf.function
    def evaluate(iterator: Any) -> None:
        strategy.run(mean.update_state, args=(next(iterator),))

    shares = coordinator.create_per_worker_dataset(
        lambda context: list(batches)[context.input_pipeline_id :: context.num_input_pipelines]
    )
    iterator = iter(shares)

    def all_of_mine(iterator: Any) -> int:
        count = 0
        while True:
            try:
                evaluate(iterator)
            except StopIteration:
                return count
            count += 1

    counts: list[int] = []
    while sum(counts) < 3:  # a worker that comes again finds nothing left
        counts.append(coordinator.schedule(all_of_mine, args=(iterator,)).fetch())
    assert float(mean.result()) == 4.5
