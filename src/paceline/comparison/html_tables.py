"""The tables of the page: results, and the settings they hold for."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from paceline.comparison import wording
from paceline.comparison.palette import look

if TYPE_CHECKING:
    from collections.abc import Sequence

Result = dict[str, Any]
Run = dict[str, Any]

_NAMES = {"batch_size": "Batch size", "compute": "Time of a step", "libraries": "Versions"}


def line(index: int) -> str:
    """A short line as the plots draw that of the run."""
    style = look(index)
    dashes = f' stroke-dasharray="{style.dash_array}"' if style.dash_array else ""
    return (
        '<svg class="line" viewBox="0 0 22 8" aria-hidden="true"><line x1="0" y1="4" x2="22" '
        f'y2="4" style="stroke: var(--{style.colour})"{dashes}></line></svg>'
    )


def results(result: Result) -> str:
    """A row for each run, with the best of each column that has one in bold."""
    runs: list[Run] = result["runs"]
    headings = ["Run", "Workers", *(heading for heading, *_ in _columns(result))]
    rows = [[html.escape(wording.count(run["workers"]))] for run in runs]
    for _, values, shown, better in _columns(result):
        known = [value for value in values if value is not None]
        best = better(known) if better and len(known) > 1 else None
        for row, value in zip(rows, values, strict=True):
            cell = html.escape(shown(value))
            is_best = best is not None and value == best
            row.append(f'<b>{cell}<span class="unseen"> (best)</span></b>' if is_best else cell)
    return (
        '<section aria-labelledby="results"><div class="head"><h2 id="results">Results</h2>'
        '<p class="hint">Losses and accuracies are the last ones. The best are bold.</p></div>'
        f"{_table('Results of each run', headings, runs, rows)}</section>"
    )


def _columns(result: Result) -> list[tuple[str, list[Any], Any, Any]]:
    """Heading, values, how they are shown, and which is the best."""
    runs: list[Run] = result["runs"]

    def of(key: str) -> list[Any]:
        return [run[key] for run in runs]

    columns: list[tuple[str, list[Any], Any, Any]] = []
    if result["target"]:
        columns += [
            ("Time to target", of("seconds_to_target"), wording.seconds, min),
            ("Examples to target", of("examples_to_target"), wording.count, min),
        ]
    losses = [wording.last(run, "loss") for run in runs]
    columns.append(("Loss", losses, wording.number, min))
    accuracies = [wording.last(run, "accuracy") for run in runs]
    if any(value is not None for value in accuracies):
        columns.append(("Accuracy", accuracies, wording.percent, max))
    return [
        *columns,
        ("Whole time", of("seconds"), wording.seconds, None),
        ("Examples a second", of("examples_per_second"), wording.number, None),
        ("Idle", of("idle_share"), wording.share, None),
        ("Mean staleness", [run["staleness"]["mean"] for run in runs], wording.number, None),
        ("Dropped", of("dropped_share"), wording.share, None),
        ("Moved", of("bytes"), wording.size, None),
    ]


def settings(result: Result) -> str:
    """What the results hold for: noise, seed, versions, and each run's rate."""
    runs: list[Run] = result["runs"]
    lines = "".join(
        f"<dt>{html.escape(_name(key))}</dt><dd>{html.escape(_setting(value))}</dd>"
        for key, value in result["settings"].items()
    )
    headings = ["Run", "Pace", "Update rule", "Time of a step", "Learning rate"]
    rows = [
        [
            _breakable(str(run["pace"])),
            _breakable(_setting(run["update_rule"])),
            _breakable(str(run["compute"])),
            html.escape(f"{_setting(run['learning_rate'])}, {tuned(run)}"),
        ]
        for run in runs
    ]
    return (
        '<section aria-labelledby="settings"><div class="head"><h2 id="settings">Settings</h2>'
        f'<p class="hint">{html.escape(rates(runs))}</p></div><dl>{lines}</dl>'
        f"{_table('Settings of each run', headings, runs, rows, 'text')}</section>"
    )


def _breakable(text: str) -> str:
    """Text in which a call may be broken where its arguments begin."""
    return html.escape(text).replace("(", "(<wbr>")


def tuned(run: Run) -> str:
    """Whether the learning rate was chosen for this run."""
    return "tuned" if run["is_tuned"] else "not tuned"


def rates(runs: Sequence[Run]) -> str:
    """Which rates were tuned, in a sentence."""
    names = [run["name"] for run in runs if run["is_tuned"]]
    if not names:
        return "No learning rate was tuned for its run."
    if len(names) == len(runs):
        return "Each learning rate was tuned for its run."
    return f"Learning rates were tuned for {'; '.join(names)}, and for no other run."


def _name(key: str) -> str:
    return _NAMES.get(key, key.replace("_", " ").capitalize())


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_setting(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    if value is None:
        return "none"
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 10_000
    return f"{value:,}" if is_count else f"{value:g}" if isinstance(value, float) else str(value)


def _table(
    caption: str,
    headings: Sequence[str],
    runs: Sequence[Run],
    rows: Sequence[Sequence[str]],
    kind: str = "numbers",
) -> str:
    """A table whose roles are spelt out: those implied are lost where CSS makes cards of rows."""
    labels = [html.escape(heading) for heading in headings]
    head = "".join(f'<th scope="col" role="columnheader">{label}</th>' for label in labels)
    body = "".join(
        f'<tr role="row" data-of="{index}"><th scope="row" role="rowheader">{line(index)}'
        f"{html.escape(run['name'])}</th>"
        + "".join(
            f'<td role="cell" data-label="{label}"><span>{cell}</span></td>'
            for label, cell in zip(labels[1:], rows[index], strict=True)
        )
        + "</tr>"
        for index, run in enumerate(runs)
    )
    return (
        f'<div class="wide"><table role="table" class="{kind}">'
        f'<caption class="unseen">{caption}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table></div>'
    )
