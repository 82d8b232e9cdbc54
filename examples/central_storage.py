"""MNIST with `fit`: variables on one device, two workers that update them without waiting.

A worker takes the next batch when it is ready, computes with the weights as they are by then, and
pushes. At the end a table says how stale the updates were.
"""

from __future__ import annotations

import argparse

import paceline as tf


def main(epochs: int = 5) -> float:
    """Trains and returns the test accuracy."""
    (x_train, y_train), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
    x_train, x_test = x_train / 255.0, x_test / 255.0

    strategy = tf.distribute.experimental.CentralStorageStrategy()
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            optimizer="adam",
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    model.fit(x_train, y_train, epochs=epochs)
    _, accuracy = model.evaluate(x_test, y_test)
    return float(accuracy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    print(f"test accuracy: {main(parser.parse_args().epochs):.4f}")
