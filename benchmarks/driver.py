"""What the side-by-side benchmarks do: read the command line, run the rounds, compare, report."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environments
import machine
from measuring import Spread, odd_losses, ratio_of, run_round
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from plan import Plan, Side

Rounds = list[dict[str, dict[str, Any]]]


def arguments(plan: Plan) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=plan.title)
    parser.add_argument("--rounds", type=int, default=5, help="processes per side (default 5)")
    parser.add_argument(
        "--steps", type=int, default=936, help="timed steps, in whole epochs of 312 (default 936)"
    )
    parser.add_argument(
        "--sides", nargs="+", choices=[s.name for s in plan.sides], help="run only these sides"
    )
    parser.add_argument(
        "--no-checks", action="store_true", help=f"leave out {' and '.join(plan.checks)}"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=environments.FOLDER / f"{plan.name}.json",
        help=f"where the results go (default .benchmarks/{plan.name}.json)",
    )
    return parser.parse_args()


def measure(console: Console, sides: list[Side], rounds: int, steps: int) -> tuple[Rounds, int]:
    """Runs the rounds.

    Returns:
        The measurements of each round, and how often a side failed.
    """
    for environment in dict.fromkeys(side.environment for side in sides):
        with console.status(f"environment {environment}"):
            environments.python_of(environment)
    measured_rounds: Rounds = []
    failures = 0
    for number in range(rounds):
        with console.status(f"round {number + 1} of {rounds}"):
            measured, failed = run_round(sides, steps=steps, backwards=number % 2 == 1)
        measured_rounds.append(measured)
        failures += len(failed)
        for message in failed.values():
            console.print(message, style="red", markup=False)
    return measured_rounds, failures


def sides_table(sides: list[Side], rounds: Rounds) -> Table:
    """Tabulates what each side measured."""
    table = Table("side", "steps/s: median (range)", "first step, s", "loss")
    for side in sides:
        figures = [r[side.name] for r in rounds if side.name in r]
        if not figures:
            table.add_row(side.name, "failed")
            continue
        table.add_row(
            side.name,
            f"{Spread.of([f['steps_per_s'] for f in figures]):.0f}",
            f"{Spread.of([f['compile_s'] for f in figures]).median:.2f}",
            f"{figures[-1]['first_epoch_loss']:.4f}",
        )
    return table


def versions(rounds: Rounds) -> str:
    """Lists the packages that the sides measured."""
    named = {
        f"{name} {version}"
        for measured in rounds
        for figures in measured.values()
        for name, version in figures["versions"].items()
    }
    return ", ".join(sorted(named))


def compare(plan: Plan, rounds: Rounds) -> tuple[Table, list[dict[str, Any]]]:
    """Compares the sides.

    Returns:
        The table of ratios, and the same as data; `met` is None where there is no target.
    """
    table = Table("ratio of steps/s", "median (range)", "target", "met")
    rows: list[dict[str, Any]] = []
    for ratio in plan.ratios:
        spread = ratio_of(rounds, ratio.side, ratio.against)
        if spread is None:
            continue
        met = None if ratio.at_least is None else spread.median >= ratio.at_least
        rows.append({**asdict(ratio), **asdict(spread), "met": met})
        table.add_row(
            f"{ratio.side} / {ratio.against}",
            f"{spread:.2f}",
            "-" if ratio.at_least is None else f">= {ratio.at_least}",
            {None: "-", True: "[green]yes[/green]", False: "[red]no[/red]"}[met],
        )
    return table, rows


def check(console: Console, script: str) -> bool:
    """Runs one of the scripts beside this one; gives whether its target is met."""
    console.rule(script)
    path = Path(__file__).resolve().parent / script
    return subprocess.run([sys.executable, path], check=False).returncode == 0


def main(plan: Plan) -> int:
    """Runs everything; gives 1 when a side failed or a target is missed."""
    args = arguments(plan)
    console = Console()
    about = machine.description()
    console.print(", ".join(f"{key} {value}" for key, value in about.items()))
    sides = [side for side in plan.sides if not args.sides or side.name in args.sides]
    rounds, failures = measure(console, sides, args.rounds, args.steps)
    console.print(versions(rounds))
    console.print(sides_table(sides, rounds))
    table, ratios = compare(plan, rounds)
    console.print(table)
    odd = odd_losses(rounds, reference=plan.reference, tolerance=plan.loss_tolerance)
    if odd:
        console.print(
            f"Not the work of the reference, by their loss: {', '.join(odd)}", style="red"
        )
    checks = {}
    if not args.no_checks:
        checks = {name: check(console, name) for name in plan.checks}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": about, "rounds": rounds, "ratios": ratios, "checks": checks, "odd": odd}
    args.json.write_text(json.dumps(result, indent=2) + "\n")
    missed = [row for row in ratios if row["met"] is False]
    return int(bool(failures or missed or odd or not all(checks.values())))
