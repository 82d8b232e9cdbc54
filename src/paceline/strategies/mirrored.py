"""MirroredStrategy: a copy of every variable on each device of this host, in lockstep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from paceline import devices as device_names
from paceline.errors import InvalidType
from paceline.program import meeting, stacking
from paceline.program.backpressure import Backpressure
from paceline.program.scope import is_traced
from paceline.strategies.base import Strategy
from paceline.strategies.running import is_per_replica

if TYPE_CHECKING:
    from collections.abc import Sequence


class MirroredStrategy(Strategy):
    """Synchronous training on the devices of one host (tf.distribute.MirroredStrategy).

    Args:
        devices: names ("cpu:0", "/device:GPU:1", ...) or `jax.Device`s, one per replica; None or
            empty means all accelerators, or else all CPU devices. CPU devices that JAX has not
            been asked for yet are asked for here while that is still possible.
        cross_device_ops: accepted and ignored: XLA chooses the collective algorithm.

    Raises:
        InvalidArgument: an unknown or repeated device.
        InvalidType: `devices` is a single string or holds something else than devices.
    """

    mirrors_variables = True

    def __init__(self, devices: Sequence[Any] | None = None, cross_device_ops: Any = None) -> None:
        if isinstance(devices, str):
            raise InvalidType(
                "Devices are given as a list, one per replica. Received: "
                f"devices={devices!r}. Write devices=[{devices!r}]."
            )
        found = device_names.resolve(devices) if devices else device_names.all_devices()
        super().__init__(found)
        self.mesh = stacking.mesh_of(found)
        self._device_set = set(found)
        is_needed = len(found) > 1 and found[0].platform == "cpu"
        self.backpressure = Backpressure() if is_needed else None
        self._same = NamedSharding(self.mesh, PartitionSpec())
        self._split = NamedSharding(self.mesh, PartitionSpec(meeting.AXIS))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(devices={[str(device) for device in self.devices]})"

    @property
    def device_set(self) -> set[Any]:
        """The replicas' devices."""
        return self._device_set

    def sharding(self, is_stacked: bool) -> NamedSharding:
        """How a storage lies on the mesh: a row per replica, or the same on all."""
        return self._split if is_stacked else self._same

    def place(self, value: Any) -> Any:
        """Copies a value to every replica."""
        if is_traced(value):
            return value
        return jax.device_put(value, self._same, may_alias=False)

    def place_stacked(self, value: Any) -> Any:
        """Puts row i of `[replica, ...]` on replica i."""
        if is_traced(value):
            return value
        return jax.device_put(value, self._split, may_alias=False)

    def join(self, parts: Sequence[Any]) -> Any:
        """Makes equal per-replica arrays one replicated array."""
        placed = self._on_devices(parts)
        return jax.make_array_from_single_device_arrays(placed[0].shape, self._same, placed)

    def join_stacked(self, parts: Sequence[Any]) -> Any:
        """Makes per-replica arrays one array `[replica, ...]`."""
        return stacking.join_stacked(parts, self.mesh)

    def _on_devices(self, parts: Sequence[Any]) -> list[Any]:
        return [jax.device_put(part, d) for part, d in zip(parts, self.devices, strict=True)]

    def stacked(self, nest: Any) -> Any:
        """Per-replica values in the form that a compiled step takes: one padded, sharded array."""

        return jax.tree.map(
            lambda leaf: stacking.stacked(leaf, self.mesh) if is_per_replica(leaf) else leaf,
            nest,
            is_leaf=is_per_replica,
        )
