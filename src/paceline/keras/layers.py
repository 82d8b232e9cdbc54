"""keras.layers, with those that know of replicas and servers in place of Keras's own.

`BatchNormalization` can pool its statistics over replicas; the table of an `Embedding` may lie in
shards.
"""

from __future__ import annotations

from typing import Any

import keras

from paceline.training.embedding import Embedding as Embedding
from paceline.training.layers import BatchNormalization as BatchNormalization

_keras = keras.layers

__all__ = [name for name in dir(_keras) if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return getattr(_keras, name)


def __dir__() -> list[str]:
    return __all__
