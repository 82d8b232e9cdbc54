"""What simulation costs: gradients a second in virtual time, and pushes a second without any.

    python benchmarks/simulation.py

In one process: a plain JAX loop that trains a Keras model with SGD, each gradient waited for, takes
turns with the same gradients by simulated workers, free-running and in lockstep, in turns of about
a second, since a machine's speed may change from one second to the next. Then rehearsals. Exits
with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import jax
import machine
import numpy as np
from measuring import Spread
from rich.console import Console
from rich.table import Table

import paceline as tf
from paceline.cluster import Simulated
from paceline.comparison import rehearse
from paceline.pace import Asynchronous, BoundedStaleness, Pace, Softsync, Synchronous
from paceline.virtual import Pareto

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, FEATURES, HIDDEN, CLASSES = 128, 784, 512, 10
OF_PLAIN, PUSHES_A_SECOND = 0.8, 35_000
REHEARSED = 50_000


def model() -> Any:
    """Dense 784-512-10."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((FEATURES,)),
            tf.keras.layers.Dense(HIDDEN, activation="relu"),
            tf.keras.layers.Dense(CLASSES),
        ]
    )


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random batches, always the same ones."""
    rng = np.random.default_rng(0)
    return [
        (
            rng.normal(size=(BATCH, FEATURES)).astype("float32"),
            rng.integers(0, CLASSES, BATCH).astype("int32"),
        )
        for _ in range(count)
    ]


def plain(data: list[Any]) -> Callable[[], None]:
    """Gradients and updates by hand."""
    network = model()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @jax.jit
    def gradients(weights: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda w: loss_of(y, network.stateless_call(w, [], x)[0]))(weights)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(weights: Any, grads: Any) -> Any:
        return [weight - 0.001 * grad for weight, grad in zip(weights, grads, strict=True)]

    def run() -> None:
        weights = [jax.numpy.array(v.value) for v in network.trainable_variables]
        for x, y in data:
            weights = update(weights, jax.block_until_ready(gradients(weights, x, y)))
        jax.block_until_ready(weights)

    return run


def simulated(data: list[Any], workers: int, pace: Pace) -> Callable[[], None]:
    """The same gradients by simulated workers, applied with SGD at the store."""
    cluster = Simulated(workers, compute=Pareto())
    strategy = tf.distribute.ParameterServerStrategy(cluster=cluster, pace=pace)
    with strategy.scope():
        network, optimizer = model(), tf.keras.optimizers.SGD(0.001)
        optimizer.build(network.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = network.trainable_variables

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, network(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    def run() -> None:
        for batch in data:
            strategy.hand_out(step, batch, examples=BATCH, is_one_push=True, is_kept=True)
        strategy.driver.join()

    return run


def of_plain(count: int, workers: int, pace: Pace, rounds: int) -> tuple[Spread, Spread]:
    """What the simulation's rate is of the plain loop's, and the latter, in gradients a second."""
    data = batches(count)
    sides = [plain(data), simulated(data, workers, pace)]
    for run in sides:  # traces and compiles
        run()
    rates: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            rates[which].append(per_second(sides[which], count))
    found = [ours / theirs for theirs, ours in zip(*rates, strict=True)]
    return Spread.of(found), Spread.of(rates[0])


def per_second(run: Callable[[], object], count: int) -> float:
    """How many of `count` things a run does in a second."""
    start = time.perf_counter()
    run()
    return count / (time.perf_counter() - start)


def main() -> int:
    """Measures, prints, and gives the exit status."""
    parser = argparse.ArgumentParser(description="Cost of simulation.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=256)
    arguments = parser.parse_args()
    simulations = {
        f"{workers:,} workers, {name}": of_plain(
            max(workers, arguments.steps), workers, pace, arguments.rounds
        )
        for workers, name, pace in (
            (64, "free-running", Asynchronous()),
            (64, "lockstep", Synchronous()),
            (1_000, "free-running", Asynchronous()),
        )
    }

    rehearsals: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for pace in (Asynchronous(), Synchronous(), BoundedStaleness(8), Softsync(8)):
            cluster = Simulated(256, compute=Pareto())
            rate = per_second(lambda p=pace, c=cluster: rehearse(c, REHEARSED, pace=p), REHEARSED)
            rehearsals.setdefault(repr(pace), []).append(rate)

    rows: list[dict[str, Any]] = []
    table = Table("what", "median (range)", "at least", "met")
    for name, (spread, _) in simulations.items():
        met = spread.median >= OF_PLAIN
        rows.append({"what": name, **asdict(spread), "met": met})
        table.add_row(f"gradients / plain loop, {name}", f"{spread:.2f}", f"{OF_PLAIN}", _word(met))
    for name, values in rehearsals.items():
        spread = Spread.of(values)
        met = spread.median >= PUSHES_A_SECOND
        rows.append({"what": name, **asdict(spread), "met": met})
        table.add_row(
            f"rehearsed pushes a second, {name}", f"{spread:,.0f}", f"{PUSHES_A_SECOND:,}",
            _word(met),
        )  # fmt: skip
    rates = ", ".join(f"{rate:,.0f}" for _, rate in simulations.values())
    note = f"plain loop: {rates} gradients a second, batch {BATCH}; {arguments.rounds} rounds"
    machine.report("simulation", rows, Console(), table, note)
    return 0 if all(row["met"] for row in rows) else 1


def _word(met: bool) -> str:
    return "[green]yes[/green]" if met else "[red]no[/red]"


if __name__ == "__main__":
    sys.exit(main())
