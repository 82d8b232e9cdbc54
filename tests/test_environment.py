"""What `conftest.py` promises every other test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import jax
import keras
import pytest

import contract_report

if TYPE_CHECKING:
    from pathlib import Path


def test_keras_runs_on_jax_with_four_cpu_devices() -> None:
    assert keras.backend.backend() == "jax"
    assert len(jax.local_devices(backend="cpu")) == 4


def test_mnist_is_the_real_one(mnist: Path) -> None:
    (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    assert mnist.is_relative_to(os.environ["KERAS_HOME"])
    assert (x_train.shape, x_test.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    assert y_train[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert y_test[:8].tolist() == [7, 2, 1, 0, 4, 1, 4, 9]


@pytest.mark.parametrize("_", range(2))
def test_names_start_anew_in_each_test(_: int) -> None:
    assert keras.layers.Dense(1).name == "dense"


def test_seeds_start_anew_in_each_test() -> None:
    number = float(keras.random.uniform(()))
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    assert float(keras.random.uniform(())) == number


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], "none"), ([3], "3"), ([3, 1, 2, 9], "1-3, 9"), ([120, 108], "108, 120")],
)
def test_spans_are_written_short(numbers: list[int], text: str) -> None:
    assert contract_report.spans(numbers) == text
