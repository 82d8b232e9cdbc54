"""A process that ends with work under way ends as if there were none."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, threading

@atexit.register  # the first one registered is the last one called
def look():
    print(sorted(thread.name for thread in threading.enumerate()))

import jax.numpy as jnp
import paceline as tf
from paceline.cluster import Local, serving

strategy = tf.distribute.ParameterServerStrategy(cluster=Local(workers=2))
with strategy.scope():
    total = tf.Variable(0.0)

@tf.function
def step():
    total.assign_add(1.0)

coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
begun = threading.Event()
"""


def _ends(program: str) -> str:
    """Runs a program that must end well; returns what it printed last."""
    code = PROGRAM + program
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


def test_workers_finish_their_step_before_the_interpreter_ends() -> None:
    # Without that about two of three such processes abort: a thread may not return from XLA then.
    program = """
for _ in range(2_000):
    coordinator.schedule(step)
"""
    assert _ends(program) == "['MainThread']"


def test_a_function_without_end_does_not_hold_up_the_exit() -> None:
    program = """
serving._FAREWELL_S = 0.1

def wait():
    begun.set()
    threading.Event().wait()

coordinator.schedule(wait)
begun.wait()
"""
    assert "MainThread" in _ends(program)


def test_an_update_without_end_does_not_hold_up_the_exit() -> None:
    program = """
from paceline.program.handover import handover
serving._FAREWELL_S = 0.1

def hold():
    with handover:
        begun.set()
        threading.Event().wait()

coordinator.schedule(hold)
begun.wait()
"""
    assert "MainThread" in _ends(program)
