"""A made-up result of a comparison, in the form that `paceline compare` writes.

The numbers are drawn, not simulated: they only look like those of a real comparison.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

TARGET = 0.9
EXAMPLES = 51_200
BATCH = 16
NAMES = (
    "lockstep, 32 workers",
    "lockstep, 3 backups",
    "bounded staleness 8",
    "asynchronous",
)
_MODES = ("lockstep", "lockstep", "bounded staleness", "asynchronous")
_PACES = (
    "Synchronous(backups=0)",
    "Synchronous(backups=3)",
    "BoundedStaleness(bound=8)",
    "Asynchronous(cap=None)",
)
_SPEEDS = (415.0, 512.0, 690.0, 815.0)
_WAITS = (0.39, 0.27, 0.07, 0.0)
_LAGS = (0.0, 0.0, 14.0, 31.0)


def run(index: int, name: str, workers: int = 32, diverges: bool = False) -> dict[str, Any]:
    """One run; `index` decides its mode and its numbers."""
    draw = np.random.default_rng(index)
    kind = index % len(_MODES)
    speed = _SPEEDS[kind] * (1 + 0.02 * (index // len(_MODES)))
    curve = _curve(draw, speed, 9_000 + 90 * _LAGS[kind], diverges)
    reached = next((one for one in curve if (one["accuracy"] or 0) >= TARGET), None)
    staleness = draw.poisson(_LAGS[kind], EXAMPLES // BATCH)
    values, counts = np.unique(staleness, return_counts=True)
    dropped = 290 if kind == 1 else 0
    return {
        "name": name,
        "mode": _MODES[kind],
        "pace": _PACES[kind],
        "update_rule": "StalenessScaled()",
        "workers": workers,
        "compute": "Pareto(base=1.0, shape=2.0)",
        "learning_rate": 0.1 if kind < 3 else 0.05,
        "is_tuned": kind == 3,
        "seconds": EXAMPLES / speed,
        "examples": EXAMPLES,
        "real_seconds": 20.1 + index,
        "bytes": 2 * 4 * 4_810 * (EXAMPLES // BATCH + dropped),
        "curve": curve,
        "seconds_to_target": reached and reached["seconds"],
        "examples_to_target": reached and reached["examples"],
        "idle_share": _WAITS[kind],
        "examples_per_second": speed,
        "staleness": {
            "mean": float(staleness.mean()),
            "median": int(np.median(staleness)),
            "p99": int(np.quantile(staleness, 0.99, method="inverted_cdf")),
            "largest": int(staleness.max()),
            "histogram": {str(v): int(n) for v, n in zip(values, counts, strict=True)},
        },
        "dropped": dropped,
        "dropped_share": dropped / (EXAMPLES // BATCH + dropped),
        "stragglers": ["worker:3"] if kind == 3 else [],
        "timeline": _timeline(draw, workers, kind),
    }


def result(names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    """A whole comparison with a run for each name."""
    runs = [run(index, name) for index, name in enumerate(names)]
    return {
        "format": 1,
        "title": "digits",
        "created": "2026-11-30T12:00:00",
        "real_seconds": 88.1,
        "settings": {
            "batch_size": BATCH,
            "examples": EXAMPLES,
            "seed": 0,
            "compute": "Pareto(base=1.0, shape=2.0)",
            "network": "Constant(seconds=0.01), 125 MB/s for each server",
            "libraries": {"paceline": "0.1.0", "jax": "0.10.2", "keras": "3.15.1"},
        },
        "target": {"metric": "accuracy", "value": TARGET},
        "runs": runs,
        "recommendation": {
            "run": names[-1],
            "text": (
                "Train asynchronously. It reaches 90% accuracy first, with a learning rate that "
                "was tuned for it."
            ),
            "reasons": [
                "Workers in lockstep wait 39% of their time for the slowest of 32.",
                "Three backup workers save a quarter of that, and drop 8% of the gradients.",
                "Staleness of about 31 costs some examples, and the speed makes up for them.",
            ],
        },
    }


def many(number: int) -> dict[str, Any]:
    """A comparison of so many runs."""
    return result(tuple(f"{NAMES[i % 4]}, variant {i // 4 + 1}" for i in range(number)))


def _curve(
    draw: np.random.Generator, speed: float, scale: float, diverges: bool
) -> list[dict[str, Any]]:
    curve = []
    for examples in range(512, EXAMPLES + 1, 512):
        learned = 1 - math.exp(-examples / scale)
        loss = 2.3 * (1 - learned) + 0.12 + 0.02 * float(draw.normal())
        accuracy = 0.1 + 0.86 * learned + 0.006 * float(draw.normal())
        if diverges and examples > 20_000:
            loss, accuracy = None, 0.1
        curve.append(
            {
                "seconds": examples / speed,
                "examples": examples,
                "loss": loss,
                "accuracy": accuracy,
            }
        )
    return curve


def _timeline(draw: np.random.Generator, workers: int, kind: int) -> dict[str, Any]:
    length = 20.0
    spans: list[list[Any]] = []
    if kind < 2:
        began = 0.0
        while began < length:
            steps = 1 + 0.4 * draw.pareto(2.0, workers)
            ends = np.sort(steps)[-1 - 3 * kind]
            for worker, step in enumerate(steps):
                ended = began + min(step, ends)
                what = "compute" if step <= ends else "dropped"
                spans.append([worker, began, float(ended), what])
                if step < ends:
                    spans.append([worker, float(ended), float(began + ends), "wait"])
            began += float(ends)
    else:
        for worker in range(workers):
            now = 0.0
            while now < length:
                step = float(1 + 0.4 * draw.pareto(2.0)) * (2 if worker == 3 else 1)
                spans.append([worker, now, now + step, "compute"])
                now += step
                if kind == 2 and draw.random() < 0.15:
                    wait = float(draw.exponential(0.5))
                    spans.append([worker, now, now + wait, "wait"])
                    now += wait
    clipped = [[w, b, min(e, length), what] for w, b, e, what in spans if b < length]
    return {"workers": list(range(workers)), "from": 0.0, "to": length, "spans": clipped}
