"""Reads of an array that lies in several parts, stacked along the first dim, without joining it."""

from __future__ import annotations

import bisect
import operator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.errors import InvalidArgument, InvalidType
from paceline.program.scope import beside, is_traced

if TYPE_CHECKING:
    from collections.abc import Sequence


def ranges_of(parts: Sequence[Any]) -> list[range]:
    """The rows of the whole array that each part holds."""
    ranges, start = [], 0
    for part in parts:
        ranges.append(range(start, start + part.shape[0]))
        start = ranges[-1].stop
    return ranges


def joined(arrays: Sequence[Any]) -> Any:
    """The arrays one after the other, on the devices of the first; one alone is not copied."""
    first, *others = arrays
    if not others:
        return first
    return jnp.concatenate([first, *(beside(array, first) for array in others)])


# Lookup ------------------------------------------------------------------------------------------


def lookup(parts: Sequence[Any], ids: Any, name: str, fill_value: float = 0) -> Any:
    """Gathers rows of an array that lies in parts.

    Every part is asked for all ids, so that shapes do not depend on the values of the ids and a
    step is compiled once; what comes back from a part are rows, never the part itself.

    Args:
        parts: variables or arrays `[rows of the part, ...]`.
        ids: integers of any shape.
        name: of the whole array, for messages.
        fill_value: what traced ids that are out of range give.

    Returns:
        Array `[*ids.shape, ...]`.

    Raises:
        InvalidArgument: ids that are not integers, or known ones that are out of range.
    """
    ranges = ranges_of(parts)
    ids = checked_ids(ids, ranges[-1].stop, name)
    found = None
    for part, own in zip(parts, ranges, strict=True):
        if not own:
            continue
        array = part.value if isinstance(part, keras.Variable) else jnp.asarray(part)
        index = beside(ids, array)
        is_here = (index >= own.start) & (index < own.stop)
        # Past the end, not clipped: no row of a part gets a gradient, be it zero, for another's.
        local = jnp.where(is_here, index - own.start, len(own))
        rows = jnp.take(array, local, axis=0, mode="fill", fill_value=0)
        is_here = is_here.reshape(is_here.shape + (1,) * (rows.ndim - is_here.ndim))
        found = jnp.full_like(rows, fill_value) if found is None else found
        # Both the mask and the rows travel to the first part's device, and nothing else does.
        found = jnp.where(beside(is_here, found), beside(rows, found), found)
    if found is None:  # no rows: there is nothing that an id could name
        found = jnp.zeros((*ids.shape, *parts[0].shape[1:]), parts[0].dtype)
    return found


def checked_ids(ids: Any, num_rows: int, name: str) -> Any:
    """The ids as an array of integers that can hold every row number."""
    ids = ids.value if isinstance(ids, keras.Variable) else ids
    known = None if is_traced(ids) else np.asarray(ids)
    dtype = jnp.asarray(ids).dtype if known is None else known.dtype
    is_empty_list = known is not None and not known.size
    if not (jnp.issubdtype(dtype, jnp.integer) or is_empty_list):
        raise InvalidArgument(
            "Rows are looked up by integers. Received: ids of dtype "
            f"{dtype} for {name!r}. Cast them with .astype('int32')."
        )
    if known is not None and np.any((known < 0) | (known >= num_rows)):
        raise InvalidArgument(
            "Ids lie between 0 and the number of rows. Received: ids from "
            f"{known.min()} to {known.max()} for {name!r} with {num_rows} rows."
        )
    return jnp.asarray(ids, None if dtype in (np.int32, np.int64) else jnp.int32)


# Indexing ----------------------------------------------------------------------------------------


