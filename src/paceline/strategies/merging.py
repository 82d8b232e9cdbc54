"""`merge_call` inside a compiled step.

All replicas run the merge function alike on gathered values: a variable of one value is read and
written as it is, one that holds a component per replica is gathered first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from paceline.program import context, meeting
from paceline.program.context import Frame
from paceline.program.keras_state import active_scope
from paceline.program.scope import TraceScope
from paceline.strategies.running import is_per_replica
from paceline.types import PerReplica

if TYPE_CHECKING:
    from collections.abc import Callable


class _AcrossScope(TraceScope):
    """Reads and writes of code across replicas, in the middle of a replica's trace."""

    def __init__(self, inner: Any, num_replicas: int) -> None:
        super().__init__()
        self._inner = inner
        self._num_replicas = num_replicas
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


def gathered(value: Any, num_replicas: int) -> Any:
    """The stacked values `[replica, ...]` of all replicas, on each of them."""
    return meeting.all_gather(jnp.asarray(value)[None], 0, (1,) * num_replicas)


def merge_in_trace(
    replica: Any, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls `merge_fn` across replicas in the middle of a compiled step."""
    strategy = replica.strategy
    scope = _AcrossScope(
        active_scope(),
        strategy.num_replicas_in_sync,
    )

    def merged(leaf: Any) -> Any:
        is_array = isinstance(leaf, jax.Array)
        stack = gathered(leaf, strategy.num_replicas_in_sync) if is_array else None
        return PerReplica.stacked(stack) if is_array else leaf

    merged_args, merged_kwargs = jax.tree.map(merged, (args, kwargs))
    with context.entered(Frame(strategy)), scope:
        result = merge_fn(strategy, *merged_args, **merged_kwargs)

    def own(leaf: Any) -> Any:
        if not is_per_replica(leaf):
            return leaf
        return jnp.stack(leaf.values)[meeting.replica_id()]

    return jax.tree.map(own, result, is_leaf=is_per_replica)
