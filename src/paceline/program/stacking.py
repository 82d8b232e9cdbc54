"""Per-replica values as one array `[replica, ...]` over a mesh: what a compiled step takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from paceline.errors import InvalidType
from paceline.program.meeting import AXIS
from paceline.program.scope import is_traced
from paceline.types import PerReplica

if TYPE_CHECKING:
    from collections.abc import Sequence


def mesh_of(devices: Sequence[Any]) -> Mesh:
    """The mesh over the devices of replicas, in replica order."""
    return Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))


def join_stacked(parts: Sequence[Any], mesh: Mesh) -> Any:
    """Makes arrays of one shape, one per device of `mesh`, one array `[replica, ...]`."""
    devices = mesh.devices.flat
    placed = [
        jax.device_put(jnp.asarray(part)[None], device)
        for part, device in zip(parts, devices, strict=True)
    ]
    shape = (len(placed), *placed[0].shape[1:])
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    return jax.make_array_from_single_device_arrays(shape, sharding, placed)


def stacked(value: PerReplica, mesh: Mesh | None = None) -> PerReplica:
    """Holds the parts of a per-replica value as one padded array, sharded over `mesh`.

    Args:
        value: arrays or numbers of one rank, whose sizes may differ.
        mesh: one device per replica. None takes the devices that the parts lie on; a value whose
            parts do not lie on devices of their own is returned as it is.

    Raises:
        InvalidType: the parts differ in rank.
    """
    if value.array is not None:
        return value
    mesh = mesh or _own_mesh(value)
    if mesh is None:
        return value
    parts = [jnp.asarray(part) for part in value.values]
    shapes = tuple(tuple(part.shape) for part in parts)
    if len({len(shape) for shape in shapes}) > 1:
        raise InvalidType(
            "The parts of a per-replica value need one rank to enter a compiled step. "
            f"Received: shapes {shapes}."
        )
    wide = [padded(part, np.max(np.array(shapes), axis=0)) for part in parts]
    if any(is_traced(part) for part in wide):
        return PerReplica.stacked(jnp.stack(wide), shapes)
    return PerReplica.stacked(join_stacked(wide, mesh), shapes)


def padded(part: Any, full: Any) -> Any:
    """`part` with zeros after it in every dim, up to the shape `full`."""
    widths = [(0, int(to) - size) for size, to in zip(part.shape, full, strict=True)]
    return jnp.pad(part, widths) if any(after for _, after in widths) else part


def _own_mesh(value: PerReplica) -> Mesh | None:
    parts = value.values
    if not all(isinstance(part, jax.Array) and not is_traced(part) for part in parts):
        return None
    devices = [device for part in parts for device in part.devices()]
    is_one_each = len(devices) == len(parts) == len(set(devices))
    return mesh_of(devices) if is_one_each else None
