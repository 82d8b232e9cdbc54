"""What modes do to learning: the digits on 32 simulated workers, at one rate and at the best ones.

    python benchmarks/modes.py

Exits with 1 when a figure is out of its range: plain updates collapse at a rate that was not tuned,
scaled and adaptively compensated ones stay within 8 points of lockstep; at the best rate of each,
all are within two points.
"""

from __future__ import annotations

import sys

import machine
from rich.console import Console

from paceline.comparison import compare, digits, tables
from paceline.virtual import LogNormal

MODES = ["lockstep", "async/plain", "async", "async/adaptive", "async/gap"]
RATE, RATES = 0.1, (0.03, 0.1, 0.3, 1.0)
WORKERS, NOISE = 32, LogNormal(1.0, 0.3)
WITHIN, COLLAPSED, NEARLY = 0.08, 0.3, 0.02


def main() -> int:
    """Measures, prints, and gives the exit status."""
    console, experiment, results = Console(), digits(), {}
    for name, rates in (("one rate", (RATE,)), ("the best rate of each", RATES)):
        result = compare(
            experiment, modes=MODES, workers=WORKERS, compute=NOISE, learning_rates=rates, points=8
        )
        results[name] = result
        console.print(f"Digits, SGD, {name}: {', '.join(map(str, rates))}")
        console.print(tables.table(result))
    one, best = (
        [run["curve"][-1]["accuracy"] for run in result["runs"]] for result in results.values()
    )
    lockstep, plain, scaled, adaptive, _ = one
    checks = {
        "plain updates collapse": plain < COLLAPSED,
        "scaled ones do not": scaled >= lockstep - WITHIN,
        "adaptively compensated ones do not": adaptive >= lockstep - WITHIN,
        "at the best rates all are alike": max(best) - min(best) <= NEARLY,
    }
    for check, is_met in checks.items():
        console.print(f"{check}: {'[green]yes[/green]' if is_met else '[red]no[/red]'}")
    machine.report("modes", list(results.values()), console)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
