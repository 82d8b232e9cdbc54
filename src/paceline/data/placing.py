"""From host batches to the replicas' devices: the part of the input path that runs every step.

A global batch is cut into the parts of `splitting`, and the parts of each array become one array
`[replica, local, ...]` whose row i lies on replica i's device. Parts are handed to their devices
one by one, so no batch passes through device 0.

NumPy arrays are copied first. JAX would otherwise borrow their memory, and a loader that fills the
same buffer again would change batches that are still waiting for their step.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from paceline.data.splitting import split_slices
from paceline.errors import InvalidArgument, InvalidType
from paceline.program import meeting
from paceline.types import PerReplica, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax.sharding import Mesh, Sharding

_NUMBERS = frozenset("biufc")


def per_replica(batch: Any, strategy: Any, is_kept: bool = False) -> Any:
    """Cuts a global batch over the replicas and puts every part on its replica's device.

    Args:
        batch: nest of NumPy or JAX arrays `[global batch, ...]`; None stays None.
        strategy: the strategy whose replicas share the batch.
        is_kept: nobody writes to the batch's memory before the step has run, so that it need not
            be copied first (a loader may fill the same buffer for every batch).

    Returns:
        The nest with a `PerReplica` for each array: `[replica, local, ...]`, padded with zeros
        where the sizes differ or a replica is empty. With one replica the whole arrays, on the
        replica's device.

    Raises:
        InvalidArgument: a leaf without a batch dim, or leaves that disagree on its size.
        InvalidType: a leaf that is no array of numbers.
    """
    leaves, tree = jax.tree.flatten(batch)
    arrays = [as_array(leaf) for leaf in leaves]
    num_examples = check_examples(arrays, batch)
    num_replicas = strategy.num_replicas_in_sync
    if num_replicas == 1:
        return tree.unflatten([on_one_device(array, strategy.devices[0]) for array in arrays])
    if num_examples % num_replicas == 0:
        return tree.unflatten([_even(array, strategy, is_kept) for array in arrays])
    slices = split_slices(num_examples, num_replicas)
    return tree.unflatten([stack_parts([a[s] for s in slices], strategy) for a in arrays])


def per_replica_steps(batches: Sequence[Any], strategy: Any) -> Any:
    """Cuts several batches of one shape for a program that runs several steps at once.

    Args:
        batches: nests of arrays `[global batch, ...]`, equal in structure, shapes and dtypes, one
            per step; the number of replicas divides the batch size.
        strategy: the strategy whose replicas share the batches.

    Returns:
        The nest with a `PerReplica` for each array, `[replica, step, local, ...]`, or with one
        replica an array `[step, global batch, ...]`.

    Raises:
        InvalidArgument: no batch, batches that differ, a batch size that does not divide evenly,
            or as `per_replica`.
        InvalidType: as `per_replica`.
    """
    if not batches:
        raise InvalidArgument("Several steps need at least one batch. Received: no batch.")
    flat = [jax.tree.flatten(batch) for batch in batches]
    steps = [[as_array(leaf) for leaf in leaves] for leaves, _ in flat]
    tree, num_replicas = flat[0][1], strategy.num_replicas_in_sync
    num_examples = check_examples(steps[0], batches[0])
    signatures = {
        (t, *[(a.shape, a.dtype) for a in s]) for s, (_, t) in zip(steps, flat, strict=True)
    }
    if len(signatures) > 1 or num_examples % num_replicas:
        raise InvalidArgument(
            "Steps that run as one program need batches of one structure, shape and dtype, divided "
            f"evenly by {num_replicas} replicas. Received: "
            f"{[[a.shape for a in arrays] for arrays in steps]}. Run other batches one by one."
        )
    return tree.unflatten([_even_steps(of_leaf, strategy) for of_leaf in zip(*steps, strict=True)])


def stack_parts(parts: Sequence[Any], strategy: Any) -> Any:
    """Makes one `PerReplica` of the replicas' arrays, padded with zeros to the largest of each dim.

    Args:
        parts: one array per replica, equal in rank and dtype.
        strategy: the strategy with these replicas, more than one.

    Raises:
        InvalidArgument: ranks or dtypes that differ.
    """
    shapes: tuple[Shape, ...] = tuple(tuple(part.shape) for part in parts)
    if len({len(shape) for shape in shapes}) > 1 or len({part.dtype for part in parts}) > 1:
        raise InvalidArgument(
            "The replicas' parts of a batch need one rank and one dtype. Received: "
            f"{[f'{part.dtype}{list(part.shape)}' for part in parts]}."
        )
    full = tuple(max(dims) for dims in zip(*shapes, strict=True))
    if any(isinstance(part, jax.Array) for part in parts):
        return PerReplica.stacked(
            strategy.join_stacked([_padded(part, full) for part in parts]), shapes
        )

    def part_of(index: Any) -> np.ndarray:
        part = parts[index[0].start]
        row = np.zeros((1, *full), part.dtype)
        row[(0, *map(slice, part.shape))] = part
        return row

    shape = (len(parts), *full)
    array = jax.make_array_from_callback(shape, _split_over(strategy.mesh), part_of)
    return PerReplica.stacked(array, shapes)


def as_array(leaf: Any) -> Any:
    """Returns a leaf of a batch as a NumPy or JAX array, also one of another library.

    Raises:
        InvalidArgument: a single number, which has no batch dim.
        InvalidType: no array, or one of strings or objects.
    """
    if type(leaf) is np.ndarray and leaf.dtype.kind in _NUMBERS:
        return leaf
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, (np.generic, int, float, complex)):
        raise not_batched(leaf)
    array = np.asarray(leaf) if isinstance(leaf, np.ndarray) else _foreign_array(leaf)
    # The kind of bfloat16 and its like is that of a structure of bytes.
    if array.dtype.kind not in _NUMBERS and not jax.numpy.issubdtype(array.dtype, np.number):
        raise InvalidType(
            "Batches hold numbers: devices have no strings or objects. Received: an array of dtype "
            f"{array.dtype}. Encode it as numbers before distributing."
        )
    return array


def not_batched(leaf: Any) -> InvalidArgument:
    """The error for an element that is no batch."""
    return InvalidArgument(
        "Every element of a dataset must be a batch: a nest of arrays [batch, ...], which is split "
        f"over the replicas. Received: {leaf!r}, which has no batch dim. Batch the dataset, "
        "for example with dataset.batch(global_batch_size), or read arrays with "
        "paceline.data.ArrayBatches(x, y, batch_size=...)."
    )


def _foreign_array(leaf: Any) -> np.ndarray:
    """Arrays of TensorFlow and PyTorch, told by what they can do so that neither is imported."""
    if hasattr(leaf, "detach") and hasattr(leaf, "cpu"):
        leaf = leaf.detach().cpu()
    if hasattr(leaf, "numpy"):
        return np.asarray(leaf.numpy())
    if hasattr(leaf, "__array__"):
        return np.asarray(leaf)
    raise InvalidType(
        "A batch is a nest (tuples, lists, dicts) of arrays [batch, ...]. Received: a leaf "
        f"{leaf!r} of type {type(leaf).__name__}. Yield NumPy or JAX arrays."
    )


def check_examples(arrays: Sequence[Any], batch: Any) -> int:
    """Returns the common size of the leading dim of a batch's arrays.

    Raises:
        InvalidArgument: no array, a scalar, or sizes that differ; `batch` gives the names.
    """
    sizes = set()
    for array in arrays:
        if not array.ndim:
            raise not_batched(array)
        sizes.add(array.shape[0])
    if len(sizes) == 1:
        return sizes.pop()
    if not sizes:
        raise InvalidArgument(
            f"A batch needs at least one array [batch, ...]. Received: {batch!r}."
        )
    named, _ = jax.tree_util.tree_flatten_with_path(batch)
    shapes = ", ".join(
        f"{jax.tree_util.keystr(path)} {tuple(array.shape)}"
        for (path, _), array in zip(named, arrays, strict=True)
    )
    raise InvalidArgument(
        "All arrays of a batch need one size of the leading dim, the number of examples. "
        f"Received: shapes {shapes}. Yield arrays of one length, and numbers that are not per "
        "example outside the dataset."
    )


def _even(array: Any, strategy: Any, is_kept: bool) -> PerReplica:
    num_replicas = strategy.num_replicas_in_sync
    shape = (num_replicas, array.shape[0] // num_replicas, *array.shape[1:])
    if isinstance(array, jax.Array):
        return PerReplica.stacked(strategy.place_stacked(array.reshape(shape)))
    rows = (array if is_kept else array.copy()).reshape(shape)
    # Half the time of jax.device_put of the same array with the same sharding.
    placed = jax.make_array_from_callback(shape, _split_over(strategy.mesh), rows.__getitem__)
    return PerReplica.stacked(placed)


def _even_steps(arrays: Sequence[Any], strategy: Any) -> Any:
    num_replicas = strategy.num_replicas_in_sync
    if num_replicas == 1:
        return on_one_device(np.stack([np.asarray(a) for a in arrays]), strategy.devices[0])
    num_examples, *rest = arrays[0].shape
    local = num_examples // num_replicas
    shape = (num_replicas, len(arrays), local, *rest)

    def rows_of(index: Any) -> np.ndarray:
        first = index[0].start * local
        return np.stack([np.asarray(array[first : first + local]) for array in arrays])[None]

    placed = jax.make_array_from_callback(shape, _split_over(strategy.mesh), rows_of)
    return PerReplica.stacked(placed)


def on_one_device(array: Any, device: Any) -> Any:
    """Puts a whole array on the only replica's device; None lets JAX choose."""
    if isinstance(array, jax.Array):
        return array if device is None else jax.device_put(array, device)
    if device is None:
        return jnp.array(array)
    own = array.copy()
    sharding = SingleDeviceSharding(device)
    return jax.make_array_from_callback(own.shape, sharding, own.__getitem__)


def _padded(part: Any, full: Shape) -> Any:
    return jnp.pad(part, [(0, to - dim) for dim, to in zip(part.shape, full, strict=True)])


@functools.cache
def _split_over(mesh: Mesh) -> Sharding:
    return NamedSharding(mesh, PartitionSpec(meeting.AXIS))
