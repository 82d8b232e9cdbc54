"""Whether a store's memory is its variables, their slots and the snapshots in use, nothing more.

    python benchmarks/store_memory.py

Two workers train without waiting for each other. The arrays that JAX holds are counted by the
workers while they train, and whenever all of them have stopped. Exits with 1 when a store at rest
ever holds more than variables and slots, or a running one more than its workers can have in use.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import jax
from measuring import Spread
from rich.console import Console
from rich.table import Table

import paceline as tf
from paceline.cluster import Local

sys.path.insert(0, str(Path(__file__).resolve().parent / "sides"))
# The type checker does not see the path added above.
import common  # pyright: ignore[reportMissingImports]
import coordinated  # pyright: ignore[reportMissingImports]

WORKERS = 2
BLOCK = 100  # steps between two stops
EVERY = 7  # steps between two counts; prime, so that no period of the workers hides anything
ONE_BY_ONE = 40  # stops after single steps, at the end: workers rest at every phase of periods
SCALARS = 4096  # bytes for losses, step counts and the like


def held() -> tuple[int, int]:
    """Gives number and bytes of the arrays that JAX holds."""
    live = jax.live_arrays()
    return len(live), sum(array.nbytes for array in live)


def total(variables: list[Any]) -> int:
    """Gives the bytes of variables."""
    return sum(variable.value.nbytes for variable in variables)


def most_in_use(weights: int, store: int) -> int:
    """Gives the bytes that a running store can need.

    A worker has a snapshot of the weights and gradients, and may keep those of the step before
    for the watch on stability, with the step that came of it. One update at a time has new values
    beside the old ones.

    Args:
        weights: Bytes of what is trained.
        store: Bytes of variables and slots.
    """
    return store + WORKERS * 5 * weights + store + SCALARS


def train(strategy: Any, step: Any, steps: int) -> tuple[list[Any], list[Any]]:
    """Trains, and gives the counts of the workers and those at rest."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(common.worker_batches))
    running: list[tuple[int, int]] = []
    at_rest: list[tuple[int, int]] = []
    number = itertools.count()

    def step_and_count(batches: Any) -> None:
        step(batches)
        if next(number) % EVERY == 0:
            running.append(held())

    for block in [BLOCK] * -(-steps // BLOCK) + [1] * ONE_BY_ONE:
        for _ in range(block):
            coordinator.schedule(step_and_count, args=(iterator,))
        coordinator.join()
        at_rest.append(held())
    return running, at_rest


def main() -> int:
    """Counts, prints, and gives the exit status."""
    parser = argparse.ArgumentParser(description="Memory of a store while it is trained.")
    parser.add_argument("--steps", type=int, default=2_000)
    steps = parser.parse_args().steps

    strategy = tf.distribute.ParameterServerStrategy(cluster=Local(workers=WORKERS))
    model, optimizer = coordinated.make_model(tf, strategy)
    step = coordinated.make_step(tf, strategy, model, optimizer)
    running, at_rest = train(strategy, step, steps)

    weights = total(model.trainable_variables)
    store = total(model.variables) + total(optimizer.variables)
    limits = {"running": most_in_use(weights, store), "at rest": store}
    table = Table("store", "arrays", "bytes: median (range)", "at most", "met")
    is_met = True
    for name, counts in (("running", running), ("at rest", at_rest)):
        arrays, sizes = zip(*counts, strict=True)
        met = max(sizes) <= limits[name]
        is_met = is_met and met
        table.add_row(
            name,
            f"{Spread.of(list(arrays)):.0f}",
            f"{Spread.of(list(sizes)):,.0f}",
            f"{limits[name]:,}",
            "[green]yes[/green]" if met else "[red]no[/red]",
        )
    console = Console()
    console.print(
        f"{store:,} bytes of variables and slots, {weights:,} of them weights; {steps:,} steps of "
        f"{WORKERS} workers"
    )
    console.print(table)
    return int(not is_met)


if __name__ == "__main__":
    sys.exit(main())
