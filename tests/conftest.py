"""What every test runs on: four CPU devices, the JAX backend, and a state of its own."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

# A folder of our own, so that no setting or file in the home directory reaches a test. Keras
# reads these variables when it is imported, here and in the processes that tests start.
os.environ["KERAS_HOME"] = tempfile.mkdtemp(prefix="paceline-keras-")
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")

import jax
import keras
import pytest

# Pytest finds the hooks here by their names.
from contract_report import pytest_collection_modifyitems as pytest_collection_modifyitems
from contract_report import pytest_terminal_summary as pytest_terminal_summary

if TYPE_CHECKING:
    from collections.abc import Iterator

KERAS_HOME = Path(os.environ["KERAS_HOME"])
atexit.register(shutil.rmtree, KERAS_HOME, ignore_errors=True)

NUM_CPU_DEVICES = 4
jax.config.update("jax_num_cpu_devices", NUM_CPU_DEVICES)
# An accelerator would round float32 products to TF32 and miss every reference.
jax.config.update("jax_default_matmul_precision", "highest")

MNIST = Path(
    os.environ.get("PACELINE_MNIST") or Path(__file__).parents[2] / "shared/data/mnist.npz"
)


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives each test the state of a new process: names, seeds, policies, environment."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_floatx("float32")


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the real MNIST where `keras.datasets.mnist.load_data` looks, and returns its path."""
    if not MNIST.is_file():
        pytest.fail(
            "This test needs MNIST in the layout of Keras, mnist.npz, beside the checkout in "
            f"shared/data or where PACELINE_MNIST points. Received: no file at {MNIST}."
        )
    path = KERAS_HOME / "datasets" / "mnist.npz"
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        # Not a link: where Keras doubts a file, it writes a download over it.
        shutil.copy(MNIST, path)
    # The file holds the arrays of the original in another archive, so its checksum differs.
    monkeypatch.setattr("keras.src.utils.file_utils.validate_file", lambda *_, **__: True)
    return path
