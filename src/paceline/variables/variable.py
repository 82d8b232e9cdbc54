"""The one variable class: a Keras variable whose aggregation and synchronization take effect.

Both are data: `placement` says where the copies live, `rules` what a write means. Variables that
Keras makes under a strategy become instances of this class in place (`adoption`).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.errors import ContextError, InvalidArgument, TraceError
from paceline.program import context
from paceline.program.handover import handover
from paceline.program.keras_state import active_scope, outside_of_scopes
from paceline.program.scope import TraceScope, combine, is_traced
from paceline.program.split_scope import active_split
from paceline.program.tape import notify_read
from paceline.types import (
    PerReplica,
    VariableAggregation,
    VariableSynchronization,
    parse_aggregation,
    parse_synchronization,
)
from paceline.variables import placement, rules
from paceline.variables.placement import Kind, Placement
from paceline.variables.plain_models import follow_where_trained
from paceline.variables.scatter import Scattering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KERAS_NAMES = {
    VariableAggregation.NONE: "none",
    VariableAggregation.SUM: "sum",
    VariableAggregation.MEAN: "mean",
    VariableAggregation.ONLY_FIRST_REPLICA: "only_first_replica",
}


class _VariableType(type(keras.Variable)):
    """A variable is made as the current strategy wants it, which may divide it over servers.

    Replicas that run the same constructor call get one variable: the first replica makes it.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        make = super().__call__
        replica, frame = context.replica_context(), context.current()
        if replica is None or replica.group is None:
            if frame is None:
                return make(*args, **kwargs)
            return frame.strategy.make_variable(make, *args, **kwargs)
        return replica.group.created_once(kwargs.get("name"), lambda: make(*args, **kwargs))


