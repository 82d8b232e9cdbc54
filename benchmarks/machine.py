"""Says on what machine, and at which commit, a benchmark ran."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environments

if TYPE_CHECKING:
    from rich.console import Console


def description() -> dict[str, str]:
    """Gives commit, processor, number of cores, memory, system and Python version."""
    return {
        "commit": _commit(),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def report(name: str, rows: list[dict[str, Any]], console: Console, *shown: Any) -> None:
    """Prints the machine and what is shown, and writes the rows to `.benchmarks/NAME.json`."""
    about = description()
    console.print(", ".join(f"{key} {value}" for key, value in about.items()))
    for part in shown:
        console.print(part)
    path = environments.FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": about, "rows": rows}, indent=2) + "\n")


def _commit() -> str:
    """Gives the commit's short name, with a mark when tracked files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=environments.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    """Gives the processor's model."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
