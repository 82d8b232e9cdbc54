"""Variables made under a strategy become its own, whoever makes them.

Keras asks the global distribution for the layout of each variable it creates. While a scope is open
that distribution is a `Creation`: it adopts the variable and leaves the layout to the strategy.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
from jax.sharding import SingleDeviceSharding

from paceline.program.keras_state import creator
from paceline.variables.adoption import adopt
from paceline.variables.plain_models import follow_where_compiled

if TYPE_CHECKING:
    from collections.abc import Iterator


class OneDeviceLayout(keras.distribution.TensorLayout):
    """Keras's description of an array that lies on one device as a whole.

    Args:
        rank: of the array.
        device: the device.
    """

    def __init__(self, rank: int, device: Any) -> None:
        super().__init__((None,) * rank)
        self._device = device

    @property
    def backend_layout(self) -> SingleDeviceSharding:
        """What JAX places the array by."""
        return SingleDeviceSharding(self._device)


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
        follow_where_compiled(self._strategy)

    def get_tensor_layout(self, path: str) -> None:
        """Activations have no fixed layout."""

    def get_data_layout(self, data_shape: Any) -> OneDeviceLayout:
        """Data waits on one device until the strategy splits it over its replicas."""
        return OneDeviceLayout(len(data_shape), self._strategy.devices[0])

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Makes this Keras's distribution for the block."""
        previous = keras.distribution.distribution()
        keras.distribution.set_distribution(self)
        try:
            yield
        finally:
            keras.distribution.set_distribution(previous)
