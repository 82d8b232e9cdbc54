"""The command line, from the outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from paceline.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_the_demo_trains_on_two_replicas_and_reports_loss_and_accuracy() -> None:
    result = invoke("demo")
    assert result.exit_code == 0, result.output
    assert "Epoch 15/15" in result.output
    row = re.search(r"│\s*(\d+) │\s*(\d\.\d+) │\s*(\d\.\d+) │", result.output)
    assert row is not None, result.output
    replicas, loss, accuracy = row.groups()
    assert replicas == "2"
    assert 0 < float(loss) < 0.5
    assert float(accuracy) >= 0.95


def test_a_demo_that_learned_too_little_fails_and_says_so() -> None:
    result = invoke("demo", "--epochs", "1")
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "The test accuracy must be at least 0.95. Received: 0." in text
    assert "with --epochs 1. Give more epochs." in text


@pytest.mark.parametrize("option", ["--replicas", "--epochs"])
def test_numbers_below_one_are_refused_before_anything_runs(option: str) -> None:
    result = invoke("demo", option, "0")
    assert result.exit_code == 2
    assert "Epoch" not in result.output


def test_version_and_help_work_as_a_module() -> None:
    def module(argument: str) -> str:
        command = [sys.executable, "-m", "paceline", argument]
        environment = {**os.environ, "TERM": "dumb"}
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment
        ).stdout

    assert module("--version").startswith("paceline 0.")
    assert "demo" in module("--help")


def write_script(path: Path) -> Path:
    path.write_text(
        "import keras\n"
        "import numpy as np\n"
        "BATCH_SIZE, EXAMPLES = 8, 160\n"
        "def make_model():\n"
        "    model = keras.Sequential([keras.layers.Dense(2)])\n"
        "    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)\n"
        "    model.compile(keras.optimizers.SGD(0.5), loss)\n"
        "    return model\n"
        "def make_data():\n"
        "    y = np.arange(64) % 2\n"
        "    x = np.stack([3.0 * y, np.ones(64)], 1).astype('float32')\n"
        "    return (x, y), (x, y)\n"
    )
    return path


def test_compare_prints_a_table_and_writes_page_and_figures(tmp_path: Path) -> None:
    script, out = write_script(tmp_path / "mine.py"), tmp_path / "out"
    arguments = ["compare", str(script), "--workers", "2", "--mode", "lockstep", "--mode", "async"]
    arguments += ["--compute", "lognormal:1:0.5", "--target", "0.9", "--out", str(out)]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "mine: 2 runs in virtual time, target accuracy 90%" in text
    assert "Choose" in text
    shown = json.loads((out / "result.json").read_text())
    assert [run["mode"] for run in shown["runs"]] == ["lockstep", "asynchronous"]
    assert {run["examples"] for run in shown["runs"]} == {160}
    assert "<html" in (out / "index.html").read_text()
    assert len((out / "runs.csv").read_text().splitlines()) == 3
    kept = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    again = invoke(*arguments)  # takes the runs that are there
    assert again.exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()} == kept


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mode", "bsp"], "A mode is lockstep, backups:N"),
        (["--compute", "pareto:x"], "A time is given as pareto:BASE:SCALE:SHAPE"),
        (["--compute", "nowhere.txt"], "nowhere.txt"),
        (["none.py"], "A script is a Python file"),
    ],
)
def test_compare_refuses_what_it_does_not_know(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    result = invoke("compare", *arguments, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "index.html").exists()
