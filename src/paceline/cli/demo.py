"""`paceline demo`: a digits classifier, trained on replicas and tested."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import paceline as tf

REQUIRED_ACCURACY = 0.95
LEARNING_RATE = 0.005
BATCH_SIZE = 32


def demo(
    replicas: Annotated[int, typer.Option(min=1, help="How many CPU devices to train on.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, help="How often to pass over the images.")] = 15,
    seed: Annotated[int, typer.Option(min=0, help="Decides initial weights and order.")] = 0,
) -> None:
    """Train a classifier of 8x8 digits on several replicas and test it.

    Exits with status 1 if the accuracy on the test images is below 0.95.
    """
    loss, accuracy = _train_and_test(replicas, epochs, seed)
    console = Console()
    console.print(_report(replicas, loss, accuracy))
    if accuracy < REQUIRED_ACCURACY:
        console.print(
            f"The test accuracy must be at least {REQUIRED_ACCURACY}. Received: {accuracy:.4f} "
            f"with --epochs {epochs}. Give more epochs.",
            style="red",
        )
        raise typer.Exit(1)


def _train_and_test(replicas: int, epochs: int, seed: int) -> tuple[float, float]:
    """Returns the loss and the accuracy on the test images."""
    (x_train, y_train), (x_test, y_test) = tf.datasets.digits.load_data()
    tf.keras.utils.set_random_seed(seed)
    strategy = tf.distribute.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(),
                tf.keras.layers.Rescaling(1 / 16),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(LEARNING_RATE),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    model.fit(x_train, y_train, batch_size=BATCH_SIZE, epochs=epochs)
    measured = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
    return measured["loss"], measured["accuracy"]


def _report(replicas: int, loss: float, accuracy: float) -> Table:
    table = Table(title="UCI 8x8 digits")
    for heading in ("Replicas", "Test loss", "Test accuracy"):
        table.add_column(heading, justify="right")
    table.add_row(str(replicas), f"{loss:.4f}", f"{accuracy:.4f}")
    return table