# Keras first: its variables become ours by a change of class, which wants the same first base.
class Variable(keras.Variable, Scattering, metaclass=_VariableType):
    """A variable with tf.Variable's arguments, on one device or on every replica of a strategy.

    Args:
        initial_value: array-like, or a callable without arguments that returns one. Evaluated
            once; every replica gets the same value.
        trainable: whether a tape watches it. None means True, but False with ON_READ.
        dtype: dtype; default that of the initial value.
        name: a name without "/".
        constraint: a function of the value, applied by optimizers after an update.
        synchronization: ON_WRITE (= AUTO) keeps all copies equal; ON_READ lets every replica
            write its own copy and combines them when the variable is read across replicas.
        aggregation: how writes inside `strategy.run` (ON_WRITE) or the copies (ON_READ) combine.
        shape: checked against the initial value's shape.
        per_worker_variable: in the scope of a `ParameterServerStrategy`, make a
            `PerWorkerVariable`.
        validate_shape, caching_device, variable_def, import_scope: accepted and ignored.

    Raises:
        InvalidArgument: an unknown aggregation or synchronization; synchronization NONE or a MEAN
            of integers under a strategy with replicas; a shape that does not match.

    Semantics:
        tf.Variable under tf.distribute. Deviations: `value` is Keras's property, `read_value()`
        tf's method; arrays assigned inside `run` under aggregation NONE raise (TensorFlow lets the
        copies diverge); `assign_add` under SUM adds the deltas also for variables Keras made;
        integers under ON_READ SUM keep their remainder.
    """

    # NumPy leaves `array @ variable` to the variable: its own result would be unknown to a tape.
    __array_priority__ = 100

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        import_scope: Any = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: Any = VariableSynchronization.AUTO,
        aggregation: Any = VariableAggregation.NONE,
        shape: Any = None,
        per_worker_variable: bool = False,
    ) -> None:
        shown = name or "Variable"
        if per_worker_variable:
            raise InvalidArgument(
                "Only a ParameterServerStrategy has variables with a copy per worker. Received: "
                f"per_worker_variable=True for {shown!r} outside of the scope of one."
            )
        aggregation = parse_aggregation(aggregation, shown)
        synchronization = parse_synchronization(synchronization, shown)
        is_on_read = synchronization is VariableSynchronization.ON_READ
        if initial_value is None:
            raise InvalidArgument(
                "A variable needs an initial value. Received: initial_value=None for "
                f"{shown!r}. Pass an array, a number or a callable that returns one."
            )
        with outside_of_traces():
            value = initial_array(initial_value, dtype, shape, shown)
            super().__init__(
                value,
                dtype=dtype or str(value.dtype),
                trainable=(not is_on_read) if trainable is None else trainable,
                name=name,
                aggregation=_KERAS_NAMES[aggregation],
                synchronization=synchronization.name.lower(),
            )
        self._is_declared = True
        if constraint is not None:
            self.constraint = constraint

    # What the variable is ------------------------------------------------------------------

    @property
    def placement(self) -> Placement:
        """Where the copies live."""
        return self.__dict__.get("_placement") or Placement()

    @property
    def aggregation(self) -> VariableAggregation:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The declared aggregation."""
        return parse_aggregation(self._aggregation, self._path)

    @property
    def synchronization(self) -> VariableSynchronization:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The declared synchronization; under a strategy AUTO is reported as ON_WRITE."""
        declared = parse_synchronization(self._synchronization, self._path)
        is_auto = declared is VariableSynchronization.AUTO
        if is_auto and self.placement.kind is not Kind.SINGLE:
            return VariableSynchronization.ON_WRITE
        return declared

    @property
    def effective_aggregation(self) -> VariableAggregation:
        """The aggregation that writes follow: the declared one, or the safe one of Keras state."""
        return self.__dict__.get("_assumed_aggregation") or self.aggregation

    @property
    def is_aggregation_assumed(self) -> bool:
        """Whether a user still has to be told which aggregation was chosen for this variable."""
        return self.__dict__.get("_is_aggregation_assumed", False)

    @is_aggregation_assumed.setter
    def is_aggregation_assumed(self, value: bool) -> None:
        self._is_aggregation_assumed = value

    @property
    def is_on_read(self) -> bool:
        """Whether every replica writes its own copy."""
        return self.placement.kind is Kind.PER_REPLICA

    @property
    def is_seed_state(self) -> bool:
        """Whether this is the state of a Keras seed generator."""
        return self.__dict__.get("_is_seed_state", False)

    @property
    def is_optimizer_state(self) -> bool:
        """Whether a Keras optimizer made it, which writes it after `commit` only."""
        return self.__dict__.get("_is_optimizer_state", False)

    @property
    def is_declared(self) -> bool:
        """Whether a user made it as a `paceline.Variable`, rather than Keras for a layer."""
        return self.__dict__.get("_is_declared", False)

    @property
    def is_shared(self) -> bool:
        """Whether the variable was made outside every scope: one variable that replicas share."""
        return self.__dict__.get("_is_shared", False)

    @property
    def distribute_strategy(self) -> Any:
        """The strategy that owns the variable, or None."""
        return self.placement.home

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """The shape of what the variable holds."""
        if self.placement.is_stacked:
            return (self.placement.num_replicas, *self._shape)
        return tuple(self._shape)

    @property
    def storage_dtype(self) -> Any:
        """The dtype that JAX holds the value in (int64 is int32 unless x64 is enabled)."""
        return jax.dtypes.canonicalize_dtype(self._dtype)

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, one per replica: `[...]` each, on the replica's device."""
        storage = self._shown_storage()
        if self.placement.is_stacked:
            return PerReplica.stacked(storage).values
        if self.placement.num_replicas == 1:
            return (storage,)
        return tuple(shard.data for shard in storage.addressable_shards)

    def component(self, index: int) -> Any:
        """The component of one replica, on its device."""
        parts = self.values
        if len(parts) == 1 and self.placement.num_replicas > 1:
            return jax.device_put(parts[0], self.placement.home.devices[index])
        return parts[index]

    # Reads -----------------------------------------------------------------------------------

    def logical_value(self, storage: Any) -> Any:
        """The one value across replicas of what the variable holds, or one component's."""
        if not self.placement.is_stacked:
            return storage
        if (index := context.own_component()) is not None:
            return placement.component(storage, index)
        return placement.logical(storage, self.effective_aggregation, self._path)

    @property
    def value(self) -> Any:
        """The value: across replicas the logical one, inside `run` the replica's own."""
        if (scope := active_scope()) is None:
            return self._read()
        self._check_strategy("read")
        if self.placement.home is not None:
            follow_where_trained(self.placement.home)
        if (value := self._value_in(scope)) is not None:
            return self._maybe_autocast(value)
        if self._value is None:
            return super().value
        return self._maybe_autocast(self.logical_value(self._value))

    def _read(self) -> Any:
        with handover:  # that the code may read, and what it reads, are one
            self._check_strategy("read")
            if self._value is None:
                return super().value
            value = self.logical_value(self._shown_storage())
        notify_read(self, value)
        return self._maybe_autocast(value)

    def _value_in(self, scope: Any) -> Any:
        """The value in the innermost scope that knows it: Keras opens scopes inside a trace."""
        while scope is not None:
            value = scope.get_current_value(self)
            if value is not None:
                return value
            scope = getattr(scope, "original_scope", None)
        return None

    def numpy(self) -> np.ndarray:
        """The value as a NumPy array that nobody else holds."""
        return np.array(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # Keras's own does not know `copy`, which NumPy warns about.
        return np.array(self.value, dtype=dtype)

    def read_value(self) -> Any:
        """Returns the value (tf.Variable.read_value)."""
        return self.value

    # Writes ----------------------------------------------------------------------------------

    def assign(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> Any:
        """Sets the value; inside `run` the argument is aggregated first (tf.Variable.assign).

        Args:
            value: array of the variable's shape, cast to its dtype. Inside `run`, the replica's.
            use_locking, name: accepted for tf.Variable's signature.
            read_value: return the new value. An ON_READ variable without an aggregation has none
                across replicas and is written there with `read_value=False`.

        Returns:
            The new value as the caller sees it, or None without `read_value`.

        Raises:
            InvalidArgument: a per-replica value, a wrong shape, or a write that the variable's
                aggregation does not allow; nothing was written.
        """
        return self._write("assign", value, read_value)

    def assign_add(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> Any:
        """Adds to the value; inside `run` the deltas are aggregated (tf.Variable.assign_add)."""
        return self._write("add", value, read_value)

    def assign_sub(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> Any:
        """Subtracts from the value; inside `run` the deltas are aggregated."""
        return self._write("sub", value, read_value)

    def _write(self, operation: str, value: Any, read_value: bool) -> Any:
        value = self._checked_argument(operation, value)
        if (scope := active_scope()) is None:
            return self._write_now(operation, value, read_value)
        self._check_strategy("assign")
        if isinstance(scope, TraceScope):
            scope.write(self, operation, value)
            return scope.to_value(self, scope.storage(self)) if read_value else None
        new = self._written_inside(scope, operation, value)
        scope.add_update((self, new))
        return new

    def _write_now(self, operation: str, value: Any, read_value: bool) -> Any:
        with handover:  # that the code may write, and what it writes, are one
            self._check_strategy("assign")
            self.placement.note_access()
            if self._value is None and operation == "assign":
                # Keras's fit takes the arrays out of its variables and assigns them back.
                self._value = jnp.zeros(self.storage_shape, self.storage_dtype)
            new = self.placement.place(self.written_storage(self._value, operation, value))
            returned = self.logical_value(new) if read_value else None
            self._value = new
        return returned

    def _written_inside(self, scope: Any, operation: str, value: Any) -> Any:
        """The new value in a scope that Keras opened in the middle of a step.

        Replicas meet here, where the argument is known; at the end of the scope there is only the
        result, and the sum of results would count the old value once per replica.
        """
        current = self._value_in(scope)
        current = self.value if current is None else current
        replica = context.replica_context()
        if replica is None or self.is_seed_state:
            return combine(operation, current, value)
        context.note_met(self)
        return rules.write(self, operation, value, replica, current)

    def written_storage(self, storage: Any, operation: str, value: Any) -> Any:
        """What the variable holds after a write in cross-replica context."""
        if not self.placement.is_stacked:
            return combine(operation, storage, value)
        if (index := context.own_component()) is not None:
            old = placement.component(storage, index)
            return self.placement.with_component(storage, index, combine(operation, old, value))
        if context.writes_are_direct():
            value = jnp.broadcast_to(jnp.asarray(value, storage.dtype), storage.shape)
            return combine(operation, storage, value)
        aggregation = self.effective_aggregation
        if operation != "assign" and not self.is_declared:
            # Keras's own variables, such as a metric's: its assign_add is assign(self + value).
            value = combine(operation, placement.logical(storage, aggregation, self._path), value)
            operation = "assign"
        return placement.write_across(storage, operation, value, aggregation, self._path)

    def _checked_argument(self, operation: str, value: Any) -> Any:
        if isinstance(value, PerReplica):
            raise InvalidArgument(
                "A variable cannot be assigned a per-replica value: its copies would differ. "
                f"Received: {value!r} for {self._path!r}. Pass the value to strategy.run through "
                "args and assign inside, or reduce it first with strategy.reduce."
            )
        shape = np.shape(value)
        is_broadcast = operation != "assign" and shape == ()
        if tuple(shape) != tuple(self._shape) and not is_broadcast:
            raise InvalidArgument(
                "The value must have the variable's shape. Received: shape "
                f"{tuple(shape)} for {self._path!r} of shape {tuple(self._shape)}."
            )
        if isinstance(value, np.ndarray):
            return value.copy()  # JAX borrows NumPy's memory, which its owner may write to later
        return value.value if isinstance(value, keras.Variable) else value

    def _check_strategy(self, what: str) -> None:
        frame, owner = context.current(), self.placement.home
        if owner is not None:
            owner.settle()
        if (worker := context.worker()) is not None:
            worker.check()
        if frame is None or owner is None or frame.strategy is owner:
            if what == "assign" and (worker is not None or active_split() is not None):
                rules.refuse_plain_optimizer(self)
            return
        raise ContextError(
            "Mixing strategies: a variable can only be used under the strategy that made it. "
            f"Received: a {what} of {self._path!r}, made under {owner!r}, under "
            f"{frame.strategy!r}. Leave the other scope first, or make the variable under it."
        )

    # Storage -----------------------------------------------------------------------------------

    def _direct_assign(self, value: Any) -> None:
        """Keras hands the initial value over here; every component starts with it."""
        if self.placement.is_stacked:
            value = jnp.broadcast_to(value, (self.placement.num_replicas, *value.shape))
        self._set_storage(value)

    def _convert_to_tensor(self, value: Any, dtype: Any = None) -> Any:
        """Keras's conversion; JAX would warn of 64 bits that it does not have."""
        return super()._convert_to_tensor(
            value, None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
        )

    def _validate_shape(self, shape: Any) -> tuple[int, ...]:
        """Keras takes the shape from the array it stored, which may have a replica axis."""
        stored = self.__dict__.get("_value")
        is_stored = stored is not None and tuple(shape) == tuple(stored.shape)
        return super()._validate_shape(
            shape[1:] if is_stored and self.placement.is_stacked else shape
        )

    def _set_storage(self, storage: Any) -> None:
        self._value = self.placement.place(storage)

    def _shown_storage(self) -> Any:
        """What the variable holds, to be seen outside: the next step must not donate it."""
        with handover:
            self.placement.note_access()
            self.__dict__["_owned"] = None
            return self._value

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        frame, owner = context.current(), self.placement.home
        if frame is not None and owner is not None and frame.strategy is not owner:
            raise ContextError(
                "A variable can only be copied under the strategy that made it. Received: a copy "
                f"of {self._path!r}, made under {owner!r}, under {frame.strategy!r}."
            )
        copied = self.__class__.__new__(self.__class__)
        copied.__dict__.update(self.__dict__)
        copied._value = None if self._value is None else self.placement.place(self._value)
        memo[id(self)] = copied
        return copied

    def __repr__(self) -> str:
        kind = self.placement.kind.value
        shown = "uninitialized"
        if self._value is not None:
            shown = np.array2string(
                np.asarray(self._value), threshold=10, edgeitems=2, precision=4, separator=", "
            ).replace("\n", "")
        return (
            f"<paceline.Variable path={self._path}, shape={self._shape}, dtype={self._dtype}, "
            f"placement={kind}, synchronization={self.synchronization.name}, "
            f"aggregation={self.aggregation.name}, value={shown}>"
        )


def initial_array(initial_value: Any, dtype: Any, shape: Any, name: str) -> Any:
    """The array that a variable starts with, from what its constructor was given."""
    value = initial_value() if callable(initial_value) else initial_value
    if isinstance(value, keras.Variable):
        value = value.value
    dtype = (
        None
        if dtype is None
        else jax.dtypes.canonicalize_dtype(keras.backend.standardize_dtype(dtype))
    )
    if is_traced(value):
        raise TraceError(
            "A variable made in a traced function needs an initial value that is known while "
            f"tracing. Received: a traced array as the initial value of {name!r}. Pass a number, a "
            "NumPy array or a callable that computes the value, or make the variable outside."
        )
    # With its dtype named: a weakly typed first value would cost the second step a compilation.
    array = jnp.array(value, dtype=jnp.asarray(value, dtype).dtype)
    if shape is not None and tuple(shape) != array.shape:
        raise InvalidArgument(
            f"`shape` must be the initial value's shape. Received: shape={tuple(shape)} for "
            f"{name!r} with an initial value of shape {array.shape}."
        )
    return array


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """Creates variables with concrete values also while a step is traced (tf.init_scope)."""
    with outside_of_scopes(), jax.ensure_compile_time_eval():
        yield
