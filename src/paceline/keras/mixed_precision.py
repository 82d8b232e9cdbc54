"""keras.mixed_precision, with a LossScaleOptimizer that follows strategies."""

from __future__ import annotations

from typing import Any

import keras

from paceline.keras import optimizers

_keras = keras.mixed_precision


def __getattr__(name: str) -> Any:
    return getattr(optimizers if name == "LossScaleOptimizer" else _keras, name)


def __dir__() -> list[str]:
    return [name for name in dir(_keras) if not name.startswith("_")]
