"""Reductions of per-replica values across replicas: pure functions of the values."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.errors import InvalidArgument
from paceline.program.scope import is_traced
from paceline.types import PerReplica, ReduceOp
from paceline.variables.scatter import IndexedSlices, refuse_slices
from paceline.variables.variable import Variable


def reduce(op: ReduceOp, value: Any, axis: Any, strategy: Any) -> Any:
    """The implementation of `Strategy.reduce`, see there."""
    num_replicas = strategy.num_replicas_in_sync

    def reduce_leaf(leaf: Any) -> Any:
        if isinstance(leaf, IndexedSlices):
            return _slices(op, leaf, strategy)
        if axis is None:
            result = _over_replicas(op, leaf, num_replicas)
        else:
            result = _over_axis(op, leaf, axis, num_replicas)
        return _placed(result, strategy) if isinstance(leaf, PerReplica) else result

    return jax.tree.map(reduce_leaf, value, is_leaf=_is_reducible)


def _placed(result: Any, strategy: Any) -> Any:
    """A result where variables are, so that it can be combined with their values."""
    if is_traced(result) or result.devices() == strategy.device_set:
        return result
    return strategy.place(result)


def _is_reducible(leaf: Any) -> bool:
    return isinstance(leaf, (PerReplica, keras.Variable, IndexedSlices, list))


def _slices(op: ReduceOp, slices: IndexedSlices, strategy: Any) -> IndexedSlices:
    """The rows of all replicas; one that several have occurs several times."""
    values, indices = gather(slices.values, 0, strategy), gather(slices.indices, 0, strategy)
    values = values / strategy.num_replicas_in_sync if op is ReduceOp.MEAN else values
    return IndexedSlices(values, indices, slices.dense_shape)


def _over_replicas(op: ReduceOp, leaf: Any, num_replicas: int) -> Any:
    if not isinstance(leaf, PerReplica):
        return _shared(op, leaf, num_replicas)
    if leaf.array is not None and leaf.shapes is None:
        total = leaf.array.sum(axis=0, dtype=_sum_dtype(leaf.array))
    else:
        parts = [jnp.asarray(part) for part in leaf.values]
        shapes = {part.shape for part in parts}
        if len(shapes) > 1:
            raise InvalidArgument(
                "With axis=None the values of the replicas are combined elementwise and must have "
                f"one shape. Received: shapes {[tuple(part.shape) for part in parts]}. Pass "
                "axis=0 to reduce over the examples as well."
            )
        total = _sum_at_one_place(parts)
    return total / num_replicas if op is ReduceOp.MEAN else total


def _sum_dtype(array: Any) -> Any:
    return jnp.int32 if array.dtype == jnp.bool_ else array.dtype


def _sum_at_one_place(parts: list[Any]) -> Any:
    """Adds values that lie on different devices, in replica order."""
    total = parts[0]
    for part in parts[1:]:
        total = total + _beside(part, total)
    return total


def _beside(part: Any, other: Any) -> Any:
    is_either_traced = is_traced(part) or is_traced(other)
    return part if is_either_traced else jax.device_put(part, next(iter(other.devices())))


def _over_axis(op: ReduceOp, leaf: Any, axis: Any, num_replicas: int) -> Any:
    values = leaf.values if isinstance(leaf, PerReplica) else (leaf,)
    if not isinstance(leaf, PerReplica):
        _shared(op, leaf, num_replicas)  # refuses a SUM of what is not per replica
    parts = [
        jnp.asarray(part.value if isinstance(part, keras.Variable) else part) for part in values
    ]
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    for part in parts:
        if any(not -part.ndim <= a < part.ndim for a in axes):
            raise InvalidArgument(
                "The axis must be a dim of every replica's value. Received: "
                f"axis={axis} for values of shape {[tuple(p.shape) for p in parts]}."
            )
    total = _sum_at_one_place([part.sum(axis=axes) for part in parts])
    if op is ReduceOp.SUM:
        return total
    count = sum(math.prod(part.shape[a] for a in axes) for part in parts)
    return total / count


def _shared(op: ReduceOp, leaf: Any, num_replicas: int) -> Any:
    """A value that is not per replica: the same on all of them."""
    if isinstance(leaf, Variable) and leaf.is_on_read:
        return leaf.value
    if num_replicas == 1 or op is ReduceOp.MEAN:
        return leaf
    is_zero = isinstance(leaf, (int, float, np.generic, np.ndarray)) and not np.any(leaf)
    if is_zero:
        return leaf
    shown = f"{leaf!r} is the same on every replica"
    guess = "."
    if isinstance(leaf, (int, float)):
        guess = f": did you mean {leaf * num_replicas!r} or {leaf!r}?"
    raise InvalidArgument(
        f"Only per-replica values are summed over replicas; {shown}{guess} Received: a value that "
        "did not come from strategy.run. Return it from the function given to run, or use it "
        "as it is."
    )


def gather(value: Any, axis: int, strategy: Any) -> Any:
    """The implementation of `Strategy.gather`, see there."""

    def gather_leaf(leaf: Any) -> Any:
        refuse_slices(leaf)
        if not isinstance(leaf, PerReplica):
            return leaf
        parts = [jnp.asarray(part) for part in leaf.values]
        shapes = [tuple(part.shape) for part in parts]
        if any(not shape or not -len(shape) <= axis < len(shape) for shape in shapes):
            raise InvalidArgument(
                "Values are gathered along a dim that they have; scalars have none. Received: "
                f"shapes {shapes} with axis={axis}."
            )
        place = axis % len(shapes[0])
        if len({s[:place] + s[place + 1 :] for s in shapes}) > 1:
            raise InvalidArgument(
                "Gathered values must agree in rank and in all dims but the gathered one. "
                f"Received: shapes {shapes} with axis={axis}."
            )
        whole = jnp.concatenate([_beside(part, parts[0]) for part in parts], axis=place)
        return _placed(whole, strategy)

    return jax.tree.map(gather_leaf, value, is_leaf=_is_gathered)


def _is_gathered(leaf: Any) -> bool:
    return isinstance(leaf, (PerReplica, IndexedSlices))
