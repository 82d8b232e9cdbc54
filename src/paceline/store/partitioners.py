"""How many shards a variable is divided into, and which rows each of them holds.

Only the first dim is divided. A partitioner is any callable `(shape, dtype)` that returns one
number of parts per dim, as TensorFlow's do; `partitions` checks what it returns.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from paceline.errors import InvalidArgument

AnyPartitioner = Callable[..., Sequence[int]]
_STRINGS = "OSUT"  # the kinds of NumPy's dtypes whose elements have no fixed size


class Partitioner:
    """What divides variables over parameter servers: a base class for one's own.

    Semantics:
        tf.distribute.experimental.partitioners.Partitioner. Deviation: `shape` is a tuple and
        `dtype` a NumPy dtype (`itemsize`, not `size`).
    """

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> Sequence[int]:
        """Divides one variable.

        Args:
            shape: the variable's shape, of at least one dim.
            dtype: its dtype.
            axis: the dim to divide. Strategies divide the first.

        Returns:
            The number of parts of each dim; 1 but for `axis`.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class FixedShardsPartitioner(Partitioner):
    """Divides every variable into the same number of shards, or one per row if it has fewer.

    Args:
        num_shards: how many.

    Raises:
        InvalidArgument: a number below 1.

    Semantics:
        tf.distribute.experimental.partitioners.FixedShardsPartitioner.
    """

    num_shards: int

    def __post_init__(self) -> None:
        _check_positive("num_shards", self.num_shards)

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Divides one variable; see `Partitioner`."""
        return _counts(shape, axis, self.num_shards)


@dataclasses.dataclass(frozen=True)
class MinSizePartitioner(Partitioner):
    """Makes as many shards as possible of about `min_shard_bytes` each.

    The number is that of whole and begun `min_shard_bytes`, so a shard can be a little smaller.

    Args:
        min_shard_bytes: the size of a shard.
        max_shards: at most so many.
        bytes_per_string: the size to assume for an element that is a string.

    Raises:
        InvalidArgument: a number below 1.

    Semantics:
        tf.distribute.experimental.partitioners.MinSizePartitioner. With the default of
        `max_shards`, which is TensorFlow's, nothing is divided.
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _check_positive("min_shard_bytes", self.min_shard_bytes)
        _check_positive("max_shards", self.max_shards)
        _check_positive("bytes_per_string", self.bytes_per_string)

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Divides one variable; see `Partitioner`."""
        num_bytes = math.prod(shape) * _element_bytes(dtype, self.bytes_per_string)
        return _counts(shape, axis, min(self.max_shards, _ceil(num_bytes, self.min_shard_bytes)))


@dataclasses.dataclass(frozen=True)
class MaxSizePartitioner(Partitioner):
    """Makes as few shards as possible of at most `max_shard_bytes` each, or of one row.

    Args:
        max_shard_bytes: the size of a shard.
        max_shards: at most so many, even if they are larger then. None: no limit.
        bytes_per_string: the size to assume for an element that is a string.

    Raises:
        InvalidArgument: a number below 1.

    Semantics:
        tf.distribute.experimental.partitioners.MaxSizePartitioner.
    """

    max_shard_bytes: int
    max_shards: int | None = None
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _check_positive("max_shard_bytes", self.max_shard_bytes)
        _check_positive("bytes_per_string", self.bytes_per_string)
        if self.max_shards is not None:
            _check_positive("max_shards", self.max_shards)

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Divides one variable; see `Partitioner`."""
        rest = [size for i, size in enumerate(shape) if i != axis % max(1, len(shape))]
        row_bytes = math.prod(rest) * _element_bytes(dtype, self.bytes_per_string)
        rows_per_shard = max(1, self.max_shard_bytes // max(1, row_bytes))
        needed = _ceil(shape[axis], rows_per_shard) if len(shape) else 1
        return _counts(shape, axis, min(self.max_shards or needed, needed))


def partitions(partitioner: AnyPartitioner, shape: Sequence[int], dtype: Any) -> int:
    """The number of shards that a partitioner divides a variable into.

    Args:
        partitioner: a `Partitioner`, or a callable with its arguments.
        shape: the variable's shape. A scalar is never divided.
        dtype: the variable's dtype.

    Returns:
        At least 1 (an ordinary variable) and at most the number of rows.

    Raises:
        InvalidArgument: the partitioner returned something else than one positive number for the
            first dim and 1 for the others.
    """
    shape = tuple(shape)
    if not shape:
        return 1
    dtype = jnp.dtype(dtype)
    returned = partitioner(shape=shape, dtype=dtype)
    counts = _integers(returned)
    if not counts or len(counts) > len(shape) or counts[0] < 1 or set(counts[1:]) - {1}:
        raise InvalidArgument(
            "A partitioner divides the first dim only: it returns a list with the number of shards "
            f"first and 1 for every other dim. Received: {returned!r} from {_named(partitioner)} "
            f"for a variable of shape {shape} and dtype {dtype}. Return, for example, "
            f"{[min(2, max(1, shape[0])), *[1] * (len(shape) - 1)]}."
        )
    return max(1, min(counts[0], shape[0]))


def row_ranges(num_rows: int, num_shards: int) -> list[range]:
    """The rows of each shard, in TensorFlow's "div" layout: even, the first ones a row larger.

    Args:
        num_rows: rows of the whole variable.
        num_shards: from 1 to `num_rows`.
    """
    size, extra = divmod(num_rows, num_shards)
    starts = [i * size + min(i, extra) for i in range(num_shards + 1)]
    return [range(starts[i], starts[i + 1]) for i in range(num_shards)]


def _counts(shape: Sequence[int], axis: int, num_shards: int) -> list[int]:
    rank = len(shape)
    if not -rank <= axis < rank:
        raise InvalidArgument(
            "The dim to divide must be one of the variable's. Received: "
            f"axis={axis} for shape={tuple(shape)}."
        )
    counts = [1] * rank
    counts[axis] = max(1, min(num_shards, shape[axis]))
    return counts


def _element_bytes(dtype: Any, bytes_per_string: int) -> int:
    if isinstance(dtype, str) and dtype == "string":  # Keras's name
        return bytes_per_string
    dtype = jnp.dtype(dtype)
    return bytes_per_string if dtype.kind in _STRINGS else dtype.itemsize


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _integers(returned: Any) -> list[int]:
    """What a partitioner returned as integers, or nothing if it is not a list of them."""
    try:
        return [operator.index(count) for count in returned]
    except TypeError:
        return []


def _named(partitioner: Any) -> str:
    name = getattr(partitioner, "__qualname__", None)
    return f"the partitioner {name or repr(partitioner)}"


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise InvalidArgument(
            f"A partitioner takes positive integers. Received: {name}={value!r}. Pass 1 or more."
        )
