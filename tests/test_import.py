"""What importing Paceline does and leaves alone; each case needs a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("KERAS_BACKEND", "XLA_FLAGS")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def output(code: str, **environment: str) -> str:
    result = run(code, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("setting", [{}, {"KERAS_BACKEND": "tensorflow"}])
def test_it_selects_the_jax_backend_and_leaves_the_environment(setting: dict[str, str]) -> None:
    code = """
import os
before = os.environ.get("KERAS_BACKEND")
import paceline, keras
print(keras.backend.backend(), os.environ.get("KERAS_BACKEND") == before)
"""
    assert output(code, **setting) == "jax True"


def test_keras_on_another_backend_is_refused() -> None:
    result = run("import keras, paceline", KERAS_BACKEND="numpy")
    assert result.returncode != 0
    assert "BackendError" in result.stderr
    assert "already loaded with the 'numpy' backend" in result.stderr
    assert "Import paceline before keras" in result.stderr


def test_it_changes_nothing_in_keras_or_jax() -> None:
    code = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import inspect, jax, keras
from keras.src.backend.jax import core, trainer
def state():
    found = {}
    for module in (keras, core, trainer, jax, jax.numpy, keras.Variable, keras.Model,
                   keras.optimizers.Optimizer, keras.losses.Loss, keras.layers.BatchNormalization,
                   trainer.JAXTrainer):
        for name, value in vars(module).items():
            if not inspect.ismodule(value):
                found[module.__name__, name] = id(value)
    return found
before = state()
import paceline
paceline.keras, paceline.optimizers
after = state()
print([key for key, value in before.items() if after.get(key) != value])
"""
    assert output(code) == "[]"


def test_it_does_not_start_jax() -> None:
    code = """
import paceline
paceline.config.set_cpu_devices(3)
import jax
print(len(jax.devices()))
"""
    assert output(code) == "3"


def test_mirrored_strategy_asks_for_its_cpu_devices() -> None:
    code = """
import paceline as tf
print(tf.distribute.MirroredStrategy(["cpu:0", "/device:CPU:1"]).num_replicas_in_sync)
"""
    assert output(code) == "2"


def test_asking_too_late_says_what_to_do() -> None:
    code = """
import paceline as tf, jax.numpy as jnp
jnp.zeros(1)
for ask in (lambda: tf.config.set_cpu_devices(2),
            lambda: tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])):
    try:
        ask()
    except tf.errors.PacelineError as error:
        print(type(error).__name__, error)
"""
    late, missing = output(code).splitlines()
    assert late.startswith("ContextError")
    assert "set_cpu_devices(2) while JAX runs with 1" in late
    assert missing.startswith("InvalidArgument")
    assert "Call" in missing or "call" in missing
    assert "paceline.config.set_cpu_devices(2)" in missing


def test_asking_for_what_there_is_is_never_too_late() -> None:
    code = """
import paceline as tf, jax.numpy as jnp
jnp.zeros(1)
tf.config.set_cpu_devices(1)
print("fine")
"""
    assert output(code) == "fine"
