"""Sparse writes: `scatter_add` and its siblings, which touch some rows of a variable."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.errors import InvalidArgument, InvalidType, Unsupported
from paceline.program import context, meeting
from paceline.program.handover import handover
from paceline.program.keras_state import active_scope
from paceline.program.scope import TraceScope, beside, is_traced
from paceline.types import VariableAggregation
from paceline.variables.placement import Kind

if TYPE_CHECKING:
    from collections.abc import Callable


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["values", "indices"],
    meta_fields=["dense_shape"],
)
@dataclasses.dataclass(frozen=True)
class IndexedSlices:
    """Some rows of an array (tf.IndexedSlices): `values[i]` belongs to row `indices[i]`.

    Args:
        values: array `[slice, ...]`.
        indices: integers `[slice]`; a row may occur several times.
        dense_shape: shape of the whole array, a tuple, where known.
    """

    values: Any
    indices: Any
    dense_shape: Any = None


def gradient_of_slices(variable: Any, slices: IndexedSlices) -> Any:
    """The gradient of a variable as an array, where it is given as slices.

    Raises:
        InvalidArgument: slices or indices that do not fit the variable.
    """
    indices, values = checked_slices(variable, "add", slices)
    zeros = jnp.zeros(tuple(variable.shape), values.dtype)
    return zeros.at[indices].add(values, mode="drop", wrap_negative_indices=False)


def refuse_slices(value: Any) -> None:
    """Raises where sparse rows have no meaning."""
    if isinstance(value, IndexedSlices):
        raise Unsupported(
            "IndexedSlices cannot be gathered. Received: IndexedSlices with dense_shape="
            f"{value.dense_shape}. Gather values and indices by themselves, or all_reduce or "
            "reduce the slices."
        )


def _divided(old: Any, indices: Any, values: Any) -> Any:
    divisor = jnp.ones_like(old).at[indices].multiply(values)
    return jax.lax.div(old, divisor)  # truncates integers, as TensorFlow does


_OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda old, indices, values: old.at[indices].add(values),
    "sub": lambda old, indices, values: old.at[indices].subtract(values),
    "mul": lambda old, indices, values: old.at[indices].multiply(values),
    "div": _divided,
    "min": lambda old, indices, values: old.at[indices].min(values),
    "max": lambda old, indices, values: old.at[indices].max(values),
    "update": lambda old, indices, values: old.at[indices].set(values),
}
# Operations in which the slices of several replicas can be taken one after the other.
_COMBINABLE = ("add", "sub", "mul", "div")


class Scattering:
    """The scatter methods of a variable (tf.Variable's).

    Inside `run` the slices of the replicas are combined by the variable's aggregation: SUM and MEAN
    take all of them (MEAN divides the values by the number of replicas) and allow add, sub, mul
    and div; ONLY_FIRST_REPLICA takes the first replica's and allows every operation.

    Raises:
        InvalidArgument: shapes or indices that do not fit, or aggregation NONE inside `run`.
        InvalidType: not `IndexedSlices`.
        Unsupported: an ON_READ variable; scatter_min, scatter_max and scatter_update under SUM or
            MEAN.
    """

    # Keras variables become ours by a change of class, which wants one and the same layout.
    __slots__ = ()

    def _scatter(self, operation: str, slices: Any) -> Any:
        return scatter(self, operation, slices)

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Adds the slices to their rows."""
        return self._scatter("add", sparse_delta)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Subtracts the slices from their rows."""
        return self._scatter("sub", sparse_delta)

    def scatter_mul(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Multiplies the rows by their slices."""
        return self._scatter("mul", sparse_delta)

    def scatter_div(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Divides the rows by their slices; integers are truncated."""
        return self._scatter("div", sparse_delta)

    def scatter_min(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Takes the smaller of rows and slices."""
        return self._scatter("min", sparse_delta)

    def scatter_max(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Takes the larger of rows and slices."""
        return self._scatter("max", sparse_delta)

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Replaces the rows by their slices."""
        return self._scatter("update", sparse_delta)


def scatter(variable: Any, operation: str, slices: Any) -> Any:
    """Carries out one scatter operation and returns the new value; see `Scattering`."""
    return write_slices(variable, operation, *checked_slices(variable, operation, slices))


def write_slices(variable: Any, operation: str, indices: Any, values: Any) -> Any:
    """Writes rows `[slice, ...]` at indices `[slice]`; those past the last row are left out."""
    if active_scope() is None:
        with handover:  # nobody else writes between the read and the write
            return _write_slices(variable, operation, indices, values)
    return _write_slices(variable, operation, indices, values)


def _write_slices(variable: Any, operation: str, indices: Any, values: Any) -> Any:
    old = _current(variable)  # a variable made elsewhere joins the strategy here
    _check_allowed(variable, operation)
    replica = context.replica_context()
    if replica is not None and replica.num_replicas_in_sync > 1 and not context.is_applying():
        indices, values = _combined(variable, operation, indices, values, replica)
    new = _OPERATIONS[operation](old, beside(indices, old), beside(values, old))
    with context.applying():
        return variable.assign(new)


def _current(variable: Any) -> Any:
    """What the variable holds here, before any cast that a dtype policy puts on reads."""
    scope = active_scope()
    if isinstance(scope, TraceScope):
        return scope.storage(variable)
    if scope is not None:
        return variable.value
    variable._check_strategy("read")
    return variable._value


def checked_slices(variable: Any, operation: str, slices: Any) -> tuple[Any, Any]:
    """The indices `[slice]` and the rows `[slice, ...]` of slices that fit the variable."""
    if not isinstance(slices, IndexedSlices):
        raise InvalidType(
            f"scatter_{operation} takes IndexedSlices. Received: {type(slices).__name__} for "
            f"{variable.path!r}. Write paceline.IndexedSlices(values, indices)."
        )
    shape = tuple(variable.shape)
    indices = jnp.asarray(slices.indices)
    values = jnp.asarray(slices.values, variable.storage_dtype)
    if not shape or not jnp.issubdtype(indices.dtype, jnp.integer):
        raise InvalidArgument(
            "Slices are rows of a variable of at least one dim, by integer indices. Received: "
            f"indices of dtype {indices.dtype} for {variable.path!r} of shape {shape}."
        )
    if values.shape not in ((), indices.shape + shape[1:]):
        raise InvalidArgument(
            "Every index needs one slice of the variable's row shape. Received: values of shape "
            f"{values.shape} and indices of shape {indices.shape} for {variable.path!r} of shape "
            f"{shape}. Pass values of shape {indices.shape + shape[1:]}."
        )
    if not is_traced(slices.indices):
        known = np.asarray(slices.indices)
        if np.any((known < 0) | (known >= shape[0])):
            raise InvalidArgument(
                "Indices lie between 0 and the number of rows. Received: indices="
                f"{known.tolist()} for {variable.path!r} with {shape[0]} rows."
            )
    rows = jnp.broadcast_to(values, indices.shape + shape[1:])
    return indices.reshape(-1), rows.reshape(-1, *shape[1:])


def _check_allowed(variable: Any, operation: str) -> None:
    placement = variable.placement
    if placement.num_replicas == 1:
        return
    if placement.kind is Kind.PER_REPLICA:
        raise Unsupported(
            "An ON_READ variable takes no scatter operations: its copies are combined when it is "
            f"read. Received: scatter_{operation} on {variable.path!r}. Assign the whole value, or "
            "use an ON_WRITE variable."
        )
    aggregation = variable.effective_aggregation
    is_combining = aggregation in (VariableAggregation.SUM, VariableAggregation.MEAN)
    if is_combining and operation not in _COMBINABLE:
        raise Unsupported(
            f"scatter_{operation} cannot be combined over replicas with SUM or MEAN. Received: "
            f"{variable.path!r} with aggregation={aggregation.name}. Create it with "
            "aggregation=ONLY_FIRST_REPLICA, or use scatter_add, scatter_sub, scatter_mul or "
            "scatter_div."
        )


def _combined(
    variable: Any, operation: str, indices: Any, values: Any, replica: Any
) -> tuple[Any, Any]:
    """The slices of all replicas that count, the same on every replica."""
    aggregation = variable.effective_aggregation
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        if replica.group is not None:
            return replica.group.exchange((indices, values))[0]
        return meeting.commit(indices, aggregation), meeting.commit(values, aggregation)
    if aggregation is VariableAggregation.NONE and (
        operation == "update" or not variable.is_shared
    ):
        raise InvalidArgument(
            "A variable that is mirrored over replicas needs an aggregation before replicas can "
            f"write slices to it. Received: scatter_{operation} on {variable.path!r} with "
            "aggregation=NONE. Create it with aggregation=SUM or MEAN to combine the replicas' "
            "slices, or ONLY_FIRST_REPLICA to take the first replica's."
        )
    if aggregation is VariableAggregation.MEAN:
        values = values / replica.num_replicas_in_sync
    return replica.all_gather(indices, axis=0), replica.all_gather(values, axis=0)
