"""The command line, from the outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from paceline.cli.main import app


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
