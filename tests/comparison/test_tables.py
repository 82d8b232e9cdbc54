"""The table in the terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from comparison_sample import NAMES, many, result, run
from paceline.comparison import files, tables, wording


def printed(shown: dict[str, Any], width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(tables.table(files.checked(shown)))
    return stream.getvalue()


def row(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(name))
    return line.removeprefix(name).split()


def test_a_row_for_each_run() -> None:
    text = printed(result())
    assert "digits: 4 runs in virtual time, target accuracy 90%" in text
    for name in NAMES:
        assert len(row(text, name)) == 10  # eight values, two of them with a unit
    assert row(text, "lockstep, 3 backups")[4:8] == ["512", "27%", "0", "8.3%"]
    assert row(text, "asynchronous")[8:] == ["123", "MB"]


def test_the_recommendation_stands_below() -> None:
    text = printed(result())
    assert "Train asynchronously." in text
    assert text.index("- Workers in lockstep wait 39%") > text.index("asynchronous  ")


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(width: int) -> None:
    assert max(map(len, printed(many(40), width).splitlines())) <= width


def test_a_target_that_was_not_reached() -> None:
    shown = result()
    shown["runs"][0]["seconds_to_target"] = None
    assert row(printed(shown), NAMES[0])[0] == "never"


def test_without_a_target_and_without_accuracy() -> None:
    shown = result()
    shown["target"] = None
    for one in shown["runs"]:
        for point in one["curve"]:
            del point["accuracy"]
    text = printed(shown)
    assert "To target" not in text
    assert "Acc." not in text
    assert "target" not in text.splitlines()[0]


def test_a_run_that_diverged_or_has_no_curve() -> None:
    shown = result(NAMES[:2])
    shown["runs"][0] = run(0, NAMES[0], diverges=True)
    shown["runs"][1]["curve"] = []
    text = printed(shown)
    assert row(text, NAMES[0])[:2] == ["never", wording.ABSENT]
    assert row(text, NAMES[1])[2] == wording.ABSENT


def test_brackets_in_names_are_no_styles() -> None:
    assert "[bold]x[/bold] [red" in printed(result(("[bold]x[/bold] [red", "other")))
