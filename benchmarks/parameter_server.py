"""Parameter servers: Paceline against a hand-written JAX store and TensorFlow, side by side.

    python benchmarks/parameter_server.py

See README.md beside this file for what the figures mean.
"""

from __future__ import annotations

import sys

import driver
import plan

if __name__ == "__main__":
    sys.exit(driver.main(plan.PARAMETER_SERVER))
