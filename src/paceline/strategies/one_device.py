"""OneDeviceStrategy: one replica on one device; aggregations have nothing to do."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax

from paceline import devices as device_names
from paceline.strategies.base import Strategy
from paceline.strategies.creation import Creation

if TYPE_CHECKING:
    from collections.abc import Iterator


class OneDeviceStrategy(Strategy):
    """Places variables and computation on one device (tf.distribute.OneDeviceStrategy).

    Args:
        device: a name such as "cpu:0" or a `jax.Device`.

    Raises:
        InvalidArgument: an unknown device.
    """

    def __init__(self, device: Any) -> None:
        super().__init__(device_names.resolve([device]))

    @contextlib.contextmanager
    def _creation(self) -> Iterator[None]:
        """Variables and computations in the block go to the device."""
        with jax.default_device(self.devices[0]), Creation(self).scope():
            yield

    def __repr__(self) -> str:
        return f"OneDeviceStrategy({str(self.devices[0])!r})"
