"""A comparison written, read again, and refused where it is something else."""

from __future__ import annotations

import copy
import csv
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from comparison_sample import NAMES, result, run
from paceline.comparison import files
from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    files.write_json(result(), path)
    assert files.read_json(path) == result()
    assert [one.name for one in tmp_path.iterdir()] == ["comparison.json"]


def test_a_second_result_takes_the_place_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    files.write_json(result(), path)
    files.write_json(result(NAMES[:1]), path)
    assert len(files.read_json(path)["runs"]) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_become_null(value: float) -> None:
    shown = result()
    shown["runs"][0]["curve"][3]["loss"] = value
    shown["runs"][1]["idle_share"] = value
    read = json.loads(files.to_json(shown))
    assert read["runs"][0]["curve"][3]["loss"] is None
    assert read["runs"][1]["idle_share"] is None
    assert shown["runs"][1]["idle_share"] is value


def test_accuracy_may_be_missing_and_other_keys_may_be_there() -> None:
    shown = result()
    for point in shown["runs"][0]["curve"]:
        del point["accuracy"]
    shown["runs"][0]["more"] = {"of": "it"}
    assert files.checked(shown) == shown


def wrong(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    shown = copy.deepcopy(result())
    change(shown)
    return shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(format=2), r"format 1\. Received: format=2"),
        (lambda r: r.pop("format"), r"Received: format=None"),
        (lambda r: r.pop("runs"), r"has comparison\.runs"),
        (lambda r: r.update(runs=[]), r"at least one run"),
        (lambda r: r.update(title=3), r"comparison\.title is str\. Received: 3"),
        (lambda r: r["target"].pop("value"), r"has target\.value"),
        (lambda r: r["runs"][1].pop("workers"), r"has runs\[1\]\.workers"),
        (lambda r: r["runs"][1].update(workers=True), r"runs\[1\]\.workers is int"),
        (lambda r: r["runs"][1].update(is_tuned=1), r"runs\[1\]\.is_tuned is bool"),
        (lambda r: r["runs"][0].update(bytes="7"), r"bytes is int or float or None"),
        (lambda r: r["runs"][0]["curve"][2].pop("loss"), r"has runs\[0\]\.curve\[2\]\.loss"),
        (lambda r: r["runs"][0]["curve"][2].update(accuracy="x"), r"curve\[2\]\.accuracy"),
        (lambda r: r["runs"][0]["staleness"]["histogram"].update(x=1), r"a whole number"),
        (lambda r: r["runs"][0]["staleness"]["histogram"].update({"1": 0.5}), r"\['1'\] is int"),
        (lambda r: r["runs"][0]["timeline"]["spans"].append([0, 1.0]), r"timeline\.spans\[\d+\]"),
        (
            lambda r: r["runs"][0]["timeline"]["spans"].append([0, 1.0, 2.0, "idle"]),
            r"compute \| wait \| dropped",
        ),
        (lambda r: r["runs"][0].update(name=NAMES[1]), r"names of their own\. Received: 'lockstep"),
        (lambda r: r["recommendation"].update(run="x"), r"the name of a run\. Received: 'x'"),
        (lambda r: r["recommendation"].update(reasons=[1]), r"reasons is str"),
    ],
)
def test_what_is_no_comparison_is_refused(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        files.checked(wrong(change))


@pytest.mark.parametrize("text", ["", "{", '{"format": 1', "[1]", "null", "7"])
def test_damaged_and_foreign_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"A comparison (is|has)"):
        files.read_json(path)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "comparison.json")


def test_nothing_half_written_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        files.write_text("text", tmp_path / "folder")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_csv_has_a_row_for_each_run_and_each_point(tmp_path: Path) -> None:
    shown = result()
    shown["runs"][0] = run(0, 'with "quotes", commas\nand lines', diverges=True)
    shown["recommendation"]["run"] = None
    shown = files.checked(shown)
    files.write_csv(shown, tmp_path / "runs.csv", tmp_path / "curves.csv")
    with (tmp_path / "runs.csv").open(newline="", encoding="utf-8") as file:
        runs = list(csv.DictReader(file))
    with (tmp_path / "curves.csv").open(newline="", encoding="utf-8") as file:
        points = list(csv.DictReader(file))
    assert [one["name"] for one in runs] == [one["name"] for one in shown["runs"]]
    assert [float(one["idle_share"]) for one in runs] == [0.39, 0.27, 0.07, 0.0]
    assert runs[0]["final_loss"] == ""
    assert float(runs[1]["final_loss"]) == shown["runs"][1]["curve"][-1]["loss"]
    assert runs[3]["stragglers"] == "worker:3"
    assert len(points) == sum(len(one["curve"]) for one in shown["runs"])
    assert points[0]["run"] == 'with "quotes", commas\nand lines'
    assert points[-1]["examples"] == "51200"
