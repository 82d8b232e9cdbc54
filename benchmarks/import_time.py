"""How much time `import paceline` adds to importing Keras on JAX.

    python benchmarks/import_time.py

Exits with 1 when it adds more than the target.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from measuring import Spread
from rich.console import Console

TARGET_S = 0.3


def seconds_of(statement: str) -> float:
    """Gives the wall time of a fresh Python process that runs one statement."""
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], env=environment, check=True)
    return time.perf_counter() - start


def measure(rounds: int) -> tuple[Spread, Spread]:
    """Gives the import times of Keras and of Paceline, measured in turns."""
    statements = ("import keras", "import paceline")
    for statement in statements:  # writes bytecode, and brings the files into memory
        seconds_of(statement)
    figures = [[seconds_of(statement) for statement in statements] for _ in range(rounds)]
    keras, paceline = zip(*figures, strict=True)
    return Spread.of(list(keras)), Spread.of(list(paceline))


def main() -> int:
    """Measures, prints, and gives the exit status."""
    parser = argparse.ArgumentParser(description="Import time of Paceline against Keras.")
    parser.add_argument("--rounds", type=int, default=10)
    keras, paceline = measure(parser.parse_args().rounds)
    added_s = paceline.median - keras.median
    console = Console()
    console.print(f"import keras     {keras:.2f} s")
    console.print(f"import paceline  {paceline:.2f} s")
    console.print(f"added            {added_s:.2f} s (target: at most {TARGET_S} s)")
    return int(added_s > TARGET_S)


if __name__ == "__main__":
    sys.exit(main())
