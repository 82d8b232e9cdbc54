"""Runs sides in processes of their own, and makes statistics of what they print."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environments

if TYPE_CHECKING:
    from plan import Side

SIDES_FOLDER = Path(__file__).resolve().parent / "sides"
SIDE_LIMIT_S = 600.0


class SideError(RuntimeError):
    """A side failed, took too long, or printed no measurement."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median, least and greatest of some figures."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, figures: list[float]) -> Spread:
        """Summarises figures, of which there is at least one."""
        return cls(median=statistics.median(figures), least=min(figures), greatest=max(figures))

    def __format__(self, spec: str) -> str:
        """Formats as `median (least - greatest)`, each with the given format."""
        return f"{self.median:{spec}} ({self.least:{spec}} - {self.greatest:{spec}})"


def run_side(side: Side, python: Path, *, steps: int) -> dict[str, Any]:
    """Runs one side once.

    Args:
        side: The side.
        python: The interpreter of its environment.
        steps: Timed steps.

    Returns:
        The fields of `sides/common.Measurement`, and `versions`.

    Raises:
        SideError: The side failed; the message ends with what it last wrote.
    """
    command = [python, SIDES_FOLDER / f"{side.script}.py", "--steps", str(steps), *side.options]
    environment = os.environ | {
        "KERAS_BACKEND": side.keras_backend,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SIDE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SideError(f"{side.name} took more than {SIDE_LIMIT_S:.0f} s.") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise SideError(f"{side.name} ended with status {done.returncode}:\n{tail}")
    try:
        return json.loads(lines[-1])
    except json.JSONDecodeError as error:
        raise SideError(f"{side.name} printed no measurement, but: {lines[-1]}") from error


def run_round(
    sides: list[Side], *, steps: int, backwards: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Runs all sides once, one after the other.

    Args:
        sides: The sides.
        steps: Timed steps of each.
        backwards: Whether to run them in the opposite order. When every other round does, a
            machine that slowly gets warmer or busier favours no side.

    Returns:
        The measurements, and the messages of the sides that failed, both by name of the side.
    """
    measured: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for side in reversed(sides) if backwards else sides:
        try:
            python = environments.python_of(side.environment)
            measured[side.name] = run_side(side, python, steps=steps)
        except SideError as error:
            failed[side.name] = str(error)
    return measured, failed


def ratio_of(rounds: list[dict[str, dict[str, Any]]], side: str, against: str) -> Spread | None:
    """Gives the spread of the ratio of two sides, taken round by round.

    Args:
        rounds: The measurements of each round, by name of the side.
        side: Name of the side above the line.
        against: Name of the side below the line.

    Returns:
        The spread over the rounds that have both; None when no round has.
    """
    pairs = [(r[side], r[against]) for r in rounds if side in r and against in r]
    if not pairs:
        return None
    return Spread.of([top["steps_per_s"] / below["steps_per_s"] for top, below in pairs])


def odd_losses(
    rounds: list[dict[str, dict[str, Any]]], *, reference: str, tolerance: float
) -> list[str]:
    """Names the sides whose first epoch did not give the reference's loss.

    Args:
        rounds: The measurements of each round, by name of the side.
        reference: Name of the side that has the right loss.
        tolerance: Greatest relative difference.

    Returns:
        Names in order; empty when all sides did the same work or no reference was measured.
    """
    odd = {
        name
        for measured in rounds
        if reference in measured
        for name, figures in measured.items()
        if not math.isclose(
            figures["first_epoch_loss"],
            measured[reference]["first_epoch_loss"],
            rel_tol=tolerance,
        )
    }
    return sorted(odd)
