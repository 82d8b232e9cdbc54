"""Whether what Keras does to a weight can be done to each of its shards instead.

A constraint must give each row what it gives it alone, and a regularizer must add up. Both are any
callables of the user's, so they are tried out: on a few rows, small and large.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from paceline.variables.variable import outside_of_traces

if TYPE_CHECKING:
    from collections.abc import Callable

_ROWS = (3, 2)
# Limits such as a largest norm have an effect on some of these.
_SCALES = (1e-6, 1e-3, 1.0, 1e3, 1e6, 1e12)
_RTOL = 1e-4  # sums of five rows in single precision, in another order


def check(constraint: Any, regularizer: Any, width: int, name: str) -> bool:
    """Whether both act on shards as on the whole table; warns if one does not.

    Args:
        constraint, regularizer: callables, or None.
        width: columns of the table.
        name: of the layer, for the warning.
    """
    found = {
        "constraint": (constraint, _acts_on_rows),
        "regularizer": (regularizer, _adds_up),
    }
    for kind, (acting, is_separable) in found.items():
        if acting is not None and not _holds(is_separable, acting, width):
            warnings.warn(
                f"The table of {name!r} stays whole, on one server: its {kind} {_named(acting)} "
                "does not act on each shard as on the whole table. One that acts on each row by "
                "itself, such as MaxNorm(axis=1), or on each element, lets the table be divided.",
                stacklevel=4,
            )
            return False
    return True


def _holds(is_separable: Callable[..., bool], acting: Any, width: int) -> bool:
    first, second = np.split(np.random.default_rng(0).normal(size=(sum(_ROWS), width)), [_ROWS[0]])
    with outside_of_traces():
        try:
            return all(
                is_separable(acting, *(_tensor(scale * part) for part in (first, second)))
                for scale in _SCALES
            )
        except Exception:  # a user's callable that takes its own table only
            return False


def _acts_on_rows(constraint: Any, first: Any, second: Any) -> bool:
    whole = constraint(keras.ops.concatenate([first, second]))
    return _are_equal(whole, keras.ops.concatenate([constraint(first), constraint(second)]))


def _adds_up(regularizer: Any, first: Any, second: Any) -> bool:
    whole = regularizer(keras.ops.concatenate([first, second]))
    return _are_equal(whole, regularizer(first) + regularizer(second))


def _are_equal(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return one.shape == other.shape and np.allclose(one, other, _RTOL, atol=0, equal_nan=True)


def _tensor(value: np.ndarray[Any, Any]) -> Any:
    return keras.ops.convert_to_tensor(value, "float32")


def _named(acting: Any) -> str:
    return getattr(acting, "__name__", type(acting).__name__)
