"""A loop of one's own in which two workers update the weights without waiting for each other.

Two ways to write it. With `CentralStorageStrategy` the loop hands out batches, and the next free
worker takes each. With `ParameterServerStrategy` every worker reads a dataset of its own, and a
coordinator schedules steps. Both print how stale the updates were.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

import paceline as tf

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_SIZE = 64


def make_model() -> Any:
    """Returns a classifier for images `[batch, 28, 28]` with pixels from 0 to 1."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((28, 28)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def make_train_step(model: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """Returns a step over one batch. A worker computes the gradients; the store updates."""
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


def train_with_central_storage(images: Any, labels: Any, epochs: int) -> tuple[Any, Any]:
    """Trains with a loop over batches; returns the strategy and the model."""
    strategy = tf.distribute.experimental.CentralStorageStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model, optimizer = make_model(), tf.optimizers.Adagrad(0.1)
    train_step = make_train_step(model, optimizer)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.run(train_step, args=(x, y))

    batches = tf.data.ArrayBatches(images, labels, batch_size=BATCH_SIZE, shuffle=True)
    for epoch in range(epochs):
        # A step returns at once; reading a loss waits for it.
        losses = [step(x, y) for x, y in strategy.experimental_distribute_dataset(batches)]
        print(f"epoch {epoch + 1}: loss {np.mean([float(loss) for loss in losses]):.4f}")
    return strategy, model


def train_with_coordinator(images: Any, labels: Any, epochs: int) -> tuple[Any, Any]:
    """Trains with scheduled steps; returns the strategy and the model."""
    strategy = tf.distribute.ParameterServerStrategy()
    with strategy.scope():
        model, optimizer = make_model(), tf.optimizers.Adagrad(0.1)
    train_step = make_train_step(model, optimizer)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def dataset_fn(context: Any) -> Any:
        mine = slice(context.input_pipeline_id, None, context.num_input_pipelines)
        return tf.data.ArrayBatches(
            images[mine], labels[mine], batch_size=BATCH_SIZE, shuffle=True, repeat=None
        )

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(train_step, args=next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    for epoch in range(epochs):
        steps = len(images) // BATCH_SIZE
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]
        coordinator.join()
        print(f"epoch {epoch + 1}: loss {np.mean(coordinator.fetch(losses)):.4f}")
    return strategy, model


def main(epochs: int = 5, with_coordinator: bool = False) -> float:
    """Trains, prints the report of staleness and returns the test accuracy."""
    (x_train, y_train), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
    x_train, x_test = x_train.astype("float32") / 255, x_test.astype("float32") / 255
    train = train_with_coordinator if with_coordinator else train_with_central_storage
    strategy, model = train(x_train, y_train, epochs)
    print(strategy.monitor.report().summary())

    predicted = np.argmax(model.predict(x_test, verbose=0), axis=-1)
    return float(np.mean(predicted == y_test))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--coordinator", action="store_true")
    options = parser.parse_args()
    print(f"test accuracy: {main(options.epochs, options.coordinator):.4f}")
