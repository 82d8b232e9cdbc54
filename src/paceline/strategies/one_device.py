"""OneDeviceStrategy: one replica on one device; aggregations have nothing to do."""

from __future__ import annotations

from typing import Any

from paceline.strategies import devices as device_names
from paceline.strategies.base import Strategy


class OneDeviceStrategy(Strategy):
    """Places variables and computation on one device (tf.distribute.OneDeviceStrategy).

    Args:
        device: a name such as "cpu:0" or a `jax.Device`.

    Raises:
        InvalidArgument: an unknown device.
    """

    def __init__(self, device: Any) -> None:
        super().__init__(device_names.resolve([device]))

    def __repr__(self) -> str:
        return f"OneDeviceStrategy({str(self.devices[0])!r})"
