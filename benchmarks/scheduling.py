"""What it costs to have workers call a function that does nothing.

    python benchmarks/scheduling.py

Exits with 1 when scheduling, or scheduling and running, costs more than the target for each
function.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import machine
from measuring import Spread
from rich.console import Console
from rich.table import Table

import paceline as tf
from paceline.cluster import Local

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET_US = 100.0
COUNTS = (1_000, 10_000)
WORKERS = 4


def nothing() -> None:
    """Does nothing."""


def microseconds(
    coordinator: Any, fn: Callable[[], Any], count: int, rounds: int
) -> tuple[Spread, Spread]:
    """Schedules `fn` so many times in each round and waits for all of them.

    Returns:
        Microseconds for each function: until it was scheduled, and until it was done.
    """
    scheduled: list[float] = []
    done: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            coordinator.schedule(fn)
        at_schedule = time.perf_counter()
        coordinator.join()
        at_end = time.perf_counter()
        scheduled.append((at_schedule - start) / count * 1e6)
        done.append((at_end - start) / count * 1e6)
    return Spread.of(scheduled), Spread.of(done)


def main() -> int:
    """Measures, prints, and gives the exit status."""
    parser = argparse.ArgumentParser(description="Cost of scheduling an empty function.")
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds

    strategy = tf.distribute.ParameterServerStrategy(cluster=Local(workers=WORKERS))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    table = Table("function", "how many", "scheduled, us", "done, us", "met")
    rows: list[dict[str, Any]] = []
    functions = {"a function": nothing, "a paceline.function": tf.function(nothing)}
    for name, fn in functions.items():
        microseconds(coordinator, fn, COUNTS[0], 1)  # starts the workers, and traces
        for count in COUNTS:
            scheduled, done = microseconds(coordinator, fn, count, rounds)
            # The target is about scheduling; a compiled step has its own cost, given beside it.
            met = max(scheduled.median, done.median) <= TARGET_US if fn is nothing else None
            shown = {None: "-", True: "[green]yes[/green]", False: "[red]no[/red]"}[met]
            table.add_row(name, f"{count:,}", f"{scheduled:.0f}", f"{done:.0f}", shown)
            rows.append(
                {
                    "function": name,
                    "count": count,
                    "scheduled_us": asdict(scheduled),
                    "done_us": asdict(done),
                    "met": met,
                }
            )
    note = f"{WORKERS} workers; median (range) of {rounds} rounds; target {TARGET_US:.0f} us"
    machine.report("scheduling", rows, Console(), table, note)
    return int(any(row["met"] is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
