"""The plots of runs against each other, as Plotly's figures.

A figure is a dict of data and layout in which colours are names, such as "@ink": `page.js` puts
the colours of the theme in their place, whenever it changes. `meta` says which run a trace shows.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from paceline.comparison.palette import look

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Figure = dict[str, Any]
Run = dict[str, Any]

FONT = '"Inter", "Segoe UI", system-ui, -apple-system, "Helvetica Neue", Arial, sans-serif'
CURVE_HEIGHT = 290
_MOST_POINTS = 400
_MOST_TOGETHER = 6  # more values in one box would hide the plot
_LOG_FROM = 30  # where the largest loss is so many times the smallest one
_ROW, _LOW_ROW = 46, 36  # the lower one where there are many runs
_MANY = 12
_LONGEST_NAME = 34  # beside a number


def plain(text: str) -> str:
    """A text of the user for Plotly, which reads some tags of HTML."""
    return html.escape(text, quote=False)


def short(text: str, longest: int = 40) -> str:
    """A name that has room on a phone."""
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def layout(height: int, **more: Any) -> dict[str, Any]:
    """What all plots share, with `xaxis` and `yaxis` on top of their common form."""
    axis = {
        "zeroline": False,
        "ticks": "",
        "tickfont": {"size": 11, "color": "@muted"},
        "title": {"font": {"size": 12, "color": "@muted"}, "standoff": 8},
        "automargin": True,
    }
    xaxis = {**axis, "showgrid": False, "showline": True, "linecolor": "@grid", "ticks": "outside"}
    xaxis |= {"tickcolor": "@grid", "ticklen": 4}
    yaxis = {**axis, "gridcolor": "@grid", "showline": False}
    return {
        "height": height,
        "margin": {"l": 8, "r": 10, "t": 10, "b": 40},
        "font": {"family": FONT, "size": 12, "color": "@ink"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hoverlabel": {
            "bgcolor": "@background",
            "bordercolor": "@muted",
            "font": {"family": FONT, "size": 12, "color": "@ink"},
            "align": "left",
            "namelength": -1,
        },
        **more,
        "xaxis": _merged(xaxis, more.get("xaxis", {})),
        "yaxis": _merged(yaxis, more.get("yaxis", {})),
    }


def _merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    merged = {**base, **more}
    if "title" in more:
        merged["title"] = {**base["title"], **more["title"]}
    return merged


def has(runs: Sequence[Run], metric: str) -> bool:
    """Whether there is a value of the metric to draw."""
    return any(point.get(metric) is not None for run in runs for point in run["curve"])


def curves(result: dict[str, Any], metric: str, against: str) -> Figure:
    """A metric of all runs against "seconds" or "examples"."""
    runs = result["runs"]
    data = []
    for index, run in enumerate(runs):
        points = thinned(run["curve"])
        data += [_curve(index, run, points, metric, against)]
        data += _break(index, run, metric, against)
    is_together = len(runs) <= _MOST_TOGETHER
    yaxis: dict[str, Any] = {"rangemode": "normal"}
    if metric == "accuracy":
        yaxis |= {"tickformat": ".0%"}
    elif _spans_decades(runs, metric):
        yaxis |= {"type": "log", "dtick": 1}
    unit = "virtual seconds" if against == "seconds" else "examples seen"
    shown = layout(
        CURVE_HEIGHT,
        hovermode="x unified" if is_together else "closest",
        xaxis={
            "title": {"text": unit},
            "rangemode": "tozero",
            "nticks": 6,
            "hoverformat": ",.4~g" if against == "seconds" else ",d",
            "unifiedhovertitle": {"text": f"%{{x}} {unit}"},
        },
        yaxis=yaxis,
    )
    wanted = result["target"]
    if wanted and wanted["metric"] == metric:
        shown |= _target_line(wanted["value"], yaxis.get("type") == "log")
    return {"data": data, "layout": shown}


def thinned(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many points as a plot can show, the first and the last among them."""
    if len(curve) <= _MOST_POINTS:
        return curve
    step = (len(curve) - 1) / (_MOST_POINTS - 1)
    return [curve[round(i * step)] for i in range(_MOST_POINTS)]


