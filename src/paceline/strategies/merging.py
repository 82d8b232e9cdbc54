"""`merge_call` inside a compiled step.

All replicas run the merge function alike on gathered values: a variable of one value is read and
written as it is, one that holds a component per replica is gathered first.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.errors import InvalidArgument
from paceline.program import context, meeting, nest, stacking
from paceline.program.context import Frame
from paceline.program.keras_state import active_scope, inside_of_scope
from paceline.program.scope import TraceScope
from paceline.strategies.running import is_per_replica
from paceline.types import PerReplica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    np.generic,
)  # what can depend on the size of a replica's batch


class AcrossScope(TraceScope):
    """Reads and writes of code across replicas, in the middle of a replica's trace.

    Args:
        inner: the replica's own scope.
        replica: its context.
    """

    def __init__(self, inner: Any, replica: Any) -> None:
        super().__init__()
        self.replica = replica
        self._inner = inner
        self._num_replicas = replica.num_replicas_in_sync
        self._gathered: dict[int, Any] = {}

    def storage(self, variable: Any) -> Any:
        """The whole storage: for a per-replica variable the gathered components."""
        component = self._inner.storage(variable)
        if not variable.placement.is_stacked:
            return component
        key = id(variable)
        if key not in self._gathered:
            self._gathered[key] = gathered(component, self._num_replicas)
        return self._gathered[key]

    def set_storage(self, variable: Any, value: Any) -> None:
        """Writes back what this replica holds of it."""
        if variable.placement.is_stacked:
            self._gathered[id(variable)] = value
            value = value[meeting.replica_id()]
        self._inner.set_storage(variable, value)

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """Back in the replica's own scope, whose writes are seen across replicas afterwards."""
        with inside_of_scope(self._inner):
            yield
        self._gathered.clear()


def gathered(value: Any, num_replicas: int) -> Any:
    """The stacked values `[replica, ...]` of all replicas, on each of them."""
    return meeting.all_gather(jnp.asarray(value)[None], 0, (1,) * num_replicas)


def merge_in_trace(
    replica: Any, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls `merge_fn` across replicas in the middle of a compiled step."""
    strategy = replica.strategy
    merged_args, merged_kwargs = _merged((args, kwargs), replica)
    with context.entered(Frame(strategy)), AcrossScope(active_scope(), replica):
        result = merge_fn(strategy, *merged_args, **merged_kwargs)
    return _own(result, replica)


def run_in_merge(
    scope: AcrossScope, fn: Callable[..., Any], args: Any, kwargs: Any, loss_rule: Any
) -> Any:
    """`run` inside `merge_fn`: the replica whose trace this is goes on as itself."""
    replica = dataclasses.replace(scope.replica, loss_rule=loss_rule)
    own_args, own_kwargs = _own((args, kwargs), replica)
    with scope.left(), context.entered(Frame(replica.strategy, replica=replica)):
        result = fn(*own_args, **own_kwargs)
    return _merged(result, replica)


def _merged(own: Any, replica: Any) -> Any:
    """The replicas' values as every one of them sees them across replicas."""

    def merge(leaf: Any) -> Any:
        if isinstance(leaf, (jax.Array, np.ndarray)):
            return _merged_array(jnp.asarray(leaf), replica)
        if not isinstance(leaf, _PLAIN):
            return leaf
        values = replica.gathers.of_all(leaf, (leaf,) * replica.num_replicas_in_sync)
        is_same = all(value == leaf and type(value) is type(leaf) for value in values)
        return leaf if is_same else PerReplica(values)

    return nest.closed(jax.tree.map(merge, nest.opened(own)))


def _merged_array(own: Any, replica: Any) -> PerReplica:
    likely = [own.shape] * replica.num_replicas_in_sync
    if replica.example_sizes and own.ndim and own.shape[0] == replica.local_examples:
        likely = [(size, *own.shape[1:]) for size in replica.example_sizes]
    shapes = replica.gathers.of_all(own.shape, tuple(likely))
    if len({len(shape) for shape in shapes}) > 1:
        raise InvalidArgument(
            "An array that replicas bring to merge_call has as many dims on every replica. "
            f"Received: shapes {list(shapes)}. Reshape it, or add a dim with x[None]."
        )
    wide = stacking.padded(own, np.max(shapes, axis=0))
    return PerReplica.stacked(gathered(wide, len(shapes)), shapes)


def _own(merged: Any, replica: Any) -> Any:
    """The part of this replica of what code across replicas made."""

    def part(leaf: Any) -> Any:
        if not is_per_replica(leaf):
            return leaf
        index = meeting.replica_id()  # also where it is not needed: all traces meet as often
        first, *others = replica.gathers.replicas
        values = leaf.values
        if all(values[i] is values[first] for i in others):
            return values[first]
        arrays = [jnp.asarray(value) for value in values]
        shapes = [array.shape for array in arrays]
        if any(shapes[i] != shapes[first] for i in others):
            raise InvalidArgument(
                "Replicas with as many examples get parts of one shape back from merge_call. "
                f"Received: parts of shapes {shapes}. Make the function given to merge_call "
                "return values that follow the replicas' batches."
            )
        alike = [a if a.shape == shapes[first] else jnp.zeros_like(arrays[first]) for a in arrays]
        return jnp.stack(alike)[index]

    return nest.closed(jax.tree.map(part, nest.opened(merged), is_leaf=is_per_replica))
