"""What every side shares: the model's sizes, the data, the first weights, and the clock.

All sides train on the same batches from the same weights, so that the mean loss of the first
epoch, which each side reports, shows that they did the same work.

This module needs only NumPy: the sides run in environments that do not know each other.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

INPUTS = 784
HIDDEN = 128
CLASSES = 10
ROWS = 20_000
BATCH = 64
REPLICAS = 2
DEVICES = ("cpu:0", "cpu:1")
LEARNING_RATE = 1e-3
EPSILON = 1e-7  # Keras's default, given to every Adam and Adagrad
ADAGRAD_RATE = 0.01
ADAGRAD_START = 0.1  # of the accumulator; Keras's default, and Optax's
STEPS_PER_EPOCH = ROWS // BATCH  # full batches only, so that each step is the same work

Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one side measured in one process.

    Attributes:
        steps_per_s: Steps a second after the first epoch.
        compile_s: Seconds of the first step (for fit: up to the end of its first execution).
        first_epoch_loss: Mean loss of the first epoch.
    """

    steps_per_s: float
    compile_s: float
    first_epoch_loss: float


def data() -> Batch:
    """Gives the rows of whole batches: x (rows, 784) float32, y (rows,) int32.

    The inputs are random. The labels come from a fixed linear map of them, so that the loss
    falls, and a side that does not train is noticed.
    """
    rng = np.random.default_rng(0)
    x = rng.random((ROWS, INPUTS), dtype=np.float32)
    teacher = rng.standard_normal((INPUTS, CLASSES), dtype=np.float32)
    y = np.argmax((x - 0.5) @ teacher, axis=1).astype(np.int32)
    rows = STEPS_PER_EPOCH * BATCH
    return x[:rows], y[:rows]


def batches() -> list[Batch]:
    """Gives one epoch as global batches; each is a view of the rows."""
    x, y = data()
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]


class _WorkerBatches:
    """Batches in orders of one worker, without end.

    Args:
        seed: Makes the orders.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __iter__(self) -> Iterator[Batch]:
        order = np.random.default_rng(self._seed)
        epoch = batches()
        while True:
            for place in order.permutation(len(epoch)):
                yield epoch[place]


def worker_batches(worker: Any) -> Iterable[Batch]:
    """Gives the dataset of an asynchronous worker: all batches, in random orders, without end.

    Args:
        worker: The worker's number, or the `InputContext` that Paceline tells it with.
    """
    return _WorkerBatches(getattr(worker, "input_pipeline_id", worker))


def weights() -> list[np.ndarray]:
    """Gives the first weights in Keras's order and layout: kernel, bias, kernel, bias."""
    rng = np.random.default_rng(1)

    def glorot(rows: int, columns: int) -> np.ndarray:
        limit = np.sqrt(6 / (rows + columns))
        return rng.uniform(-limit, limit, (rows, columns)).astype(np.float32)

    return [
        glorot(INPUTS, HIDDEN),
        np.zeros(HIDDEN, np.float32),
        glorot(HIDDEN, CLASSES),
        np.zeros(CLASSES, np.float32),
    ]


def keras_model(keras: Any) -> Any:
    """Builds the model with the Keras given, or with a namespace that looks like it."""
    model = keras.Sequential(
        [
            keras.layers.Input((INPUTS,)),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )
    model.set_weights(weights())
    return model


def adam(keras: Any) -> Any:
    """Makes the optimizer of the sides in lockstep, with the Keras given."""
    return keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON)


def adagrad(keras: Any) -> Any:
    """Makes the optimizer of the sides with parameter servers, with the Keras given."""
    return keras.optimizers.Adagrad(
        ADAGRAD_RATE, initial_accumulator_value=ADAGRAD_START, epsilon=EPSILON
    )


def time_loop(
    step: Callable[..., Any], epoch: Iterable[Any], *, steps: int, read: Callable[[Any], float]
) -> Measurement:
    """Times an own training loop.

    Args:
        step: Trains on one batch, called as `step(*batch)`; gives the loss.
        epoch: The batches of one epoch; iterated again for each epoch.
        steps: Timed steps, rounded up to whole epochs.
        read: Waits for a loss and converts it. Only the first step and the last of all timed
            steps are waited for, as in a loop that reads the loss now and then.
    """
    losses: list[Any] = []
    compile_s = 0.0
    start = time.perf_counter()
    for batch in epoch:
        losses.append(step(*batch))
        if len(losses) == 1:
            read(losses[0])
            compile_s = time.perf_counter() - start
    first_epoch_loss = float(np.mean([read(loss) for loss in losses]))

    epochs = whole_epochs(steps)
    loss = losses[-1]
    losses.clear()
    start = time.perf_counter()
    for _ in range(epochs):
        for batch in epoch:
            loss = step(*batch)
    read(loss)
    seconds = time.perf_counter() - start
    return Measurement(
        steps_per_s=epochs * STEPS_PER_EPOCH / seconds,
        compile_s=compile_s,
        first_epoch_loss=first_epoch_loss,
    )


def time_fit(
    keras: Any, model: Any, *, steps: int, steps_per_execution: int = 1, optimizer: Any = None
) -> Measurement:
    """Compiles the model, fits one epoch to warm up, then times `fit` on whole epochs.

    Args:
        keras: The Keras that made the model, or a namespace that looks like it.
        model: The model, not compiled.
        steps: Timed steps, rounded up to whole epochs.
        steps_per_execution: As in Keras's `compile`.
        optimizer: As in Keras's `compile`; by default Adam.
    """
    x, y = data()
    # No shuffling and no metrics: the own loops that fit is compared with have none either.
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    first_end: list[float] = []

    def note_end(batch: int, logs: Any = None) -> None:
        del batch, logs
        if not first_end:
            first_end.append(time.perf_counter())

    start = time.perf_counter()
    model.compile(
        optimizer=optimizer or adam(keras),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_execution,
    )
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=note_end)
    history = model.fit(x, y, epochs=1, callbacks=[callback], **options)

    epochs = whole_epochs(steps)
    timed = time.perf_counter()
    model.fit(x, y, epochs=epochs, **options)
    seconds = time.perf_counter() - timed
    return Measurement(
        steps_per_s=epochs * STEPS_PER_EPOCH / seconds,
        compile_s=first_end[0] - start,
        first_epoch_loss=float(history.history["loss"][0]),
    )


def whole_epochs(steps: int) -> int:
    """Gives the number of epochs that hold at least so many steps."""
    return max(1, -(-steps // STEPS_PER_EPOCH))


def arguments() -> argparse.Namespace:
    """Reads a side's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3 * STEPS_PER_EPOCH)
    parser.add_argument("--steps-per-execution", type=int, default=1, help="used by fit only")
    parser.add_argument("--workers", type=int, default=2, help="used with a store only")
    parser.add_argument("--cpu-devices", type=int, default=1, help="used with a store only")
    return parser.parse_args()


def report(measurement: Measurement, *packages: str) -> None:
    """Prints the one JSON line that the driver reads.

    Args:
        measurement: What the side measured.
        packages: Distributions whose versions belong to it.
    """
    versions = {name: importlib.metadata.version(name) for name in packages}
    print(json.dumps({**asdict(measurement), "versions": versions}))
    sys.stdout.flush()