def _curve(
    index: int, run: Run, points: list[dict[str, Any]], metric: str, against: str
) -> dict[str, Any]:
    style = look(index)
    value = "%{y:.1%}" if metric == "accuracy" else "%{y:.4~g}"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(short(run["name"])),
        "meta": {"run": index},
        "x": [point[against] for point in points],
        "y": [point.get(metric) for point in points],
        "line": {"color": style.token, "width": 2, "dash": style.dash},
        "connectgaps": False,
        "hovertemplate": f"{value}<extra>%{{fullData.name}}</extra>",
    }


def _break(index: int, run: Run, metric: str, against: str) -> list[dict[str, Any]]:
    """A cross where a curve ends because its values are no longer finite."""
    curve = run["curve"]
    finite = [i for i, point in enumerate(curve) if point.get(metric) is not None]
    if not finite or finite[-1] == len(curve) - 1:
        return []
    end = curve[finite[-1]]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": plain(short(run["name"])),
            "meta": {"run": index},
            "x": [end[against]],
            "y": [end[metric]],
            "marker": {"symbol": "x", "size": 10, "color": look(index).token},
            "hovertemplate": "not finite from here on<extra></extra>",
        }
    ]


def _spans_decades(runs: Sequence[Run], metric: str) -> bool:
    values = [point.get(metric) for run in runs for point in run["curve"]]
    finite = [value for value in values if value is not None]
    return bool(finite) and min(finite) > 0 and max(finite) > _LOG_FROM * min(finite)


def _target_line(value: float, is_log: bool) -> dict[str, Any]:
    place = {"xref": "paper", "yref": "y"}
    line = {"color": "@muted", "width": 1, "dash": "4px,3px"}
    # An annotation on a logarithmic axis takes the exponent, a shape the value.
    height = math.log10(value) if is_log and value > 0 else value
    label = {
        **place,
        "x": 0,
        "y": height,
        "text": "target",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11, "color": "@muted"},
    }
    shape = {"type": "line", **place, "x0": 0, "x1": 1, "y0": value, "y1": value, "line": line}
    return {"shapes": [shape], "annotations": [label]}


def bars(
    runs: Sequence[Run], key: str, shown: Callable[[float | None], str], absent: str, most: float
) -> Figure:
    """A bar for each run: its name and value above it, so that long names need no margin.

    Args:
        runs: all runs.
        key: the number of a run that is drawn.
        shown: the number in words.
        absent: what stands where a run has no such number.
        most: where the scale ends at least: 0 for the largest number.
    """
    data, labels = [], []
    height = _ROW if len(runs) <= _MANY else _LOW_ROW
    for index, run in enumerate(runs):
        value = run[key]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plain(short(run["name"])),
                "meta": {"run": index},
                "x": [value or 0],
                "y": [index],
                "width": 0.24,
                "marker": {"color": look(index).token, "cornerradius": 2},
                "hoverinfo": "skip",
            }
        )
        place = {"xref": "paper", "y": index, "yshift": 0.37 * height, "showarrow": False}
        text = absent if value is None else shown(value)
        name = plain(short(run["name"], _LONGEST_NAME))
        value_colour = "@muted" if value is None else "@ink"
        left = {"x": 0, "xanchor": "left", "xshift": -2, "font": {"color": "@muted"}}
        right = {"x": 1, "xanchor": "right", "xshift": 2, "font": {"color": value_colour}}
        labels += [{**place, **left, "text": name}, {**place, **right, "text": text}]
    largest = max([most, *(run[key] or 0 for run in runs)])
    axis = {"visible": False, "fixedrange": True}
    return {
        "data": data,
        "layout": layout(
            height * len(runs) + 8,
            margin={"l": 0, "r": 0, "t": 8, "b": 0},
            bargap=0,
            barmode="overlay",
            annotations=labels,
            xaxis={**axis, "range": [0, largest or 1]},
            yaxis={**axis, "range": [len(runs) - 0.6, -0.6]},
        ),
    }
