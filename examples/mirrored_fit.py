"""MNIST with `fit` on two replicas; `compile` inside the scope or outside, it is the same."""

from __future__ import annotations

import argparse

import paceline as tf


def main(epochs: int = 5, compile_inside: bool = True) -> float:
    """Trains and returns the test accuracy."""
    (x_train, y_train), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
    x_train, x_test = x_train / 255.0, x_test / 255.0

    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    compilation = {
        "optimizer": "adam",
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
    }
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(10, activation="softmax"),
            ]
        )
        if compile_inside:
            model.compile(**compilation)
    if not compile_inside:
        model.compile(**compilation)

    model.fit(x_train, y_train, epochs=epochs)
    _, accuracy = model.evaluate(x_test, y_test)
    return float(accuracy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--compile-outside", action="store_true")
    options = parser.parse_args()
    print(f"test accuracy: {main(options.epochs, not options.compile_outside):.4f}")
