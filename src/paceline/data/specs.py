"""What the elements of a distributed dataset look like."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array (tf.TensorSpec); a dim that varies is None."""

    shape: tuple[int | None, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True)
class PerReplicaSpec:
    """Shapes and dtypes of a per-replica value, one spec per replica, in replica order."""

    value_specs: tuple[ArraySpec, ...]


def replica_spec(array: Any, num_replicas: int) -> ArraySpec | PerReplicaSpec:
    """Returns the spec of what replicas get from arrays like `array`.

    The batch dim is None: the last batch may be short. A scalar has none.
    """
    shape = (None, *array.shape[1:]) if array.ndim else ()
    spec = ArraySpec(shape, jax.dtypes.canonicalize_dtype(array.dtype))
    return spec if num_replicas == 1 else PerReplicaSpec((spec,) * num_replicas)
