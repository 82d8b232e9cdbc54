"""Parameter servers: an embedding in two shards, trained by three workers that don't wait.

A basket of five items is worth buying when most of its items are good, which the labels tell and
the embedding has to learn. Trained twice: with a coordinator that schedules steps, and with `fit`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import paceline as tf

ITEMS = 1024
BASKET = 5
BATCH_SIZE = 64
STEPS_PER_EPOCH = 60


def make_strategy() -> Any:
    """Returns a strategy for a cluster of three workers and two servers."""
    spec = tf.train.ClusterSpec(
        {
            "worker": [f"worker{index}.example.com:2222" for index in range(3)],
            "ps": [f"ps{index}.example.com:2222" for index in range(2)],
        }
    )
    # Two shards of the embedding's 32 KiB each; everything smaller stays whole.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=32 << 10, max_shards=2
    )
    return tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(spec), variable_partitioner=partitioner
    )


def make_baskets(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns baskets `[count, BASKET]` of item numbers, and labels `[count, 1]` of 0 and 1."""
    is_good = np.random.default_rng(0).permutation(ITEMS) % 2
    baskets = np.random.default_rng(seed).integers(0, ITEMS, (count, BASKET), dtype=np.int32)
    labels = is_good[baskets].sum(axis=1, keepdims=True) > BASKET // 2
    return baskets, labels.astype("float32")


def dataset_fn(context: Any) -> Any:
    """Returns a worker's baskets, without end; `fit` has one pipeline for all workers."""
    baskets, labels = make_baskets(BATCH_SIZE * STEPS_PER_EPOCH, seed=1)
    mine = slice(context.input_pipeline_id, None, context.num_input_pipelines)
    batch_size = context.get_per_replica_batch_size(BATCH_SIZE)
    return tf.data.ArrayBatches(
        baskets[mine], labels[mine], batch_size=batch_size, shuffle=True, seed=2, repeat=None
    )


def make_model() -> Any:
    """Returns a model of baskets, with the embedding's rows divided over the servers."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((BASKET,), dtype="int32"),
            tf.keras.layers.Embedding(ITEMS, 16),
            tf.keras.layers.GlobalAveragePooling1D(),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def train_with_coordinator(strategy: Any, epochs: int) -> Any:
    """Trains by scheduling steps, and returns the model."""
    with strategy.scope():
        model = make_model()
        optimizer = tf.optimizers.RMSprop(0.01)
        accuracy = tf.metrics.BinaryAccuracy()
        loss_fn = tf.losses.BinaryCrossentropy(reduction="none")

    def replica_fn(baskets: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = model(baskets, training=True)
            loss = tf.nn.compute_average_loss(loss_fn(labels, predicted))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, predicted)
        return loss

    @tf.function
    def step(iterator: Any) -> Any:
        losses = strategy.run(replica_fn, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    dataset = coordinator.create_per_worker_dataset(
        lambda: strategy.distribute_datasets_from_function(dataset_fn)
    )
    iterator = iter(dataset)
    for epoch in range(epochs):
        accuracy.reset_state()
        for _ in range(STEPS_PER_EPOCH):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        print(f"epoch {epoch + 1}: accuracy {float(accuracy.result()):.3f}")
    last = coordinator.schedule(step, args=(iterator,))
    print(f"loss of one more step: {last.fetch():.4f}")
    return model


def train_with_fit(strategy: Any, epochs: int) -> Any:
    """Trains with Keras's `fit`, and returns the model."""
    with strategy.scope():
        model = make_model()
    model.compile(tf.optimizers.RMSprop(0.01), "binary_crossentropy", metrics=["accuracy"])
    model.fit(dataset_fn, steps_per_epoch=STEPS_PER_EPOCH, epochs=epochs)
    return model


def main(epochs: int = 10, with_fit: bool = False) -> float:
    """Trains, says what the servers hold, and returns the accuracy on new baskets."""
    strategy = make_strategy()
    model = (train_with_fit if with_fit else train_with_coordinator)(strategy, epochs)
    print(strategy.placement_report().as_text())
    baskets, labels = make_baskets(2_000, seed=3)
    predicted = model.predict(baskets, verbose=0) > 0.5
    return float(np.mean(predicted == labels))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    print(f"accuracy on new baskets: {main(options.epochs, options.fit):.4f}")
