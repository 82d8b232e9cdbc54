"""A comparison as a table in the terminal, and as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from paceline.comparison import wording

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Result = dict[str, Any]
Run = dict[str, Any]

_PLAIN = (
    "name",
    "mode",
    "pace",
    "update_rule",
    "workers",
    "compute",
    "learning_rate",
    "is_tuned",
    "seconds",
    "examples",
    "real_seconds",
    "bytes",
    "seconds_to_target",
    "examples_to_target",
    "idle_share",
    "examples_per_second",
    "dropped",
    "dropped_share",
)
_STALENESS = ("mean", "median", "p99", "largest")
_POINT = ("seconds", "examples", "loss", "accuracy")


def table(result: Result) -> Table:
    """A row for each run, the recommended one in bold, and the recommendation below."""
    runs: list[Run] = result["runs"]
    advice = result["recommendation"]
    wanted = wording.target(result)
    shown = Table(
        title=Text(f"{result['title']}: {wording.many(len(runs), 'run')} in virtual time"),
        caption=Text("\n".join([advice["text"], *(f"- {one}" for one in advice["reasons"])])),
        caption_justify="left",
        # Eight columns must fit a terminal of 80.
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )
    shown.add_column("Run", ratio=1)
    columns = _columns(result)
    for heading, _ in columns:
        shown.add_column(Text(heading), justify="right", no_wrap=True)
    for index, run in enumerate(runs):
        # Text, because brackets in a name would be read as a style.
        cells = [Text(run["name"]), *(values[index] for _, values in columns)]
        shown.add_row(*cells, style="bold" if run["name"] == advice["run"] else None)
    if wanted:
        shown.title = Text(f"{shown.title}, target {wanted}")
    return shown


def _columns(result: Result) -> list[tuple[str, list[str]]]:
    runs: list[Run] = result["runs"]
    columns: list[tuple[str, list[str]]] = []
    if result["target"]:
        columns.append(
            (
                "To target",
                [
                    "never"
                    if run["seconds_to_target"] is None
                    else wording.seconds(run["seconds_to_target"])
                    for run in runs
                ],
            )
        )
    columns.append(("Loss", [wording.number(wording.last(run, "loss")) for run in runs]))
    if any(wording.last(run, "accuracy") is not None for run in runs):
        columns.append(("Acc.", [wording.percent(wording.last(run, "accuracy")) for run in runs]))
    return [
        *columns,
        ("Ex./s", [wording.number(run["examples_per_second"]) for run in runs]),
        ("Idle", [wording.share(run["idle_share"]) for run in runs]),
        ("Stale", [wording.number(run["staleness"]["mean"]) for run in runs]),
        ("Drops", [wording.share(run["dropped_share"]) for run in runs]),
        ("Moved", [wording.size(run["bytes"]) for run in runs]),
    ]


def runs_csv(result: Result) -> str:
    """A row for each run, with the numbers as they are; nothing stands for None."""
    head = [*_PLAIN, "final_loss", "final_accuracy"]
    head += [*(f"staleness_{key}" for key in _STALENESS), "stragglers"]
    rows = (
        [
            *(run[key] for key in _PLAIN),
            wording.last(run, "loss"),
            wording.last(run, "accuracy"),
            *(run["staleness"][key] for key in _STALENESS),
            " ".join(run["stragglers"]),
        ]
        for run in result["runs"]
    )
    return _csv(head, rows)


def curves_csv(result: Result) -> str:
    """A row for each point of each curve, with the name of the run."""
    rows = (
        [run["name"], *(point.get(key) for key in _POINT)]
        for run in result["runs"]
        for point in run["curve"]
    )
    return _csv(["run", *_POINT], rows)


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return written.getvalue()
