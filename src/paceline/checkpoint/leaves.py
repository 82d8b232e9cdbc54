"""What a checkpoint stores one array for: a variable, or a number or array in a container."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from paceline.errors import InvalidArgument
from paceline.program.handover import handover
from paceline.program.keras_state import initialize_now, outside_of_scopes
from paceline.types import VariableAggregation
from paceline.variables.placement import Kind, logical, spread
from paceline.variables.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence

    from paceline.variables.per_worker import PerWorkerVariable

NUMBERS = (bool, int, float, complex)
"""Python's numbers; which of them one is may change between a save and a restore."""
_NUMBER_DTYPES = {"bool", "int64", "float64", "complex128"}


class Leaf(Protocol):
    """One stored array of a checkpoint, where it is read from and written to."""

    def read(self) -> np.ndarray[Any, Any]:
        """Returns a copy of the logical value."""
        ...

    def misfit(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Says why a stored array cannot be written here, or returns None."""
        ...

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Sets the logical value."""
        ...


@dataclasses.dataclass(frozen=True)
class VariableLeaf:
    """A variable: one logical value, however many copies there are.

    Attributes:
        name: what the checkpoint calls it.
        variable: a Keras variable, Paceline's or not.
        owner: the Keras object that holds it, or None.
    """

    name: str
    variable: Any
    owner: Any = None

    def read(self) -> np.ndarray[Any, Any]:
        """Returns a copy of the logical value.

        Raises:
            InvalidArgument: an ON_READ variable without an aggregation, which has no one value.
        """
        variable = self.variable
        if not isinstance(variable, Variable):
            return np.array(variable._value)
        aggregation, placed = variable.effective_aggregation, variable.placement
        if placed.kind is Kind.PER_REPLICA and aggregation is VariableAggregation.NONE:
            raise InvalidArgument(
                "A checkpoint holds one value per variable, and an ON_READ variable without an "
                f"aggregation has none across replicas. Received: {variable.path!r} with "
                f"aggregation=NONE, in the checkpoint as {self.name!r}. Create it with "
                "aggregation=SUM, MEAN or ONLY_FIRST_REPLICA, or leave it out."
            )
        with handover:
            placed.note_access()
            value = variable._value
        return np.array(logical(value, aggregation, self.name) if placed.is_stacked else value)

    def misfit(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Says why a stored array cannot be written here, or returns None."""
        own = str(jax.dtypes.canonicalize_dtype(self.variable.dtype))
        return _difference(shape, dtype, tuple(self.variable.shape), own)

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Sets the value of every copy, whatever is traced or run at the moment."""
        variable = self.variable
        with concretely():
            if variable._value is None:
                initialize_now(variable)
            value = jnp.array(array)
            if not isinstance(variable, Variable):
                variable._direct_assign(value)
                return
            placement = variable.placement
            if placement.is_stacked:
                value = spread(value, variable.effective_aggregation, placement.num_replicas)
            variable._set_storage(value)


@dataclasses.dataclass(frozen=True)
class ShardsLeaf:
    """Variables for the shards of one table, saved as one array.

    Attributes:
        name: what the checkpoint calls them.
        variables: one per shard: the shards themselves, or what an optimizer has for each.
        owner: the Keras object that holds them, or None.
        are_rows: whether they are saved one after the other, as what the whole table has.
            Otherwise they are saved as `[shard, ...]`, and do not fit another number of shards.
    """

    name: str
    variables: tuple[Any, ...]
    owner: Any = None
    are_rows: bool = True

    @property
    def _leaves(self) -> list[VariableLeaf]:
        return [VariableLeaf(self.name, variable) for variable in self.variables]

    def read(self) -> np.ndarray[Any, Any]:
        """Returns a copy of all values; raises like `VariableLeaf.read`."""
        arrays = [leaf.read() for leaf in self._leaves]
        return np.concatenate(arrays) if self.are_rows else np.stack(arrays)

    def misfit(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Says why a stored array cannot be written here, or returns None."""
        first = self.variables[0]
        own = str(jax.dtypes.canonicalize_dtype(first.dtype))
        if self.are_rows:
            num_rows = sum(variable.shape[0] for variable in self.variables)
            return _difference(shape, dtype, (num_rows, *first.shape[1:]), own)
        reason = _difference(shape, dtype, (len(self.variables), *first.shape), own)
        return reason and f"{reason} (one per shard of a table, and no rows of it)"

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Sets every variable to its part of the array."""
        parts: Iterable[np.ndarray[Any, Any]] = array
        if self.are_rows:
            ends = np.cumsum([variable.shape[0] for variable in self.variables])
            parts = np.split(array, ends[:-1])
        for leaf, part in zip(self._leaves, parts, strict=True):
            leaf.write(part)


@dataclasses.dataclass(frozen=True)
class CopiesLeaf:
    """A variable with a copy per worker, all of which are saved as `[worker, ...]`.

    Attributes:
        name: what the checkpoint calls it.
        variable: the per-worker variable.
        owner: the Keras object that holds it, or None.
    """

    name: str
    variable: PerWorkerVariable
    owner: Any = None

    @property
    def _copies(self) -> VariableLeaf:
        return VariableLeaf(self.name, self.variable.copies)

    def read(self) -> np.ndarray[Any, Any]:
        """Returns all copies, in the order of the workers."""
        return self._copies.read()

    def misfit(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Says why a stored array cannot be written here, or returns None."""
        num_workers = self.variable.num_workers
        if shape[1:] == self.variable.shape and shape and shape[0] != num_workers:
            return (
                f"the copies of {shape[0]} workers in the checkpoint, of {num_workers} here; what "
                "workers that there are not have counted belongs to no other"
            )
        return self._copies.misfit(shape, dtype)

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Sets the copy of every worker."""
        self._copies.write(array)


@dataclasses.dataclass(frozen=True)
class ValueLeaf:
    """A number or array, which is replaced in the container that holds it.

    Attributes:
        holder: the dict or list.
        key: its key or index there.
    """

    holder: MutableMapping[Any, Any] | MutableSequence[Any]
    key: Any

    @property
    def _value(self) -> Any:
        return self.holder[self.key]

    def read(self) -> np.ndarray[Any, Any]:
        """Returns a copy of the value as an array."""
        return np.array(self._value)

    def misfit(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Says why a stored array cannot be written here, or returns None."""
        value = self._value
        if isinstance(value, NUMBERS) and not isinstance(value, np.generic):
            is_number = shape == () and dtype in _NUMBER_DTYPES
            return None if is_number else f"{dtype}{list(shape)} in the checkpoint, a number here"
        return _difference(shape, dtype, np.shape(value), str(value.dtype))

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Replaces the value by one of the same type."""
        value = self._value
        if isinstance(value, np.generic):
            new = array[()]
        elif isinstance(value, NUMBERS):
            new = array.item()
        elif isinstance(value, jax.Array):
            with concretely():
                new = jax.device_put(jnp.array(array), value.sharding)
        else:
            new = array.copy()
        self.holder[self.key] = new


@contextlib.contextmanager
def concretely() -> Iterator[None]:
    """Suspends what is traced, so that values are arrays and writes take effect at once."""
    with outside_of_scopes(), jax.ensure_compile_time_eval():
        yield


def is_value(value: Any) -> bool:
    """Whether a checkpoint can hold `value` itself: a number or an array of numbers."""
    if isinstance(value, jax.Array):
        return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    if isinstance(value, np.ndarray | np.generic):
        # Of kind V are the small floats that JAX adds to NumPy, and structured arrays.
        return value.dtype.kind in "biufc" or (value.dtype.kind == "V" and not value.dtype.names)
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**63
    return isinstance(value, NUMBERS)


def _difference(
    shape: tuple[int, ...], dtype: str, own_shape: tuple[int, ...], own_dtype: str
) -> str | None:
    if shape == own_shape and dtype == own_dtype:
        return None
    stored, own = f"{dtype}{list(shape)}", f"{own_dtype}{list(own_shape)}"
    return f"{stored} in the checkpoint, {own} here"
