"""The environments that the sides run in; foreign ones are made under `.benchmarks/`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".benchmarks"

# Environment name -> what pip installs there. "project" is the one that runs the driver.
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "project": (),
    "tensorflow": ("tensorflow-cpu==2.21.*",),
    "torch": ("torch==2.13.0", "numpy"),
}


def python_of(name: str) -> Path:
    """Gives the interpreter of an environment, and makes the environment when it is missing.

    A finished environment holds a file with its requirements. Without it, or with other
    requirements in it, an earlier installation was cut short or is out of date, so the
    environment is made anew.

    Args:
        name: A key of `REQUIREMENTS`.

    Returns:
        The path of the Python interpreter.
    """
    requirements = REQUIREMENTS[name]
    if not requirements:
        return Path(sys.executable)
    folder = FOLDER / name
    python = folder / "bin" / "python"
    finished = folder / "installed.txt"
    wanted = "\n".join(requirements)
    if finished.is_file() and finished.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
    finished.write_text(wanted)
    return python
