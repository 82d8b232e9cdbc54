"""Variables made under a strategy become its own, whoever makes them.

Keras asks the global distribution for the layout of each variable it creates. While a scope is open
that distribution is a `Creation`: it adopts the variable and leaves the layout to the strategy.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras

from paceline.program.keras_state import creator
from paceline.variables.adoption import adopt

if TYPE_CHECKING:
    from collections.abc import Iterator


class Creation:
    """What Keras asks of a distribution, answered for a strategy: it describes no layouts.

    Args:
        strategy: the strategy that new variables join.
    """

    auto_shard_dataset = False
    batch_dim_name = None

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def get_variable_layout(self, variable: Any) -> None:
        """Adopts the variable; Keras calls this while it creates one."""
        adopt(variable, self._strategy, owner=creator())

    def get_tensor_layout(self, path: str) -> None:
        """Activations have no fixed layout."""

    def get_data_layout(self, data_shape: Any) -> None:
        """Data is placed by the strategy's own datasets."""

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Makes this Keras's distribution for the block."""
        previous = keras.distribution.distribution()
        keras.distribution.set_distribution(self)
        try:
            yield
        finally:
            keras.distribution.set_distribution(previous)