def take(parts: Sequence[Any], index: Any, name: str) -> Any:
    """`whole[index]` for an array that lies in parts, reading only what the result consists of.

    Args:
        parts: variables `[rows of the part, ...]`.
        index: what NumPy takes without arrays: integers, slices, `...` and `None`, in a tuple if
            several; or one array of bools whose shape is that of the first dims.
        name: of the whole array, for messages.

    Raises:
        IndexError: out of range, or more indices than dims.
        InvalidType: an index of another type, such as an array.
        InvalidArgument: a slice with step 0.
    """
    ranges = ranges_of(parts)
    shape = (ranges[-1].stop, *parts[0].shape[1:])
    if _is_mask(index):
        return _masked(parts, ranges, np.asarray(index), shape, name)
    entries = _entries(index, shape, name)
    num_new = next(i for i, entry in enumerate(entries) if entry is not None)
    first, rest = entries[num_new], entries[num_new + 1 :]
    if isinstance(first, int):
        place = bisect.bisect_right(ranges, first, key=lambda own: own.start) - 1
        result = parts[place].value[(first - ranges[place].start, *rest)]
    else:
        found = pieces(range(shape[0])[first], ranges) or [(0, slice(0, 0))]
        result = joined([parts[place].value[(local, *rest)] for place, local in found])
    return result[(None,) * num_new] if num_new else result


def pieces(rows: range, ranges: Sequence[range]) -> list[tuple[int, slice]]:
    """Where evenly spaced rows lie: (part, slice of the part), in the order of the rows."""
    is_ascending = rows.step > 0
    ascending = rows if is_ascending else rows[::-1]
    found = []
    for place, own in enumerate(ranges):
        here = ascending[bisect.bisect_left(ascending, own.start) :]
        here = here[: bisect.bisect_left(here, own.stop)]
        if not here:
            continue
        here = here if is_ascending else here[::-1]
        stop = here.stop - own.start
        local = slice(here.start - own.start, stop if stop >= 0 else None, here.step)
        found.append((place, local))
    return found if is_ascending else found[::-1]


def _masked(
    parts: Sequence[Any], ranges: Sequence[range], mask: Any, shape: tuple[int, ...], name: str
) -> Any:
    if mask.ndim == 0 or mask.shape != shape[: mask.ndim]:
        raise IndexError(
            "An array of bools as an index has the shape of the first dims. Received: shape "
            f"{mask.shape} for {name!r} of shape {shape}."
        )
    return joined(
        [part.value[mask[own.start : own.stop]] for part, own in zip(parts, ranges, strict=True)]
    )


def _is_mask(index: Any) -> bool:
    is_array = isinstance(index, (np.ndarray, jax.Array)) and not is_traced(index)
    return is_array and index.dtype == bool


def _entries(index: Any, shape: tuple[int, ...], name: str) -> list[Any]:
    """One checked entry per dim, and the `None`s between them."""
    given = list(index) if isinstance(index, tuple) else [index]
    num_ellipses = sum(entry is Ellipsis for entry in given)
    num_missing = len(shape) - sum(entry is not None and entry is not Ellipsis for entry in given)
    if num_missing < 0 or num_ellipses > 1:
        raise IndexError(
            f"Too many indices for {name!r} of shape {shape}. Received: index={index!r}."
        )
    gap = next((i for i, entry in enumerate(given) if entry is Ellipsis), None)
    if gap is None:
        gap, given = len(given), [*given, Ellipsis]
    given[gap : gap + 1] = [slice(None)] * num_missing
    sizes = iter(enumerate(shape))
    return [None if entry is None else _checked_entry(entry, *next(sizes), name) for entry in given]


def _checked_entry(entry: Any, dim: int, size: int, name: str) -> int | slice:
    if isinstance(entry, slice):
        checked = slice(*(_integer(bound, name) for bound in (entry.start, entry.stop, entry.step)))
        if checked.step == 0:
            raise InvalidArgument(
                f"The step of a slice is not zero. Received: {entry!r} for dim {dim} of {name!r}."
            )
        return checked
    number = _integer(entry, name)
    if number is None or not -size <= number < size:
        raise IndexError(
            f"An index lies between {-size} and {size - 1}. Received: {number} for dim {dim} of "
            f"{name!r}."
        )
    return number % size


def _integer(value: Any, name: str) -> int | None:
    if value is None:
        return None
    is_plain = not isinstance(value, (bool, np.bool_, np.ndarray, jax.Array, keras.Variable))
    if is_plain and hasattr(value, "__index__"):
        return operator.index(value)
    raise InvalidType(
        "A sharded variable is indexed with integers, slices, `...` and None. Received: "
        f"{value!r} of type {type(value).__name__} for {name!r}. For the rows that an array names "
        "use embedding_lookup(ids)."
    )
