"""PerWorkerVariable: a variable that every worker has a copy of."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from paceline.errors import ContextError, InvalidArgument
from paceline.program.handover import handover
from paceline.program.split_scope import worker_index
from paceline.variables.variable import Variable, initial_array, outside_of_traces

if TYPE_CHECKING:
    from collections.abc import Callable

_SIGNATURE = inspect.signature(Variable.__init__)


class PerWorkerVariable(NDArrayOperatorsMixin):
    """One independent copy of a variable per worker; scheduled functions use their worker's own.

    Made by `paceline.Variable(..., per_worker_variable=True)` in the scope of a
    `ParameterServerStrategy`, for what workers must not share, such as counters and statistics of
    their own. It is not trainable.

    Args:
        copies: a variable `[worker, ...]` that holds the copies.

    Semantics:
        The per-worker variables of tf.distribute's ParameterServerStrategy. Deviations: the copies
        are kept with the other variables, so that they outlive the workers; assigning from outside
        of scheduled functions sets every copy. A checkpoint holds all copies, and can be restored
        for as many workers.
    """

    def __init__(self, copies: Variable) -> None:
        self._copies = copies

    # What it is ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name."""
        return self._copies.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one copy."""
        return tuple(self._copies.shape[1:])

    @property
    def dtype(self) -> str:
        """The dtype."""
        return self._copies.dtype

    @property
    def copies(self) -> Variable:
        """The variable `[worker, ...]` that holds the copies."""
        return self._copies

    @property
    def num_workers(self) -> int:
        """How many copies there are."""
        return self._copies.shape[0]

    @property
    def trainable(self) -> bool:
        """False: no optimizer updates copies that differ."""
        return False

    @property
    def distribute_strategy(self) -> Any:
        """The strategy that owns it."""
        return self._copies.distribute_strategy

    # Reads -----------------------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """The copy of the worker that runs the code.

        Raises:
            ContextError: no worker runs it.
        """
        return self._copies.value[self._index("read")]

    def read_value(self) -> Any:
        """Returns the value; raises like `value`."""
        return self.value

    def read_all(self) -> list[Any]:
        """Returns all copies, in the order of the workers; also outside of scheduled functions."""
        return list(self._copies.value)

    def numpy(self) -> np.ndarray:
        """The value as a NumPy array; raises like `value`."""
        return np.array(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype)

    def __jax_array__(self) -> Any:
        return self.value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # Python's operators come in here, from NumPy's mixin.
        options.pop("out", None)  # `v += x` makes `v` an array, as with every other variable
        values = [value.value if isinstance(value, type(self)) else value for value in inputs]
        operate = getattr(jnp, ufunc.__name__, ufunc) if method == "__call__" else None
        return (operate or getattr(ufunc, method))(*values, **options)

    # Writes ----------------------------------------------------------------------------------

    def assign(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> Any:
        """Sets the worker's copy; outside of scheduled functions every copy.

        Args:
            value: array of the variable's shape.
            use_locking, name: accepted for tf.Variable's signature.
            read_value: return the new value of the worker's copy.

        Raises:
            InvalidArgument: a wrong shape.
        """
        self._check_shape(value, self.shape)
        index = worker_index()
        if index is None:
            copies = self._copies
            copies.assign(jnp.broadcast_to(jnp.asarray(value), copies.shape), read_value=False)
            return None
        with handover:  # other workers set rows of the same array
            self._copies.assign(self._copies.value.at[index].set(value), read_value=False)
        return self.value if read_value else None

    def assign_add(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> Any:
        """Adds to the worker's copy.

        Raises:
            ContextError: no worker runs the code.
            InvalidArgument: a wrong shape.
        """
        return self._add(value, 1, read_value)

    def assign_sub(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> Any:
        """Subtracts from the worker's copy; raises like `assign_add`."""
        return self._add(value, -1, read_value)

    def _add(self, value: Any, sign: int, read_value: bool) -> Any:
        self._check_shape(value, self.shape, ())
        index = self._index("change")
        nothing = jnp.zeros(self._copies.shape, self._copies.storage_dtype)
        delta = nothing.at[index].set(jnp.asarray(value, nothing.dtype) * sign)
        self._copies.assign_add(delta, read_value=False)
        return self.value if read_value else None

    def _index(self, what: str) -> Any:
        index = worker_index()
        if index is None:
            raise ContextError(
                "A per-worker variable has a value on every worker and none outside of scheduled "
                f"functions. Received: a {what} of {self.name!r}. Use read_all() for the list of "
                "values, or assign(value) to set all of them."
            )
        return index

    def _check_shape(self, value: Any, *allowed: tuple[int, ...]) -> None:
        if np.shape(value) not in allowed:
            raise InvalidArgument(
                f"The value must have the variable's shape. Received: shape {np.shape(value)} for "
                f"{self.name!r} of shape {self.shape}."
            )

    def __repr__(self) -> str:
        return (
            f"<paceline.PerWorkerVariable name={self.name}, shape={self.shape}, "
            f"dtype={self.dtype}, workers={self.num_workers}>"
        )


def create(make: Callable[..., Any], num_workers: int, *args: Any, **kwargs: Any) -> Any:
    """What `paceline.Variable(*args, per_worker_variable=True, **kwargs)` makes.

    Args:
        make: makes one variable, with the arguments of `paceline.Variable`.
        num_workers: how many copies there are.
        args, kwargs: the arguments of `paceline.Variable`; all copies start with one value.

    Raises:
        InvalidArgument: no initial value, or `trainable=True`.
    """
    options = _SIGNATURE.bind(None, *args, **kwargs).arguments
    name = options.get("name") or "Variable"
    if options.get("initial_value") is None or options.get("trainable"):
        raise InvalidArgument(
            "A per-worker variable has an initial value and cannot be trained. Received: "
            f"initial_value={options.get('initial_value')!r}, trainable="
            f"{options.get('trainable')!r} for {name!r}."
        )
    with outside_of_traces():
        first = initial_array(
            options["initial_value"], options.get("dtype"), options.get("shape"), name
        )
        copies = jnp.broadcast_to(first, (num_workers, *first.shape))
    of_all = {key: options[key] for key in ("name", "dtype") if key in options}
    return PerWorkerVariable(make(copies, trainable=False, **of_all))
