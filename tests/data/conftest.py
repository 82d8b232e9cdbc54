"""Strategies over the first CPU devices, and what their replicas get as plain lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest

import paceline as tf

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def mirrored() -> Callable[[int], Any]:
    """Makes a MirroredStrategy with this many replicas."""
    return lambda count: tf.distribute.MirroredStrategy(jax.devices("cpu")[:count])


@pytest.fixture
def two(mirrored: Callable[[int], Any]) -> Any:
    """A strategy with two replicas."""
    return mirrored(2)


@pytest.fixture
def steps() -> Callable[[Any, Any], list[list[Any]]]:
    """Reads a distributed dataset: one list per step with one (nested) list per replica."""

    def read(strategy: Any, dataset: Any) -> list[list[Any]]:
        return [
            [
                jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), part)
                for part in strategy.experimental_local_results(element)
            ]
            for element in dataset
        ]

    return read
