"""Keras, with models, optimizers and losses that follow the current strategy.

Everything public in `keras` is here under the same name. In place of Keras's own stand `Model`,
`Sequential`, the optimizers, the losses, `layers.BatchNormalization` and `layers.Embedding`; the
rest is Keras itself.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import keras as _keras

from paceline.keras import layers as layers
from paceline.keras import losses, optimizers
from paceline.keras import mixed_precision as mixed_precision
from paceline.keras import models as models
from paceline.keras.models import Model as Model
from paceline.keras.models import Sequential as Sequential

_OWN = {"Loss": losses, "Optimizer": optimizers}

for _name, _module in vars(_keras).items():
    # `from paceline.keras.datasets import mnist` and the like, for the modules without a twin here.
    if isinstance(_module, types.ModuleType) and not _name.startswith("_") and _name != "src":
        sys.modules.setdefault(f"{__name__}.{_name}", _module)

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    {name for name in vars(_keras) if not name.startswith("_") and name != "src"}
)


def __getattr__(name: str) -> Any:
    if name in _OWN:
        return getattr(_OWN[name], name)
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_keras, name)


def __dir__() -> list[str]:
    return __all__
