"""Paceline: train Keras 3 models on JAX with many workers, with tf.distribute's names.

The layers, lowest first; a module imports only from layers above it in this list:

    errors, types, config     the exception tree, value objects, options
    program/                  a step traced once, and its two assemblies, compiled and split
    variables/                one variable; aggregation and synchronization as data
    store/                    versioned values, update rules, partitioners, the ledger of work
    pace/                     how far workers may drift apart, one file per policy
    virtual/                  virtual time: clock, latency, network, faults
    data/                     distributed datasets, splitting, per-replica values
    cluster/                  what workers run on, one file per driver; cluster specs and resolvers
    monitor/                  staleness, stragglers and divergence, and where they are reported
    strategies/               base, replica context, one file per strategy
    coordinator/              functions and datasets for the workers of a strategy
    training/                 Keras's fit, evaluate and predict, following the strategy
    checkpoint/               saved state that does not depend on the number of replicas
    comparison/               modes compared in virtual time, and the page that shows them
    cli/, testing/            the command line; tools for tests

The modules `distribute`, `keras`, `optimizers`, `nn` and `train` are namespaces in TensorFlow's
spelling, so that `import paceline as tf` runs a tf.distribute program. `cluster`, `pace`,
`placing`, `update_rules` and `virtual` are what a tf.distribute program has no words for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline._backend import load_keras

load_keras()

from paceline import config, distribute, errors  # noqa: E402  (Keras must be on JAX first)
from paceline.program.function import function  # noqa: E402
from paceline.program.tape import GradientTape, UnconnectedGradients  # noqa: E402
from paceline.types import (  # noqa: E402
    VariableAggregation,
    VariableSynchronization,
)
from paceline.variables.scatter import IndexedSlices  # noqa: E402
from paceline.variables.variable import Variable  # noqa: E402

if TYPE_CHECKING:
    from paceline import (
        checkpoint,
        cluster,
        data,
        datasets,
        keras,
        monitor,
        nn,
        optimizers,
        pace,
        placing,
        testing,
        train,
        update_rules,
        virtual,
    )

__version__ = "0.1.0"


def _follow(target: Any, strategy: distribute.Strategy) -> Any:
    from paceline.training.following import follow  # loads Keras's trainers, so only when asked

    return follow(target, strategy)


distribute.Strategy._follow = staticmethod(_follow)

# Namespaces that are loaded when they are first used, to keep the import fast.
_LAZY = (
    "checkpoint",
    "cluster",
    "data",
    "datasets",
    "keras",
    "monitor",
    "nn",
    "optimizers",
    "pace",
    "placing",
    "testing",
    "train",
    "update_rules",
    "virtual",
)

__all__ = [
    "GradientTape",
    "IndexedSlices",
    "UnconnectedGradients",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "checkpoint",
    "cluster",
    "config",
    "data",
    "datasets",
    "distribute",
    "errors",
    "function",
    "keras",
    "monitor",
    "nn",
    "optimizers",
    "pace",
    "placing",
    "testing",
    "train",
    "update_rules",
    "virtual",
]


# Where TensorFlow has a second name for a part of Keras.
_OF_KERAS = ("initializers", "losses", "metrics", "random")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"paceline.{name}")
    keras_namespace = importlib.import_module("paceline.keras")
    if name in _OF_KERAS:
        return getattr(keras_namespace, name)
    hint = ""
    if not name.startswith("_") and hasattr(keras_namespace.ops, name):
        hint = f". Functions of arrays are keras.ops.{name}, or those of jax.numpy"
    raise AttributeError(f"module 'paceline' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
