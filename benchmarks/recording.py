"""What it costs to record a run: the same training with and without a trace, in turns.

    python benchmarks/recording.py

Two figures: how much longer a recorded run takes, which a machine whose speed changes from second
to second blurs by some per cent; and, in recorded runs of their own, the share of the workers' time
that goes into looking at what a step met the store with and writing its events. Exits with 1 when
that share is above 3 % for the larger model. A step of the smaller one takes a millisecond.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import machine
import numpy as np
from measuring import Spread
from rich.console import Console
from rich.table import Table

import paceline as tf
from paceline.cluster import Local, worker
from paceline.cluster.driving import Driving

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = 0.03
WORKERS = 2
STEPS = 100
_RANDOM = np.random.default_rng(0)


class Size(NamedTuple):
    """How large the model and its batches are.

    Attributes:
        hidden: units of the hidden layer, between 784 and 10.
        batch: examples.
        is_judged: whether the target is for this one.
    """

    hidden: int
    batch: int
    is_judged: bool

    @property
    def name(self) -> str:
        return f"784-{self.hidden}-10, batches of {self.batch}"


SIZES = [Size(128, 64, is_judged=False), Size(512, 128, is_judged=True)]


def batches(size: Size) -> list[tuple[Any, Any]]:
    """Random ones, one for each step."""
    shape = (STEPS, size.batch, 784)
    return list(
        zip(
            _RANDOM.normal(size=shape).astype("float32"),
            _RANDOM.integers(0, 10, shape[:2]).astype("int32"),
            strict=True,
        )
    )


def made(size: Size, path: Path | None) -> Any:
    """A model with Adagrad, compiled for workers that record to `path`, if any."""
    cluster = Local(WORKERS, devices=["cpu:0"], record=path)
    strategy = tf.distribute.ParameterServerStrategy(cluster=cluster)
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(size.hidden, activation="relu"), tf.keras.layers.Dense(10)]
        )
        model.compile(
            tf.keras.optimizers.Adagrad(0.01),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return model


def fit(model: Any, data: list[Any]) -> Callable[[], None]:
    """An epoch of `fit`."""
    x, y = map(np.concatenate, zip(*data, strict=True))
    return lambda: model.fit(x, y, batch_size=len(x) // STEPS, shuffle=False, verbose=0)


def own_loop(model: Any, data: list[Any]) -> Callable[[], None]:
    """As many steps, scheduled by hand."""
    strategy = model.distribute_strategy
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=y, y_pred=model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def epoch() -> None:
        for batch in data:
            coordinator.schedule(step, args=batch)
        coordinator.join()

    return epoch


def ratios(program: Callable[..., Callable[[], None]], size: Size, path: Path, rounds: int) -> Any:
    """Seconds of plain and of recorded epochs, and their ratio in each round."""
    data = batches(size)
    sides = [program(made(size, None), data), program(made(size, path), data)]
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


def share(program: Callable[..., Callable[[], None]], size: Size, path: Path) -> float:
    """Which part of the workers' time goes into recording."""
    run = program(made(size, path), batches(size))
    run()
    spent = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent += time.perf_counter() - start

        return call

    with (
        mock.patch.object(Driving, "_note", timed(Driving._note)),
        mock.patch.object(worker, "fingerprint_of", timed(worker.fingerprint_of)),
    ):
        start = time.perf_counter()
        run()
        return spent / (time.perf_counter() - start) / WORKERS


def main() -> int:
    """Measures, prints, and gives the exit status."""
    parser = argparse.ArgumentParser(description="Cost of recording a run.")
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    table = Table("model", "program", "plain, us", "recorded, us", "ratio", "share", "met")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for size, program in itertools.product(SIZES, (fit, own_loop)):
            path = Path(folder) / f"{program.__name__}_{size.hidden}.trace"
            plain, recorded, ratio = ratios(program, size, path, rounds)
            part = Spread.of([share(program, size, path) for _ in range(5)])
            met = part.median <= TARGET if size.is_judged else None
            table.add_row(
                size.name,
                program.__name__,
                f"{plain.median / STEPS * 1e6:,.0f}",
                f"{recorded.median / STEPS * 1e6:,.0f}",
                f"{ratio:.2f}",
                f"{part:.1%}",
                "-" if met is None else "[green]yes[/green]" if met else "[red]no[/red]",
            )
            rows.append(
                {
                    "model": size.name,
                    "program": program.__name__,
                    "plain_s": asdict(plain),
                    "recorded_s": asdict(recorded),
                    "ratio": asdict(ratio),
                    "share": asdict(part),
                    "trace_bytes": path.stat().st_size,
                    "met": met,
                }
            )
    note = (
        f"microseconds a step on {WORKERS} workers, {STEPS} steps at a time; medians of {rounds} "
        f"rounds in turns; share of the workers' time: at most {TARGET:.0%}"
    )
    machine.report("recording", rows, Console(), table, note)
    return int(any(row["met"] is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
