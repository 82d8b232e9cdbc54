"""Value objects that every layer shares: enums, per-replica values, input contexts.

Names and members follow `tf.distribute`; `PerReplica` says in words what TensorFlow's raises.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import jax
from jax.core import Tracer

from paceline.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

Shape = tuple[int, ...]
E = TypeVar("E", bound=enum.Enum)


class ReduceOp(enum.Enum):
    """How values of several replicas become one (tf.distribute.ReduceOp)."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def parse(cls, value: ReduceOp | str) -> ReduceOp:
        """Returns the member for an enum member or a string in any case.

        Raises:
            InvalidArgument: an unknown string.
            InvalidType: neither a `ReduceOp` nor a string.
        """
        return _parse(cls, value, "reduce_op")


class VariableAggregation(enum.Enum):
    """How writes of several replicas to one variable combine (tf.VariableAggregation)."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class VariableSynchronization(enum.Enum):
    """When the copies of a variable are brought together (tf.VariableSynchronization)."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


def parse_aggregation(value: Any, name: str) -> VariableAggregation:
    """Returns the aggregation for an enum member, a string or None (NONE).

    Raises:
        InvalidArgument: an unknown value; the message names it and the variable.
    """
    return _parse_declaration(VariableAggregation, value, VariableAggregation.NONE, name)


def parse_synchronization(value: Any, name: str) -> VariableSynchronization:
    """Returns the synchronization for an enum member, a string or None (AUTO).

    Raises:
        InvalidArgument: an unknown value; the message names it and the variable.
    """
    return _parse_declaration(VariableSynchronization, value, VariableSynchronization.AUTO, name)


def _parse_declaration(kind: type[E], value: Any, default: E, name: str) -> E:
    if value is None:
        return default
    try:
        return _parse(kind, value, kind.__name__)
    except (InvalidArgument, InvalidType) as error:
        raise InvalidArgument(f"Variable {name!r}: {error}") from error


def _parse(kind: type[E], value: Any, argument: str) -> E:
    if isinstance(value, kind):
        return value
    allowed = ", ".join(member.name for member in kind)
    if isinstance(value, str):
        try:
            return kind[value.upper()]
        except KeyError:
            raise InvalidArgument(
                f"`{argument}` must be one of {allowed}. Received: {value!r}."
            ) from None
    # A member of another library's enum of the same name (tf.VariableAggregation) means the same.
    if type(value).__name__.startswith(kind.__name__) and hasattr(value, "name"):
        return _parse(kind, value.name, argument)
    raise InvalidType(
        f"`{argument}` must be a {kind.__name__} ({allowed}) or its name. "
        f"Received: {value!r} of type {type(value).__name__}."
    )


