"""Numbers in few words, as the table and the page show them."""

from __future__ import annotations

import math
from typing import Any

ABSENT = "–"  # noqa: RUF001 (a dash, where a table has no value)


def number(value: float | None, digits: int = 3) -> str:
    """So many digits, or more where they stand before the point."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{places}f}" if 0 <= places <= digits + 2 else _beyond(value, digits)


def _beyond(value: float, digits: int) -> str:
    return f"{value:,.0f}" if 1 <= abs(value) < 1e9 else f"{value:.{digits - 1}e}"


def seconds(value: float | None) -> str:
    """A time in s, or in ms where it is less than one."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{number(value * 1e3)} ms" if 0 < abs(value) < 1 else f"{number(value)} s"


def count(value: float | None) -> str:
    """A whole number with its thousands apart."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share in percent."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:.1%}" if 0 < value < 0.1 else f"{value:.0%}"


def percent(value: float | None) -> str:
    """An accuracy: percent with one digit after the point."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.1%}"


def size(value: float | None) -> str:
    """Bytes, in the largest unit that leaves at least one."""
    if value is None or not math.isfinite(value):
        return ABSENT
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{number(value / factor)} {unit}"
    return f"{value:.0f} B"


def many(amount: int, thing: str) -> str:
    """The amount with its noun: "1 run", "4 runs"."""
    return f"{amount:,} {thing}{'' if amount == 1 else 's'}"


def last(run: dict[str, Any], metric: str) -> float | None:
    """The last value of a metric in a run's curve: None where it is missing or was not finite."""
    return run["curve"][-1].get(metric) if run["curve"] else None


def target(result: dict[str, Any]) -> str:
    """The target in words, or nothing where there is none."""
    wanted = result["target"]
    if not wanted:
        return ""
    value = wanted["value"]
    shown = f"{100 * value:.4g}%" if wanted["metric"] == "accuracy" else f"{value:.4g}"
    return f"{wanted['metric']} {shown}"
