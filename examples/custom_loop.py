"""A training loop of one's own on the digits, with two replicas or without any strategy.

The last batch of an epoch is short (37 examples); it counts as 37 examples, whoever holds them.
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
    """Returns a small classifier for images `[batch, 8, 8]`."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def make_train_step(model: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """Returns a step over one batch; inside `run`, over the replica's part of it."""
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


def train(step: Callable[[Any, Any], Any], dataset: Any, epochs: int) -> None:
    """Loops over epochs and batches."""
    for epoch in range(epochs):
        losses = [step(images, labels) for images, labels in dataset]
        print(f"epoch {epoch + 1}: loss {np.mean([float(loss) for loss in losses]):.4f}")


def main(epochs: int = 10, distributed: bool = True) -> float:
    """Trains and returns the test accuracy."""
    (x_train, y_train), (x_test, y_test) = tf.datasets.digits.load_data()
    x_train, x_test = x_train.astype("float32") / 16, x_test.astype("float32") / 16
    dataset = tf.data.ArrayBatches(x_train, y_train, batch_size=BATCH_SIZE)

    if distributed:
        strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
        with strategy.scope():
            model, optimizer = make_model(), tf.optimizers.Adagrad(0.1)
        train_step = make_train_step(model, optimizer)

        @tf.function
        def step(images: Any, labels: Any) -> Any:
            losses = strategy.run(train_step, args=(images, labels))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        train(step, strategy.experimental_distribute_dataset(dataset), epochs)
    else:
        model, optimizer = make_model(), tf.optimizers.Adagrad(0.1)
        train(tf.function(make_train_step(model, optimizer)), dataset, epochs)

    predicted = np.argmax(model.predict(x_test, verbose=0), axis=-1)
    return float(np.mean(predicted == y_test))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--no-strategy", action="store_true")
    options = parser.parse_args()
    print(f"test accuracy: {main(options.epochs, not options.no_strategy):.4f}")
