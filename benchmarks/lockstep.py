"""Paceline in lockstep against a hand-written JAX loop, TensorFlow and PyTorch, side by side.

    python benchmarks/lockstep.py

See README.md beside this file for what the figures mean.
"""

from __future__ import annotations

import sys

import driver
import plan

if __name__ == "__main__":
    sys.exit(driver.main(plan.LOCKSTEP))
