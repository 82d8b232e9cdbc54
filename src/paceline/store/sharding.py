"""Makes a variable in shards where a partitioner asks for it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import warnings
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from paceline.errors import InvalidArgument
from paceline.program.keras_state import new_name, outside_of_scopes
from paceline.program.scope import is_traced
from paceline.store.partitioners import partitions, row_ranges
from paceline.variables.sharded import ShardedVariable
from paceline.variables.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.store.partitioners import AnyPartitioner

_SIGNATURE = inspect.signature(Variable.__init__)
_PARTITION_ARGUMENTS = {"partition_shape", "partition_offset"}
_MANY_ELEMENTS = 10**9


def create(
    partitioner: AnyPartitioner | None, constructor: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """What `paceline.Variable(*args, **kwargs)` makes under a strategy with a partitioner.

    Args:
        partitioner: the strategy's, or None.
        constructor: makes one variable, with the arguments of `paceline.Variable` by name.
        args, kwargs: the arguments of `paceline.Variable`.

    Returns:
        A `ShardedVariable`, or what `constructor` makes where there is one shard.

    Raises:
        InvalidArgument: no initial value, a partitioner that breaks the rules, an initial value
            whose shape does not fit, or what `constructor` refuses.
    """
    if partitioner is None:
        return constructor(*args, **kwargs)
    options = _SIGNATURE.bind(None, *args, **kwargs).arguments
    del options["self"]
    initial_value = options.pop("initial_value", None)
    return make_sharded(initial_value, partitioner, constructor=constructor, **options)


def make_sharded(
    initial_value: Any,
    partitioner: AnyPartitioner,
    *,
    constructor: Callable[..., Any] = Variable,
    name: str | None = None,
    dtype: Any = None,
    shape: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """Makes a variable in as many shards as a partitioner says.

    Args:
        initial_value: array of the whole shape, or a callable that returns one. With `shape` and
            `dtype` it is called for every shard with `partition_shape` and `partition_offset`, if
            it has these arguments, and returns the rows of that shard.
        partitioner: see `paceline.store.partitioners`.
        constructor: makes one variable, with the arguments of `paceline.Variable` by name.
        name: of the whole variable; the shards are called `name/part_0`, `name/part_1`, ...
        dtype: default that of the initial value.
        shape: the whole shape; checked against the initial value's.
        options: further arguments of `constructor`.

    Returns:
        A `ShardedVariable`, or what `constructor` makes where there is one shard.

    Raises:
        InvalidArgument: see `create`.
    """
    if initial_value is None:
        raise InvalidArgument(
            "A variable needs an initial value, which is divided over the shards. Received: "
            f"initial_value=None for {name or 'Variable'!r}. Pass an array, a number or a callable "
            "that returns one."
        )

    def make_one() -> Any:
        own = {"name": name, "dtype": dtype, "shape": shape, **options}
        return constructor(initial_value=initial_value, **own)

    is_made_later = callable(initial_value) and shape is not None and dtype is not None
    if not is_made_later:
        initial_value = _evaluated(initial_value)
        whole = tuple(initial_value.shape)
        if is_traced(initial_value) or whole != tuple(whole if shape is None else shape):
            return make_one()  # which refuses it
        shape = whole
    shape = tuple(shape or ())
    num_shards = partitions(partitioner, shape, _dtype(initial_value, dtype))
    if num_shards == 1:
        return make_one()
    return divided(
        initial_value,
        num_shards,
        constructor=constructor,
        name=name or new_name("Variable"),
        dtype=dtype,
        shape=shape,
        **options,
    )


def divided(
    initial_value: Any,
    num_shards: int,
    *,
    constructor: Callable[..., Any],
    name: str,
    dtype: Any,
    shape: Sequence[int],
    **options: Any,
) -> ShardedVariable:
    """Makes a variable in a given number of shards, whose sizes differ by one row at most.

    Args:
        initial_value: see `make_sharded`; a callable only where `dtype` is given.
        num_shards: how many.
        constructor: makes one shard, with the arguments `initial_value` (an array), `name`, `dtype`
            and `options`.
        name, dtype, shape: of the whole variable.
        options: further arguments of `constructor`.

    Raises:
        InvalidArgument: an initial value of another shape.
    """
    shape = tuple(shape)
    ranges = row_ranges(shape[0], num_shards)
    shards = []
    with keras.name_scope(name):
        for i, value in enumerate(_parts(initial_value, shape, ranges, name)):
            shard = constructor(initial_value=value, name=f"part_{i}", dtype=dtype, **options)
            shard._name = f"{name}/part_{i}"  # TensorFlow's name; Keras takes none with "/"
            shards.append(shard)
    return ShardedVariable(shards, name=name)


def _parts(
    initial_value: Any, shape: tuple[int, ...], ranges: Sequence[range], name: str
) -> Iterator[Any]:
    """The initial value of each shard, made when it is asked for where that is possible."""
    if callable(initial_value) and _takes_partition(initial_value):
        for own in ranges:
            part_shape = (len(own), *shape[1:])
            offset = (own.start, *[0] * (len(shape) - 1))
            make = functools.partial(
                initial_value, partition_shape=part_shape, partition_offset=offset
            )
            value = _evaluated(make)
            if own.start == 0 and tuple(value.shape) == shape:
                initial_value = value  # it takes any argument by name, and ignores these
                break
            yield _checked(value, part_shape, name)
        else:
            return
    whole = _checked(_evaluated(initial_value), shape, name)
    if math.prod(shape) > _MANY_ELEMENTS:
        warnings.warn(
            f"The initial value of {name!r}, of shape {shape}, is made whole before it is divided "
            "into shards. Pass a callable with the arguments partition_shape and partition_offset, "
            "and `shape` and `dtype`, to make it shard by shard.",
            stacklevel=3,
        )
    for own in ranges:
        with _concretely():
            part = whole[own.start : own.stop]
        yield part


def _takes_partition(make: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # written in C
        return False
    takes_any = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
    return takes_any or parameters.keys() >= _PARTITION_ARGUMENTS


def _evaluated(initial_value: Any) -> Any:
    """The initial value as an array. One of NumPy stays there: it may be too large for a device."""
    with _concretely():
        value = initial_value() if callable(initial_value) else initial_value
        if isinstance(value, keras.Variable):
            value = value.value
        return value if hasattr(value, "shape") else np.asarray(value)


def _checked(value: Any, shape: tuple[int, ...], name: str) -> Any:
    if tuple(value.shape) != shape:
        raise InvalidArgument(
            "An initial value has the shape that it was asked for, that of the whole variable or "
            f"that of a shard. Received: shape {tuple(value.shape)} for {name!r} instead of "
            f"{shape}."
        )
    return value


def _dtype(initial_value: Any, dtype: Any) -> Any:
    """The dtype that the variable will have."""
    given = initial_value.dtype if dtype is None else keras.backend.standardize_dtype(dtype)
    return jax.dtypes.canonicalize_dtype(given)


@contextlib.contextmanager
def _concretely() -> Iterator[None]:
    with outside_of_scopes(), jax.ensure_compile_time_eval():
        yield
