"""keras.optimizers, following strategies."""

from __future__ import annotations

import inspect
from typing import Any

import keras

from paceline.training.optimizers import adopt_optimizer, distributed

_keras = keras.optimizers

__all__ = [name for name in dir(_keras) if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]


def get(identifier: Any) -> Any:
    """Returns an optimizer for a name, a config or an optimizer (keras.optimizers.get)."""
    optimizer = _keras.get(identifier)
    if optimizer is not None:
        adopt_optimizer(optimizer)
    return optimizer


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    """Returns an optimizer for a config (keras.optimizers.deserialize)."""
    optimizer = _keras.deserialize(config, custom_objects=custom_objects)
    adopt_optimizer(optimizer)
    return optimizer


def __getattr__(name: str) -> Any:
    value = getattr(_keras, name)
    is_optimizer = inspect.isclass(value) and issubclass(value, _keras.Optimizer)
    return distributed(value) if is_optimizer else value


def __dir__() -> list[str]:
    return __all__
