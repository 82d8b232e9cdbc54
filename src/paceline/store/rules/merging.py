"""Several pushes as one update: what softsync and lockstep groups hand to the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.errors import InvalidArgument
from paceline.program.sparse import Rows, densified, is_rows, merged_rows
from paceline.store.rules.base import is_floating, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax import Array
    from jax.typing import ArrayLike


_AT_ONCE = 8  # parts in one program: all would need one for every size of a group


def merge_weights(merge: str, examples: Sequence[int]) -> np.ndarray:
    """Returns how much each push of a group counts, float32 [push].

    Args:
        merge: "sum": every push counts whole, as if they were applied one by one at a fixed rate,
            which suits SGD. "mean": pushes count by their share of the examples, so that the
            gradient keeps its size, which suits Adam.
        examples: how many examples each push holds; all 0 where this is unknown.

    Raises:
        InvalidArgument: another `merge`, an empty group, or a negative number of examples.
    """
    if merge not in ("sum", "mean"):
        raise InvalidArgument(
            f"Pushes are merged by 'sum' or by 'mean'. Received: merge={merge!r}."
        )
    if not examples or min(examples) < 0:
        raise InvalidArgument(
            "A group holds 1 or more pushes of 0 or more examples each. Received: "
            f"examples={examples!r}."
        )
    counts = np.asarray(examples, np.float64)
    if merge == "sum":
        return np.ones(len(counts), np.float32)
    if not counts.any():
        counts = np.ones_like(counts)
    return (counts / counts.sum()).astype(np.float32)


def group_scale(weights: ArrayLike, scales: ArrayLike) -> tuple[Array, Array]:
    """Returns `(weights, scale)` of a group whose pushes the rule would scale one by one.

    The scale of the one step is the mean of the pushes' scales, weighted by `weights`. The new
    weights are `weights * scales / scale`: SGD then moves by exactly sum_i w_i * s_i * g_i, and as
    the weights keep their sum, Adam gets a gradient of the usual size and a step that is scaled.

    Args:
        weights: float [push], from `merge_weights`; not negative.
        scales: float [push], from `UpdateRule.scale` of each push.
    """
    weights, scales = jnp.asarray(weights), jnp.asarray(scales)
    total = jnp.sum(weights)
    scale = jnp.sum(weights * scales) / jnp.where(total > 0, total, 1)
    # All weights or all scales are zero: so is the step, through the weights.
    scale = jnp.where(scale > 0, scale, 1)
    return weights * scales / scale, scale


def merged(grads_per_push: Sequence[Sequence[Array]], weights: ArrayLike) -> list[Array]:
    """Returns the gradients of a group, sum_i weights[i] * g_i for each trainable weight.

    The sum runs in the order of the pushes and in float32 at least. Entries that are not floating
    point are taken from the last push. Gradients that all came as rows give the rows of all.

    Args:
        grads_per_push: per push the list of gradients, each already corrected by the rule for its
            own push; all of the same structure.
        weights: float [push], from `merge_weights` or `group_scale`.

    Raises:
        InvalidArgument: the group is empty.
    """
    if not grads_per_push:
        raise InvalidArgument("A group holds 1 or more pushes. Received: an empty group.")
    coefficients = jnp.asarray(weights)
    columns = list(zip(*grads_per_push, strict=True))
    result = [_taken(parts, coefficients) for parts in columns]
    dense = [place for place, total in enumerate(result) if total is None]
    whole = [densified(columns[place]) for place in dense]
    for place, total in zip(dense, _sums(whole, coefficients), strict=True):
        result[place] = total
    return result


def _taken(parts: Sequence[Any], coefficients: Array) -> Any:
    """What becomes of gradients that are no whole arrays of numbers to add; None: they are."""
    if not is_floating(parts[0]):
        return parts[-1]
    return _sum_of_rows(parts, coefficients) if all(map(is_rows, parts)) else None


def _sums(columns: Sequence[Sequence[Array]], coefficients: Array) -> list[Array]:
    """Weighted sums of the parts of each column, compiled for a few parts at a time."""
    if not columns:
        return []
    totals: Any = None
    for start in range(0, len(columns[0]), _AT_ONCE):
        chunk = [list(column[start : start + _AT_ONCE]) for column in columns]
        totals = _added(totals, chunk, coefficients[start : start + _AT_ONCE])
    dtypes = [column[0].dtype for column in columns]
    return [total.astype(dtype) for total, dtype in zip(totals, dtypes, strict=True)]


@jax.jit
def _added(totals: Any, columns: Sequence[Sequence[Array]], coefficients: Array) -> list[Array]:
    sums = []
    for place, parts in enumerate(columns):
        dtype = wide(*parts)
        total = None if totals is None else totals[place]
        for part, coefficient in zip(parts, coefficients, strict=True):
            term = part.astype(dtype) * coefficient.astype(dtype)
            total = term if total is None else total + term
        sums.append(total)
    return sums


@jax.jit
def _sum_of_rows(parts: Sequence[Rows], coefficients: Array) -> Rows:
    dtype = wide(*(part.values for part in parts))
    indices = jnp.concatenate([part.indices for part in parts])
    terms = [
        part.values.astype(dtype) * factor.astype(dtype)
        for part, factor in zip(parts, coefficients, strict=True)
    ]
    total = merged_rows(indices, jnp.concatenate(terms), parts[0].num_rows)
    return total.of(total.values.astype(parts[0].dtype))
