"""A small model with every kind of state, and where to make it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import paceline as tf
from replica_values import mirrored_strategy

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_FEATURES = 3


def in_scope(num_replicas: int | None, make: Callable[[], Any]) -> Any:
    """What `make` returns, made under a strategy; None means without one."""
    if num_replicas is None:
        return make()
    with mirrored_strategy(num_replicas).scope():
        return make()


def make_model(dropout: float = 0.5) -> Any:
    """A compiled classifier with batch statistics, a dropout seed, slots and metrics."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((NUM_FEATURES,)),
            layers.Dense(4, activation="relu"),
            layers.BatchNormalization(synchronized=True),
            layers.Dropout(dropout, seed=7),
            layers.Dense(2),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.05),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def make_small_model() -> tuple[Any, Any]:
    """A built model without compile, and its built optimizer."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((NUM_FEATURES,)), layers.Dense(4), layers.BatchNormalization()]
    )
    optimizer = tf.keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def state_arrays(model: Any) -> list[Any]:
    """Everything that training changes, without metrics."""
    seeds = [v for layer in model.layers for v in layer.variables if "seed" in v.path]
    variables = [*model.weights, *seeds, *model.optimizer.variables]
    return [np.asarray(variable.value) for variable in variables]
