"""keras.models, following the current strategy."""

from __future__ import annotations

from typing import Any

import keras

from paceline.strategies.default import get_strategy
from paceline.training.embedding import Embedding
from paceline.training.following import follow
from paceline.training.layers import BatchNormalization
from paceline.training.model import Model as Model
from paceline.training.model import Sequential as Sequential

_keras = keras.models
_OWN = {"BatchNormalization": BatchNormalization, "Embedding": Embedding}

__all__ = [name for name in dir(_keras) if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]


def load_model(filepath: Any, custom_objects: Any = None, **kwargs: Any) -> Any:
    """Loads a saved model; it follows the current strategy (keras.models.load_model)."""
    known = {**_OWN, **(custom_objects or {})}
    return follow(_keras.load_model(filepath, custom_objects=known, **kwargs), get_strategy())


def clone_model(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Clones a model; the clone follows the current strategy (keras.models.clone_model)."""
    return follow(_keras.clone_model(model, *args, **kwargs), get_strategy())


def model_from_json(json_string: str, custom_objects: Any = None) -> Any:
    """Makes a model of its JSON form; it follows the current strategy."""
    known = {**_OWN, **(custom_objects or {})}
    return follow(_keras.model_from_json(json_string, custom_objects=known), get_strategy())


def __getattr__(name: str) -> Any:
    return getattr(_keras, name)


def __dir__() -> list[str]:
    return __all__
