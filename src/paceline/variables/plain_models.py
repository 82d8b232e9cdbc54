"""Models of plain Keras that are used with a strategy's variables come to follow the strategy.

Otherwise Keras would train them on one device, though their variables live on several. Keras's own
loops are left as they are: the model itself learns to follow, as by `strategy.distribute`.
"""

from __future__ import annotations

from typing import Any

import keras

from paceline.program.keras_state import model_being_compiled, model_called_for_shapes


def follow_where_compiled(strategy: Any) -> None:
    """Called where a variable is made under `strategy`, which `compile` does."""
    _follow(model_being_compiled(), strategy)


def follow_where_trained(strategy: Any) -> None:
    """Called where a variable of `strategy` is read by code that Keras traces.

    Keras calls a compiled model for its shapes before it makes a function that trains or evaluates.
    """
    model = model_called_for_shapes()
    if getattr(model, "compiled", False):
        _follow(model, strategy)


def _follow(model: Any, strategy: Any) -> None:
    # A model of `paceline.keras`, and one that was distributed, has a strategy already.
    if isinstance(model, keras.Model) and not hasattr(type(model), "distribute_strategy"):
        strategy.distribute(model)