class DistributedValues:
    """One value per replica (tf.distribute.DistributedValues). Users never make them."""

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, one per replica, in replica order."""
        raise NotImplementedError


@jax.tree_util.register_pytree_node_class
class PerReplica(DistributedValues):
    """One value per replica, free to differ (tf.types.experimental.distributed.PerReplica).

    Held either as a tuple of per-replica values or as one array with a leading replica axis,
    `[replica, ...]`, sharded over the strategy's mesh and padded to the largest replica; `shapes`
    then holds the true shape of each replica's part, or is None where all are equal.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values: tuple[Any, ...] | None = tuple(values)
        self._array: Any = None
        self._shapes: tuple[Shape, ...] | None = None

    @classmethod
    def stacked(cls, array: Any, shapes: tuple[Shape, ...] | None = None) -> PerReplica:
        """Wraps an array with a leading replica axis."""
        self = cls.__new__(cls)
        self._values, self._array = None, array
        self._shapes = shapes if shapes and len(set(shapes)) > 1 else None
        return self

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, one per replica, in replica order; arrays lie on their replica's device."""
        if self._values is None:
            parts = _parts(self._array)
            if self._shapes is not None:
                parts = [p[tuple(map(slice, s))] for p, s in zip(parts, self._shapes, strict=True)]
            if isinstance(self._array, Tracer):
                return tuple(parts)
            self._values = tuple(parts)
        return self._values

    @property
    def array(self) -> Any:
        """The stacked array `[replica, ...]` where the value is held so, else None."""
        return self._array

    @property
    def shapes(self) -> tuple[Shape, ...] | None:
        """True shapes of the parts of `array` where they differ."""
        return self._shapes

    @property
    def num_replicas(self) -> int:
        """How many replicas the value has a part for."""
        return len(self._values) if self._values is not None else self._array.shape[0]

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Children and static data for `jax.tree`."""
        if self._array is not None:
            return (self._array,), (True, self._shapes)
        return self._values or (), (False, None)

    @classmethod
    def tree_unflatten(cls, static: Any, children: Sequence[Any]) -> PerReplica:
        """The inverse of `tree_flatten`."""
        is_stacked, shapes = static
        return cls.stacked(children[0], shapes) if is_stacked else cls(children)

    def __repr__(self) -> str:
        parts = ",\n".join(f"  {i}: {value!r}" for i, value in enumerate(self.values))
        return f"{type(self).__name__}:{{\n{parts}\n}}"

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidType(
            f"A per-replica value cannot be {what}: it holds {self.num_replicas} values, one per "
            f"replica. Received: {self!r}. Use strategy.experimental_local_results(value) for the "
            "tuple of values, strategy.reduce(...) or strategy.gather(value, axis) for one value, "
            "or pass it to strategy.run(fn, args=(value,)) and compute inside fn."
        )

    def _no_arithmetic(self, *_: Any) -> NoReturn:
        self._refuse("used in arithmetic")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_arithmetic
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __rpow__ = _no_arithmetic
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = _no_arithmetic
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _no_arithmetic
    __neg__ = __pos__ = __abs__ = __invert__ = __round__ = _no_arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = _no_arithmetic

    def __getitem__(self, key: Any) -> NoReturn:
        self._refuse(f"indexed with [{key!r}]; `.values[i]` is replica i's value")

    def __iter__(self) -> Iterator[Any]:
        self._refuse("iterated over")

    def __len__(self) -> int:
        self._refuse("asked for its length")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        self._refuse("converted to one array")

    __array_ufunc__ = None  # NumPy leaves arithmetic with this value to the methods above

    def __jax_array__(self) -> NoReturn:
        self._refuse("converted to one array")

    def __float__(self) -> float:
        self._refuse("converted to one number")

    __int__ = __index__ = __float__  # pyright: ignore[reportAssignmentType]

    def __bool__(self) -> bool:
        self._refuse("used as a condition")


@jax.tree_util.register_pytree_node_class
class Mirrored(PerReplica):
    """One value per replica, all equal (tf.types.experimental.distributed.Mirrored)."""


def _parts(array: Any) -> list[Any]:
    """Cuts `[replica, ...]` into per-replica arrays, each on its own device where it has one."""
    if isinstance(array, jax.Array) and not isinstance(array, Tracer):
        shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        if len(shards) == array.shape[0] and shards[0].data.shape[0] == 1:
            return [shard.data[0] for shard in shards]
    return [array[i] for i in range(array.shape[0])]


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What a dataset function learns about its place (tf.distribute.InputContext).

    Args:
        num_input_pipelines: how many pipelines feed the job.
        input_pipeline_id: index of this one.
        num_replicas_in_sync: replicas over all pipelines.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns `global_batch_size` divided by the number of replicas.

        Raises:
            InvalidArgument: it does not divide evenly.
        """
        size, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest:
            raise InvalidArgument(
                "The global batch size must be divisible by the number of replicas. Received: "
                f"global_batch_size={global_batch_size}, num_replicas_in_sync="
                f"{self.num_replicas_in_sync}. Pass a multiple, or let "
                "experimental_distribute_dataset split uneven batches for you."
            )
        return size


@dataclasses.dataclass(frozen=True)
class ValueContext:
    """What a value function learns about its replica (tf.distribute.experimental.ValueContext)."""

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1
