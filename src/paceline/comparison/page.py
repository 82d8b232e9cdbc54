"""The page of a comparison: one HTML file that needs no network."""

from __future__ import annotations

import datetime
import html
import json
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.comparison import figures, html_tables, wording
from paceline.comparison.files import checked
from paceline.comparison.palette import DARK, LIGHT, PRINT, THEMES, variables
from paceline.comparison.worker_figures import MOST_WORKERS, Bins, histogram, timeline

if TYPE_CHECKING:
    from paceline.comparison.figures import Figure

Result = dict[str, Any]

# Nothing may leave the file: a browser that obeys this asks no server for anything.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
_WHOLE, _HALF = 680, 330  # pixels on paper
_HIGHEST = 880  # the same
_MOST_STUCK = 8  # names that may stay in sight while one reads


class Plot(NamedTuple):
    """A plot and its place on the page.

    Attributes:
        figure: what Plotly draws.
        heading: above it.
        words: what it shows, for those who do not see it.
        paper: its width in print, in pixels.
        run: the run that it shows, or None if it shows all.
        can_zoom: whether a drag with the mouse shows a part of it.
        shrink: its height in print as a share of that on the screen.
    """

    figure: Figure
    heading: str
    words: str
    paper: int
    run: int | None = None
    can_zoom: bool = False
    shrink: float = 1.0


class Page:
    """A page that is being written: the plots it has so far, by their ids."""

    def __init__(self, result: Result) -> None:
        """Begins the page of this result."""
        self.result = result
        self.runs: list[dict[str, Any]] = result["runs"]
        self.figures: dict[str, Figure] = {}

    def plot(self, plot: Plot, note: str = "") -> str:
        """The plot as a figure of HTML."""
        name = f"plot{len(self.figures)}"
        self.figures[name] = plot.figure
        of = "" if plot.run is None else f' data-of="{plot.run}"'
        height = plot.figure["layout"]["height"]
        # What is higher than a page would be cut off where the page ends.
        shrink = min(plot.shrink, _HIGHEST / height)
        return (
            f'<figure{of}><h3 id="{name}-heading">{line(plot.run)}{text(plot.heading)}</h3>'
            f'<div class="plot" id="{name}" role="img" aria-label="{text(plot.words)}" '
            f'data-print="{plot.paper}" data-shrink="{shrink:.3f}" '
            f'data-zoom="{"yes" if plot.can_zoom else "no"}" style="min-height: {height}px"></div>'
            f"{f'<figcaption class=small>{text(note)}</figcaption>' if note else ''}</figure>"
        )

    def curves(self) -> str:
        """Loss and accuracy against time and examples."""
        parts = []
        for metric in ("loss", "accuracy"):
            if figures.has(self.runs, metric):
                parts += [self._curve(metric, "seconds"), self._curve(metric, "examples")]
        zoom = '<span class="screen mouse"> Drag to enlarge a part, double-click for all.</span>'
        return _section(
            "Learning",
            "Against time, speed counts. Against examples, only what each example taught." + zoom,
            f'<div class="grid">{"".join(parts)}</div>'
            if parts
            else '<p class="small">No run has values of a loss or an accuracy.</p>',
        )

    def _curve(self, metric: str, against: str) -> str:
        ends = (f"{run['name']} {wording.number(wording.last(run, metric))}" for run in self.runs)
        axis = "virtual time" if against == "seconds" else "examples seen"
        heading = f"{metric.capitalize()} against {axis}"
        words = f"{heading}. Last values: {'; '.join(ends)}."
        figure = figures.curves(self.result, metric, against)
        return self.plot(Plot(figure, heading, words, _HALF, can_zoom=True, shrink=0.74))

    def costs(self) -> str:
        """Time to the target, idle share and bytes."""
        wanted = wording.target(self.result)
        parts = []
        if wanted:
            heading = f"Time to {wanted}"
            parts += [self._bars(heading, "seconds_to_target", wording.seconds, "not reached")]
        parts += [
            self._bars("Workers idle", "idle_share", wording.share, "unknown", 1.0),
            self._bars("Moved over the network", "bytes", wording.size, "unknown"),
        ]
        hint = "Virtual time until the target, the share of it in which workers wait, and traffic."
        if not wanted:
            hint = "The share of time in which workers wait, and traffic. No target was set."
        columns = "grid three" if wanted else "grid"
        return _section("Costs", hint, f'<div class="{columns}">{"".join(parts)}</div>')

    def _bars(self, heading: str, key: str, shown: Any, absent: str, most: float = 0.0) -> str:
        values = (
            f"{run['name']} {absent if run[key] is None else shown(run[key])}" for run in self.runs
        )
        words = f"{heading}: {'; '.join(values)}."
        figure = figures.bars(self.runs, key, shown, absent, most)
        return self.plot(Plot(figure, heading, words, _HALF))

    def staleness(self) -> str:
        """A histogram for each run."""
        bins = Bins(self.runs)
        parts = []
        for index, run in enumerate(self.runs):
            of = run["staleness"]
            words = (
                f"Mean {wording.number(of['mean'])}, median {wording.count(of['median'])}, "
                f"99% at most {wording.count(of['p99'])}, largest {wording.count(of['largest'])}."
            )
            plot = Plot(
                histogram(run, index, bins),
                run["name"],
                f"Staleness of the gradients of {run['name']}. {words}",
                _HALF,
                index,
            )
            parts.append(self.plot(plot, words))
        return _section(
            "Staleness",
            "How many updates were applied between reading the weights and applying the gradient, "
            "as shares of all gradients. The dotted line is the mean.",
            f'<div class="grid">{"".join(parts)}</div>',
        )

    def timelines(self) -> str:
        """A timeline for each run that has one."""
        parts = []
        for index, run in enumerate(self.runs):
            if not run["timeline"]:
                continue
            words = (
                f"What each worker of {run['name']} did from {run['timeline']['from']:g} to "
                f"{run['timeline']['to']:g} virtual seconds. Over the whole run, workers waited "
                f"{wording.share(run['idle_share'])} of the time and "
                f"{wording.count(run['dropped'])} gradients were dropped."
            )
            note = _notes(run)
            figure = timeline(run, index)
            plot = Plot(figure, run["name"], words, _WHOLE, index, can_zoom=True, shrink=0.78)
            parts.append(self.plot(plot, note))
        if not parts:
            return ""
        key = "".join(
            f'<li><i class="{kind}"></i>{words}</li>'
            for kind, words in (
                ("computing", "computing, in the colour of the run"),
                ("waiting", "waiting"),
                ("dropped", "computing in vain: dropped"),
            )
        )
        return _section(
            "What the workers did",
            "A row for each worker, at the beginning of the run.",
            f'<ul class="key">{key}</ul><div class="timelines">{"".join(parts)}</div>',
        )


