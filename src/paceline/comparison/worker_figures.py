"""The plots of what the workers of one run did: how stale, and when they computed and waited."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from paceline.comparison import wording
from paceline.comparison.figures import Figure, Run, layout
from paceline.comparison.palette import look

if TYPE_CHECKING:
    from collections.abc import Sequence

HISTOGRAM_HEIGHT = 180
_MOST_BINS = 40
MOST_WORKERS = 128  # rows of a timeline
_TALLEST = 300  # of the rows of a timeline, in pixels
_ROWS = (2, 12)  # the least and the most of one row
_FINEST = 900  # parts of a timeline that a screen can tell apart
_CELLS = 40  # in which one can point at something else
_KINDS = {"compute": "computing", "wait": "waiting", "dropped": "computing in vain"}


class Bins:
    """Equal bins of staleness for all runs, so that their histograms can be compared.

    The last one holds all that is beyond most runs' 99th percentile, however far.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        """Chooses the bins for these runs."""
        largest = max((run["staleness"]["largest"] for run in runs), default=0)
        usual = max((run["staleness"]["p99"] for run in runs), default=0)
        self.is_open = largest > 2 * usual + _MOST_BINS
        end = 2 * usual + 1 if self.is_open else largest
        self.width = _nice((end + 1) / _MOST_BINS)
        self.number = max(4, math.ceil((end + 1) / self.width))

    def shares(self, run: Run) -> list[float]:
        """Which share of a run's pushes each bin holds."""
        counts = [0] * self.number
        for staleness, count in run["staleness"]["histogram"].items():
            counts[min(int(staleness) // self.width, self.number - 1)] += count
        total = sum(counts)
        return [count / total if total else 0.0 for count in counts]

    def names(self) -> list[str]:
        """What each bin holds, in words."""
        names = []
        for low in range(0, self.number * self.width, self.width):
            high = low + self.width - 1
            names.append(f"{low}" if low == high else f"{low} to {high}")
        if self.is_open:
            names[-1] = f"{(self.number - 1) * self.width} or more"
        return names


def _nice(width: float) -> int:
    """The next of 1, 2, 5, 10, 20, ..."""
    power = 10 ** max(0, math.floor(math.log10(max(width, 1))))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= width)


def histogram(run: Run, index: int, bins: Bins) -> Figure:
    """How stale the gradients of a run were, with their mean."""
    mean = run["staleness"]["mean"]
    centres = [bins.width * (i + 0.5) - 0.5 for i in range(bins.number)]
    bar = {
        "type": "bar",
        "meta": {"run": index},
        "x": centres,
        "y": bins.shares(run),
        "width": bins.width * 0.82,
        "customdata": bins.names(),
        "marker": {"color": look(index).token},
        "hovertemplate": "staleness %{customdata}: %{y:.1%}<extra></extra>",
    }
    end = bins.number * bins.width - 0.5
    mark = {"type": "line", "xref": "x", "yref": "paper", "x0": mean, "x1": mean, "y0": 0, "y1": 1}
    return {
        "data": [bar],
        "layout": layout(
            HISTOGRAM_HEIGHT,
            xaxis={"range": [-0.5 - 0.01 * end, end], "title": {"text": "staleness"}, "nticks": 6},
            yaxis={"tickformat": ".0%", "nticks": 4, "rangemode": "tozero"},
            shapes=[{**mark, "line": {"color": "@ink", "width": 1, "dash": "2px,2px"}}]
            if mean is not None and mean <= end
            else [],
        ),
    }


def timeline(run: Run, index: int) -> Figure:
    """What each worker did when: a row for each worker, of thick lines.

    All spans of a kind are one path, because thousands of bars or lines take seconds to draw. A
    trace without lines or markers lies over them, and says what one points at.
    """
    shown = run["timeline"]
    workers, began, ended = shown["workers"][:MOST_WORKERS], shown["from"], shown["to"]
    rows = {worker: row for row, worker in enumerate(workers)}
    spans = [(rows[worker], *span) for worker, *span in shown["spans"] if worker in rows]
    pixels = min(max(_TALLEST // max(len(workers), 1), _ROWS[0]), _ROWS[1])
    colours = {"wait": "@wait", "compute": look(index).token, "dropped": "@ink"}
    paths = {kind: _path(spans, kind, (ended - began) / _FINEST) for kind in colours}
    ticks = list(range(0, len(workers), _nice(len(workers) / 6)))
    return {
        "data": [_pointed_at(spans, workers, index, (ended - began) / _CELLS)],
        "layout": layout(
            pixels * len(workers) + 62,
            margin={"l": 8, "r": 10, "t": 6, "b": 40},
            hovermode="closest",
            shapes=[
                {
                    "type": "path",
                    "name": _KINDS[kind],
                    "path": path,
                    "layer": "below",
                    "line": {"color": colours[kind], "width": pixels - (2 if pixels > 3 else 1)},
                }
                for kind, path in paths.items()
                if path
            ],
            xaxis={"range": [began, ended], "title": {"text": "virtual seconds"}, "nticks": 8},
            yaxis={
                "range": [len(workers) - 0.4, -0.6],
                "tickvals": ticks,
                "ticktext": [str(workers[row]) for row in ticks],
                "title": {"text": "worker"},
                "showgrid": False,
                "fixedrange": True,
            },
        ),
    }


def _path(spans: list[tuple[Any, ...]], kind: str, hair: float) -> str:
    """All spans of one kind, with a hair between two steps so that they can be told apart."""
    parts = []
    for row, began, ended, what in spans:
        if what == kind:
            gap = hair if kind == "compute" and ended - began > 3 * hair else 0
            parts.append(f"M{began:.8g},{row}L{ended - gap:.8g},{row}")
    return "".join(parts)


def _pointed_at(
    spans: list[tuple[Any, ...]], workers: Sequence[int], index: int, cell: float
) -> dict[str, Any]:
    """Points all along the spans, near enough that one of them is always at hand."""
    x: list[float] = []
    y: list[int] = []
    text: list[str] = []
    for row, began, ended, what in spans:
        length = ended - began
        number = max(1, math.ceil(length / cell)) if cell > 0 else 1
        x += [round(began + length * (i + 0.5) / number, 6) for i in range(number)]
        y += [row] * number
        text += [f"worker {workers[row]}: {_KINDS[what]} for {wording.seconds(length)}"] * number
    return {
        "type": "scatter",
        "mode": "none",
        "meta": {"run": index},
        "x": x,
        "y": y,
        "text": text,
        "hovertemplate": "%{text}<br>around %{x:.4~g} s<extra></extra>",
    }
