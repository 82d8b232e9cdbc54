"""The layer check itself, and the layers of this package."""

from __future__ import annotations

from pathlib import Path

import layers
import pytest

SOURCE = Path(__file__).parent.parent / "src"


def write(source: Path, module: str, text: str) -> None:
    path = source / "paceline" / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_package_imports_only_downwards() -> None:
    assert layers.violations(SOURCE) == []


@pytest.mark.parametrize(
    "statement",
    [
        "import paceline.strategies.base",
        "from paceline.strategies import base",
        "from paceline import strategies",
        "from ..strategies.base import Strategy",
        "import paceline",
        "from paceline.keras import Model",
        "def late():\n    from paceline.strategies import base",
        "if TYPE_CHECKING:\n    from paceline.strategies import base",
        "importlib.import_module('paceline.strategies')",
    ],
)
def test_an_upward_import_is_found_with_file_and_line(tmp_path: Path, statement: str) -> None:
    write(tmp_path, "program/step.py", f"import os\n{statement}\n")
    (found,) = layers.violations(tmp_path)
    line = 2 + statement.count("\n")
    assert found.startswith(f"{tmp_path / 'paceline/program/step.py'}:{line}: ")


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("strategies/base.py", "from paceline.program import step\nfrom . import mirrored"),
        ("types.py", "from paceline import errors"),
        ("program/step.py", "from .. import errors\nimport keras\nfrom paceline_extras import x"),
        ("distribute.py", "from paceline.strategies.base import Strategy"),
        ("keras/__init__.py", "from paceline.training.model import Model"),
        ("__init__.py", "from paceline import testing"),
        ("comparison/page.py", "from paceline.checkpoint import storage"),
        ("cli/compare.py", "from paceline.comparison.page import page"),
        ("cli/demo.py", "import paceline as tf"),
    ],
)
def test_downward_and_level_imports_pass(tmp_path: Path, module: str, statement: str) -> None:
    write(tmp_path, module, f"{statement}\n")
    assert layers.violations(tmp_path) == []


def test_the_command_fails_and_prints_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "errors.py", "import paceline.program\n")
    monkeypatch.setattr("sys.argv", ["layers.py", str(tmp_path)])
    assert layers.main() == 1
    assert "paceline.errors imports paceline.program, which is in a layer above" in (
        capsys.readouterr().out
    )


def test_the_command_refuses_a_folder_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["layers.py", str(tmp_path)])
    assert layers.main() == 2
    assert f"Received: {tmp_path}" in capsys.readouterr().out
