"""ShardedVariable: several variables that are used, saved and restored as one.

The shards lie one after the other along the first dim, each where its own home is. Reads take from
every shard what they need; the whole array is only built where an array is asked for.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import keras
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from paceline.errors import InvalidArgument, InvalidType
from paceline.program import context
from paceline.program.scope import is_traced
from paceline.program.tape_arguments import VariableGroup
from paceline.types import PerReplica
from paceline.variables import rows, slots
from paceline.variables.scatter import Scattering, checked_slices, write_slices
from paceline.variables.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class ShardedVariable(VariableGroup, Scattering, NDArrayOperatorsMixin):
    """Variables that are the shards of a larger one, divided along the first dim.

    Strategies with parameter servers make them where a partitioner asks for more than one shard.
    In a computation it stands for the whole array; `embedding_lookup` and indexing with slices read
    only rows. Optimizers get the shards, `variables`, which have slots of their own.

    Args:
        variables: the shards, a list of `paceline.Variable`. They belong to this object alone.
        name: of the whole variable.

    Raises:
        InvalidType: no list of variables, or an empty one.
        InvalidArgument: scalars, or variables whose dtypes or other dims differ.

    Semantics:
        The variables that tf.distribute's ParameterServerStrategy makes under a partitioner.
        Deviations: scatter operations and `sparse_read` take indices of any shape and any division
        into shards, and `sparse_read` keeps the order of the indices; `GradientTape` takes it as a
        source and returns a list with the gradient of each shard.
    """

    def __init__(self, variables: Sequence[Variable], name: str | None = None) -> None:
        self._name = name or "ShardedVariable"
        _check_shards(variables, self._name)
        self.variables = list(variables)
        self._ranges = rows.ranges_of(self.variables)
        slots.mark_shards(self.variables)

    # What it is ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Variable]:
        """Iterates over the shards."""
        return iter(self.variables)

    @property
    def name(self) -> str:
        """The name of the whole variable."""
        return self._name

    @property
    def path(self) -> str:
        """The name that messages call it by."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole variable."""
        return (self._ranges[-1].stop, *self.variables[0].shape[1:])

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """The dtype of every shard."""
        return self.variables[0].dtype

    @property
    def storage_dtype(self) -> Any:
        """The dtype that JAX holds the shards in."""
        return self.variables[0].storage_dtype

    @property
    def trainable(self) -> bool:
        """Whether a tape watches the shards."""
        return self.variables[0].trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for variable in self.variables:
            variable.trainable = value

    @property
    def distribute_strategy(self) -> Any:
        """The strategy that owns the shards, or None."""
        return self.variables[0].distribute_strategy

    # Reads -----------------------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """The whole array, on the devices of the first shard."""
        return rows.joined([variable.value for variable in self.variables])

    def read_value(self) -> Any:
        """Returns the whole array."""
        return self.value

    def numpy(self) -> np.ndarray:
        """The whole array as a NumPy array that nobody else holds."""
        return np.concatenate([np.asarray(variable) for variable in self.variables])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy().astype(dtype or self.storage_dtype, copy=False)

    def __jax_array__(self) -> Any:
        return self.value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # Python's operators come in here, from NumPy's mixin; in JAX they are known to a tape.
        options.pop("out", None)  # `s += x` makes `s` an array, as with every other variable
        operate = getattr(jnp, ufunc.__name__, None)
        if method == "__call__" and operate is not None:
            return operate(*(_whole(value) for value in inputs), **options)
        arrays = [np.asarray(value) if isinstance(value, type(self)) else value for value in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __getitem__(self, index: Any) -> Any:
        """Reads a part of the whole array, from the shards that hold it.

        Args:
            index: integers, slices, `...` and None as in NumPy; or one array of bools.

        Raises:
            IndexError: out of range.
            InvalidType: an array as an index; `embedding_lookup` takes those.
            InvalidArgument: a slice with step 0.
        """
        return rows.take(self.variables, index, self._name)

    def embedding_lookup(self, ids: Any) -> Any:
        """Gathers rows from the shards, without building the whole array.

        Args:
            ids: integers of any shape, also traced ones.

        Returns:
            Array `[*ids.shape, ...]`. Traced ids that are out of range give zeros.

        Raises:
            InvalidArgument: ids that are not integers, or known ones that are out of range.
        """
        return rows.lookup(self.variables, ids, self._name)

    def sparse_read(self, indices: Any, name: Any = None) -> Any:
        """Gathers rows; the same as `embedding_lookup`."""
        return self.embedding_lookup(indices)

    # Writes ----------------------------------------------------------------------------------

    def assign(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> ShardedVariable:
        """Sets every shard to its rows of `value`; see `Variable.assign`.

        Args:
            value: array of the whole variable's shape.
            use_locking, name, read_value: accepted for tf.Variable's signature.

        Returns:
            The sharded variable itself.

        Raises:
            InvalidArgument: a wrong shape, a per-replica value, or a write that the shards'
                aggregation does not allow; nothing was written.
        """
        return self._write("assign", value)

    def assign_add(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> ShardedVariable:
        """Adds to every shard its rows of `value`, or one number; see `assign`."""
        return self._write("assign_add", value)

    def assign_sub(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> ShardedVariable:
        """Subtracts from every shard its rows of `value`, or one number; see `assign`."""
        return self._write("assign_sub", value)

    def _write(self, operation: str, value: Any) -> ShardedVariable:
        parts = self._checked_parts(operation, value)
        for variable, part in zip(self.variables, parts, strict=True):
            getattr(variable, operation)(part, read_value=False)
        return self

    def _checked_parts(self, operation: str, value: Any) -> list[Any]:
        """Every shard's rows of an argument; all are read before any is written."""
        if isinstance(value, PerReplica):
            raise InvalidArgument(
                "A variable cannot be assigned a per-replica value: its copies would differ. "
                f"Received: {value!r} for {self._name!r}. Pass the value to strategy.run through "
                "args and assign inside, or reduce it first with strategy.reduce."
            )
        if isinstance(value, keras.Variable):
            value = value.value
        value = value if hasattr(value, "shape") else np.asarray(value)
        if tuple(value.shape) == () and operation != "assign":
            return [value] * len(self.variables)
        if tuple(value.shape) != self.shape:
            raise InvalidArgument(
                "The value must have the whole variable's shape. Received: shape "
                f"{tuple(value.shape)} for {self._name!r} of shape {self.shape}."
            )
        return self.divided(value)

    def divided(self, array: Any) -> list[Any]:
        """The rows of each shard, of an array of the whole variable's shape."""
        return [array[own.start : own.stop] for own in self._ranges]

    def _scatter(self, operation: str, slices: Any) -> ShardedVariable:
        indices, values = checked_slices(self, operation, slices)
        # Inside `run` the replicas meet at every shard; elsewhere one without slices is left alone.
        may_leave_out = context.replica_context() is None and not is_traced(indices)
        for variable, own in zip(self.variables, self._ranges, strict=True):
            is_here = (indices >= own.start) & (indices < own.stop)
            if may_leave_out and not is_here.any():
                continue
            local = jnp.where(is_here, indices - own.start, len(own))
            write_slices(variable, operation, local, values)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedVariable:
        copied = type(self)([copy.deepcopy(own, memo) for own in self.variables], self._name)
        memo[id(self)] = copied
        return copied

    def __repr__(self) -> str:
        sizes = [len(own) for own in self._ranges]
        return (
            f"<paceline.ShardedVariable name={self._name}, shape={self.shape}, "
            f"dtype={self.dtype}, rows={sizes}>"
        )


def _whole(value: Any) -> Any:
    return value.value if isinstance(value, (ShardedVariable, keras.Variable)) else value


def _check_shards(variables: Any, name: str) -> None:
    is_list = isinstance(variables, (list, tuple))
    if not is_list or not variables or not all(isinstance(v, Variable) for v in variables):
        raise InvalidType(
            "The shards of a variable are a list of at least one paceline.Variable. Received: "
            f"variables={variables!r} for {name!r}."
        )
    shapes = [tuple(variable.shape) for variable in variables]
    if () in shapes or len({shape[1:] for shape in shapes}) > 1:
        raise InvalidArgument(
            "The shards of a variable differ in the first dim only. Received: shapes "
            f"{shapes} for {name!r}."
        )
    dtypes = [variable.dtype for variable in variables]
    if len(set(dtypes)) > 1:
        raise InvalidArgument(
            f"The shards of a variable have one dtype. Received: dtypes {dtypes} for {name!r}."
        )
