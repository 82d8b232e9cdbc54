"""Where a variable's copies live, and how what it holds relates to its one logical value.

A *mirrored* variable holds one array, replicated over the mesh. A *per-replica* variable (ON_READ)
holds `[replica, ...]`, sharded over the mesh. With one replica both hold the value itself.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import jax.numpy as jnp

from paceline.errors import InvalidArgument
from paceline.program.scope import combine, is_traced
from paceline.types import PerReplica, VariableAggregation


class Kind(enum.Enum):
    """The storage kinds."""

    SINGLE = "single"
    MIRRORED = "mirrored"
    PER_REPLICA = "per-replica"


@dataclasses.dataclass(frozen=True)
class Placement:
    """A storage kind on a strategy.

    Attributes:
        kind: the storage kind.
        home: the strategy that owns the variable, or None for a variable of no strategy.
    """

    kind: Kind = Kind.SINGLE
    home: Any = None

    @property
    def num_replicas(self) -> int:
        """How many components the variable has."""
        return 1 if self.home is None else self.home.num_components

    @property
    def is_stacked(self) -> bool:
        """Whether the storage has a leading replica axis."""
        return self.kind is Kind.PER_REPLICA and self.num_replicas > 1

    def place(self, value: Any) -> Any:
        """Puts a logical or stacked storage value where the storage lives."""
        if self.home is None:
            return jnp.array(value)
        return self.home.place_stacked(value) if self.is_stacked else self.home.store(value)

    def note_access(self) -> None:
        """Called with the lock of `handover` held, before somebody reads or writes the storage."""
        if self.home is not None:
            self.home.note_access()

    def with_component(self, storage: Any, index: int, value: Any) -> Any:
        """A stacked storage whose component `index` is `value`."""
        if is_traced(storage) or is_traced(value):
            return storage.at[index].set(value)
        parts = list(PerReplica.stacked(storage).values)
        parts[index] = value
        return self.home.join_stacked(parts)


def component(storage: Any, index: int) -> Any:
    """One replica's component of a stacked storage, on the replica's device."""
    return storage[index] if is_traced(storage) else PerReplica.stacked(storage).values[index]


def logical(storage: Any, aggregation: VariableAggregation, name: str) -> Any:
    """The one value of a stacked storage `[replica, ...]`.

    Raises:
        InvalidArgument: the aggregation is NONE, so there is no one value.
    """
    if aggregation is VariableAggregation.SUM:
        return jnp.sum(storage, axis=0, dtype=storage.dtype)
    if aggregation is VariableAggregation.MEAN:
        return jnp.mean(storage, axis=0, dtype=storage.dtype)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return storage[0]
    raise InvalidArgument(
        "An ON_READ variable without an aggregation has one value per replica and no value across "
        f"replicas. Received: a read of {name!r} in cross-replica context with "
        "aggregation=NONE. Read it inside strategy.run, write it here with assign(value, "
        "read_value=False), or create it with aggregation=SUM, MEAN or ONLY_FIRST_REPLICA."
    )


def spread(value: Any, aggregation: VariableAggregation, num_replicas: int) -> Any:
    """The stacked storage whose logical value is `value`, the components as equal as can be.

    SUM divides by the number of replicas; an integer's remainder goes to the first replica, so
    that nothing is lost (tf.distribute loses it).
    """
    if aggregation is not VariableAggregation.SUM:
        return jnp.broadcast_to(value, (num_replicas, *value.shape))
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return jnp.broadcast_to(value / num_replicas, (num_replicas, *value.shape))
    part = value // num_replicas
    rest = jnp.broadcast_to(part, (num_replicas - 1, *value.shape))
    first = (value - part * (num_replicas - 1))[None]
    return jnp.concatenate([first, rest]).astype(value.dtype)


def write_across(
    storage: Any, operation: str, value: Any, aggregation: VariableAggregation, name: str
) -> Any:
    """The stacked storage after a write in cross-replica context.

    Raises:
        InvalidArgument: `assign_add` or `assign_sub` under SUM, which could mean two things.
    """
    num_replicas = storage.shape[0]
    value = jnp.asarray(value, dtype=storage.dtype)
    if operation == "assign":
        return spread(value, aggregation, num_replicas)
    if aggregation is VariableAggregation.SUM:
        raise InvalidArgument(
            f"assign_{operation} on an ON_READ variable with aggregation=SUM is ambiguous in "
            "cross-replica context: add to the sum, or to each of the copies? Received: "
            f"assign_{operation} on {name!r}. Use assign(new_total), or call assign_{operation} "
            "inside strategy.run, where it acts on the replica's own copy."
        )
    return combine(operation, storage, jnp.broadcast_to(value, storage.shape))
