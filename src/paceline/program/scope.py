"""Reads become inputs and writes become outputs: the scopes that a step is traced under.

Keras asks the active `StatelessScope` for the value of every variable that is read and tells it of
every write. A `TraceScope` answers with an input of the step program, bound at the outermost level
of the trace however deep the read happens (inside a `scan` body, say), and remembers the writes.

A *storage* is what a variable holds (for a per-replica variable on N replicas an array
`[replica, ...]`); a *value* is what code sees. Plain Keras variables have no such difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import keras
from jax.core import ShapedArray, Tracer
from jax.extend import core as jex

from paceline.errors import TraceError
from paceline.program.tape import notify_read

if TYPE_CHECKING:
    from collections.abc import Iterator

read_p = jex.Primitive("read_variable")


@read_p.def_abstract_eval
def _read_shape(*, shape: tuple[int, ...], dtype: Any, key: Any) -> Any:
    return ShapedArray(shape, jax.dtypes.canonicalize_dtype(dtype))


def storage_shape(variable: Any) -> tuple[int, ...]:
    """The shape of what the variable holds; for plain Keras variables the variable's shape."""
    return tuple(getattr(variable, "storage_shape", variable.shape))


def is_traced(value: Any) -> bool:
    """Whether `value` only exists while a program is traced."""
    return isinstance(value, Tracer)


def is_variable(leaf: Any) -> bool:
    """Whether a leaf of a nest is a variable."""
    return isinstance(leaf, keras.Variable)


class TraceScope(keras.StatelessScope):
    """Collects the reads and writes of one traced function, across replicas.

    Subclasses change what a read means by overriding the three hooks at the end.
    """

    def __init__(self) -> None:
        super().__init__(collect_losses=True)
        self.losses = _Losses()
        self.reads: dict[Any, tuple[Any, Any]] = {}
        self.writes: dict[int, tuple[Any, Any]] = {}
        self.strategies: list[Any] = []  # those whose replicas run in the traced function
        self._trace: Any = None

    def open(self, trace: Any) -> None:
        """Binds the scope to the trace whose inputs the reads become."""
        self._trace = trace

    def storage(self, variable: Any) -> Any:
        """What the variable holds at this point of the step."""
        key = id(variable)
        if key in self.writes:
            return self.writes[key][1]
        if key not in self.reads:
            self.prepare(variable)
            self.add_input(key, variable, self.input_shape(variable), variable._dtype)
        return self.reads[key][1]

    def add_input(self, key: Any, source: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Makes an input of the program that `source` will give; returns its placeholder."""
        with jex.set_current_trace(self._trace):
            value = read_p.bind(shape=tuple(shape), dtype=dtype, key=key)
        self.reads[key] = (source, value)
        return value

    def set_storage(self, variable: Any, value: Any) -> None:
        """Makes `value` what the variable holds from here on."""
        self.check_reaches(variable, value)
        self.storage(variable)  # a written variable is also an input: its buffer is donated
        self.writes[id(variable)] = (variable, value)

    def check_reaches(self, variable: Any, value: Any) -> None:
        """Checks that a new value exists where the step ends.

        Raises:
            TraceError: the write comes from inside a control-flow body or a gradient, from where
                the value can't leave.
        """
        if is_traced(value) and value._trace is not self._trace:
            raise TraceError(
                "A variable was assigned inside a function that JAX traces on its own (the body "
                "of cond, scan, while_loop or vmap, or a function under jax.grad), from which the "
                f"new value cannot leave. Received: an assignment to {variable.path!r}. Return the "
                "value from that function and assign it outside, or select it with jnp.where; for "
                "an optimizer applied every k steps use gradient_accumulation_steps=k."
            )

    def get_current_value(self, variable: Any) -> Any:
        """The value a read gives; Keras calls this."""
        storage = self.storage(variable)
        value = self.to_value(variable, storage)
        notify_read(variable, value)
        return value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Takes a write; Keras calls this."""
        variable, value = update
        self.write(variable, "assign", value)

    def write(self, variable: Any, operation: str, value: Any) -> None:
        """Carries out `assign`, `add` or `sub`."""
        operate = getattr(variable, "written_storage", None)
        if operate is None:
            new = combine(operation, self.storage(variable), value)
        else:
            new = operate(self.storage(variable), operation, value)
        self.set_storage(variable, new)

    def prepare(self, variable: Any) -> None:
        """Called once before a variable is first read."""

    def input_shape(self, variable: Any) -> tuple[int, ...]:
        """The shape of the program's input for the variable."""
        return storage_shape(variable)

    def to_value(self, variable: Any, storage: Any) -> Any:
        """The value that code sees for a storage."""
        logical = getattr(variable, "logical_value", None)
        return storage if logical is None else logical(storage)


class _Losses(list[Any]):
    """What layers add with `add_loss`. Keras removes by value, which arrays do not have."""

    def remove(self, value: Any) -> None:
        self[:] = [loss for loss in self if loss is not value]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.copy())  # Keras removes while it iterates


def combine(operation: str, old: Any, value: Any) -> Any:
    """Returns `old` after `assign`, `add` or `sub` of `value`, in the dtype of `old`."""
    value = beside(jax.numpy.asarray(value, dtype=old.dtype), old)
    if operation == "assign":
        return value
    return old + value if operation == "add" else old - value


def beside(value: Any, other: Any) -> Any:
    """`value` on the devices of `other`, where both are concrete and `value` lies elsewhere."""
    if is_traced(value) or is_traced(other) or not value.committed:
        return value
    if value.sharding.device_set == other.sharding.device_set:
        return value
    return jax.device_put(value, other.sharding)