def page(result: Result) -> str:
    """The page that shows a comparison.

    Args:
        result: a comparison, in the form that `files.checked` describes.

    Returns:
        One HTML document with everything in it, plotly.js too.

    Raises:
        InvalidArgument: `result` does not have the form of a comparison.
    """
    from plotly.offline import get_plotlyjs  # only who writes a page pays for reading it

    shown = Page(result := checked(result))
    body = "".join(
        [
            _header(result),
            "<main>",
            _advice(result),
            _buttons(shown.runs),
            shown.curves(),
            shown.costs(),
            html_tables.results(result),
            shown.staleness(),
            shown.timelines(),
            html_tables.settings(result),
            "</main>",
        ]
    )
    title = f"{result['title']}: {wording.many(len(shown.runs), 'run')} compared"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{text(title)}</title>\n<style>\n{_colours()}\n{_file('page.css')}</style>\n"
        f"</head>\n<body>\n{body}\n"
        "<noscript><p>The plots need JavaScript. The tables do not.</p></noscript>\n"
        f"{_data('themes', THEMES)}\n{_data('figures', shown.figures)}\n"
        f"<script>{get_plotlyjs()}</script>\n<script>\n{_file('page.js')}</script>\n"
        "</body>\n</html>\n"
    )


def text(value: object) -> str:
    """Anything as text of HTML, also inside an attribute."""
    return html.escape(str(value))


def line(run: int | None) -> str:
    """A short line as the plots draw the run's, or nothing for None."""
    return "" if run is None else html_tables.line(run)


def _section(heading: str, hint: str, content: str) -> str:
    name = heading.lower().replace(" ", "-")
    return (
        f'<section aria-labelledby="{name}"><div class="head"><h2 id="{name}">{heading}</h2>'
        f'<p class="hint">{hint}</p></div>{content}</section>'
    )


def _header(result: Result) -> str:
    wanted = wording.target(result)
    facts = [
        f"{wording.many(len(result['runs']), 'run')} in virtual time",
        f"target: {wanted}" if wanted else "no target",
        f"computed in {wording.seconds(result['real_seconds'])} on {_when(result['created'])}",
    ]
    return (
        f'<header><h1>{text(result["title"])}</h1><p class="facts">'
        f"{text(' · '.join(facts))}</p></header>"
    )


def _when(created: str) -> str:
    try:
        moment = datetime.datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment.day} {moment:%B %Y, %H:%M}"


def _advice(result: Result) -> str:
    advice = result["recommendation"]
    names = [run["name"] for run in result["runs"]]
    pick = ""
    if advice["run"] in names:
        name = text(advice["run"])
        pick = f'<span class="pick">{line(names.index(advice["run"]))}{name}</span>'
    reasons = "".join(f"<li>{text(reason)}</li>" for reason in advice["reasons"])
    return (
        f'<section class="advice" aria-labelledby="advice">'
        f'<h2 id="advice">Recommendation{pick}</h2><p class="answer">{text(advice["text"])}</p>'
        f"{f'<ul>{reasons}</ul>' if reasons else ''}</section>"
    )


def _buttons(runs: list[dict[str, Any]]) -> str:
    shown = "".join(
        f'<button type="button" aria-pressed="true" data-run="{index}">'
        f"{line(index)}<span>{text(run['name'])}</span></button>"
        for index, run in enumerate(runs)
    )
    is_many = len(runs) > _MOST_STUCK
    if is_many:
        shown += (
            '<button type="button" class="all" id="show-all">Show all</button>'
            '<button type="button" class="all" id="hide-all">Hide all</button>'
        )
    many = " many" if is_many else ""
    return f'<div class="runs{many}" role="group" aria-label="Runs to show">{shown}</div>'


def _notes(run: dict[str, Any]) -> str:
    slow: list[str] = run["stragglers"]
    workers = len(run["timeline"]["workers"])
    notes = [f"Slow: {', '.join(slow)}."] if slow else []
    if workers > MOST_WORKERS:
        notes.append(f"The first {MOST_WORKERS} of {workers:,} workers.")
    return " ".join(notes)


def _colours() -> str:
    return (
        f":root {{ {variables(LIGHT)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}\n"
        f"@media print {{ :root {{ {variables(PRINT)} }} }}"
    )


def _file(name: str) -> str:
    return resources.files("paceline.comparison").joinpath(name).read_text(encoding="utf-8")


def _data(name: str, value: Any) -> str:
    """Data for the script, in which no text can end the element it stands in."""
    written = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    safe = written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{name}">{safe}</script>'
