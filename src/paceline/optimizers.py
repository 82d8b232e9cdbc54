"""`tf.optimizers`: the optimizers of `paceline.keras`."""

from __future__ import annotations

from typing import Any

from paceline.keras import optimizers as _optimizers


def __getattr__(name: str) -> Any:
    return getattr(_optimizers, name)


def __dir__() -> list[str]:
    return dir(_optimizers)
