"""Plain Keras on one device, which training on replicas must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import paceline as tf

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_FEATURES = 4
NUM_CLASSES = 3


def mirrored(num_replicas: int) -> tf.distribute.MirroredStrategy:
    """A strategy on that many CPU devices."""
    return tf.distribute.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])


def examples(num: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs `[example, feature]` and labels `[example]`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, NUM_FEATURES)).astype("float32")
    return x, rng.integers(0, NUM_CLASSES, num)


def classifier(k: Any, *extra: Any) -> Any:
    """A small model of `k`, which is `keras` or `tf.keras`, with the same weights each time."""
    keras.utils.set_random_seed(7)
    return k.Sequential(
        [
            k.Input((NUM_FEATURES,)),
            k.layers.Dense(6, activation="tanh"),
            *extra,
            k.layers.Dense(NUM_CLASSES, activation="softmax"),
        ]
    )


def linear(k: Any, num_features: int = 1, **dense: Any) -> Any:
    """y = w x with w = 1."""
    layer = k.layers.Dense(1, use_bias=False, kernel_initializer="ones", **dense)
    return k.Sequential([k.Input((num_features,)), layer])


def train_both(
    build: Callable[[Any], Any],
    num_replicas: int,
    data: tuple[Any, ...],
    *,
    compile_args: Callable[[Any], dict[str, Any]],
    **fit: Any,
) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """Trains `build(k)` with plain Keras and on replicas, from the same start.

    Returns:
        The two models and their histories, plain Keras first.
    """
    fit = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0} | fit
    plain = build(keras)
    plain.compile(**compile_args(keras))
    keras.utils.set_random_seed(3)
    expected = plain.fit(*data, **fit).history
    with mirrored(num_replicas).scope():
        model = build(tf.keras)
        model.compile(**compile_args(tf.keras))
    keras.utils.set_random_seed(3)
    actual = model.fit(*data, **fit).history
    return plain, model, _arrays(expected), _arrays(actual)


def _arrays(history: dict[str, list[float]]) -> dict[str, Any]:
    return {name: np.float32(values) for name, values in history.items()}
