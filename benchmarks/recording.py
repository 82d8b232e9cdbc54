"""What it costs to record a run: the same training with and without a trace, in turns.

    python benchmarks/recording.py

Exits with 1 when a recorded run takes more than 3 % longer, as the median over the rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
import numpy as np
from measuring import Spread
from rich.console import Console
from rich.table import Table

import paceline as tf
from paceline.cluster import Local

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = 1.03
WORKERS = 2
BATCH = 64
STEPS = 300
_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(STEPS * BATCH, 784)).astype("float32")
Y = _RANDOM.integers(0, 10, STEPS * BATCH).astype("int32")


def made(path: Path | None) -> Any:
    """A Dense 784-128-10 with Adagrad, compiled for workers that record to `path`, if any."""
    cluster = Local(WORKERS, devices=["cpu:0"], record=path)
    strategy = tf.distribute.ParameterServerStrategy(cluster=cluster)
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(128, activation="relu"), tf.keras.layers.Dense(10)]
        )
        model.compile(
            tf.keras.optimizers.Adagrad(0.01),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return model


def fit(model: Any) -> Callable[[], None]:
    """An epoch of `fit`."""
    return lambda: model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)


def own_loop(model: Any) -> Callable[[], None]:
    """As many steps, scheduled by hand."""
    strategy = model.distribute_strategy
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    batches = [(X[k : k + BATCH], Y[k : k + BATCH]) for k in range(0, len(X), BATCH)]

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=y, y_pred=model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def epoch() -> None:
        for batch in batches:
            coordinator.schedule(step, args=batch)
        coordinator.join()

    return epoch


def ratios(program: Callable[[Any], Callable[[], None]], path: Path, rounds: int) -> Any:
    """Seconds of plain and of recorded epochs, and their ratio in each round."""
    sides = [program(made(None)), program(made(path))]
    for side in sides:
        side()  # compiles, and starts the workers
    seconds: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            sides[which]()
            seconds[which].append(time.perf_counter() - start)
    plain, recorded = seconds
    found = [after / before for before, after in zip(plain, recorded, strict=True)]
    return Spread.of(plain), Spread.of(recorded), Spread.of(found)


def main() -> int:
    """Measures, prints, and gives the exit status."""
    parser = argparse.ArgumentParser(description="Cost of recording a run.")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    table = Table("program", "plain, ms", "recorded, ms", "ratio", "range", "met")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for program in (fit, own_loop):
            path = Path(folder) / f"{program.__name__}.trace"
            plain, recorded, ratio = ratios(program, path, rounds)
            met = ratio.median <= TARGET
            table.add_row(
                program.__name__,
                f"{plain.median * 1e3:.0f}",
                f"{recorded.median * 1e3:.0f}",
                f"{ratio.median:.3f}",
                f"{ratio.least:.3f} - {ratio.greatest:.3f}",
                "[green]yes[/green]" if met else "[red]no[/red]",
            )
            rows.append(
                {
                    "program": program.__name__,
                    "plain_s": asdict(plain),
                    "recorded_s": asdict(recorded),
                    "ratio": asdict(ratio),
                    "trace_bytes": path.stat().st_size,
                    "met": met,
                }
            )
    note = (
        f"{STEPS} steps of {BATCH} on {WORKERS} workers; medians of {rounds} rounds in turns; "
        f"target {TARGET}"
    )
    machine.report("recording", rows, Console(), table, note)
    return int(not all(row["met"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
