"""What a checkpoint stores one array for: a variable, or a number or array in a container."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from paceline.errors import InvalidArgument
from paceline.program.keras_state import initialize_now, outside_of_scopes
from paceline.types import VariableAggregation
from paceline.variables.placement import Kind, logical, spread
from paceline.variables.sharded import ShardedVariable
from paceline.variables.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping, MutableSequence

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
    """A variable: one logical value, however many copies or shards there are.

    Attributes:
        name: what the checkpoint calls it.
        variable: a Keras variable, Paceline's or not, or a sharded one.
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
        if isinstance(variable, ShardedVariable):
            return np.concatenate([VariableLeaf(self.name, own).read() for own in variable])
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
        value = variable._value
        return np.array(logical(value, aggregation, self.name) if placed.is_stacked else value)

    def misfit(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Says why a stored array cannot be written here, or returns None."""
        own = str(jax.dtypes.canonicalize_dtype(self.variable.dtype))
        return _difference(shape, dtype, tuple(self.variable.shape), own)

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Sets the value of every copy, whatever is traced or run at the moment."""
        variable = self.variable
        if isinstance(variable, ShardedVariable):
            for own, part in zip(variable, variable.divided(array), strict=True):
                VariableLeaf(self.name, own).write(part)
            return
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
