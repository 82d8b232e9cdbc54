"""keras.losses, dividing by the global batch inside replicas."""

from __future__ import annotations

import inspect
from typing import Any

import keras

from paceline.training.losses import adopt_loss, distributed

_keras = keras.losses

__all__ = [name for name in dir(_keras) if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]


def get(identifier: Any) -> Any:
    """Returns a loss for a name, a config or a loss (keras.losses.get)."""
    return _adopted(_keras.get(identifier))


def deserialize(name: Any, custom_objects: Any = None) -> Any:
    """Returns a loss for a config (keras.losses.deserialize)."""
    return _adopted(_keras.deserialize(name, custom_objects=custom_objects))


def _adopted(loss: Any) -> Any:
    if isinstance(loss, keras.losses.Loss):
        adopt_loss(loss)
    return loss


def __getattr__(name: str) -> Any:
    value = getattr(_keras, name)
    return (
        distributed(value) if inspect.isclass(value) and issubclass(value, _keras.Loss) else value
    )


def __dir__() -> list[str]:
    return __all__
