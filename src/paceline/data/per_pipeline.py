"""Steps from pipelines that yield each replica's own batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from paceline.data.placing import as_array, check_examples, on_one_device, stack_parts
from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_END = object()


def grouped(pipelines: Sequence[Iterator[Any]]) -> Iterator[list[Any]]:
    """Yields one element per replica and step, in replica order, until no pipeline has any left.

    Args:
        pipelines: the pipeline that each replica reads; replicas may share one.

    Yields:
        One entry per replica, None where its pipeline had no element left. At least one entry is
        an element.
    """
    while True:
        group = [next(pipeline, _END) for pipeline in pipelines]
        if all(element is _END for element in group):
            return
        yield [None if element is _END else element for element in group]


def place_group(group: Sequence[Any], strategy: Any) -> Any:
    """Puts one step's elements on the replicas' devices, or returns None for a step to drop.

    A replica without an element gets an empty batch with the right dtypes and trailing shapes.
    For scalars there is no empty batch: a group of scalars that lacks one is dropped.

    Args:
        group: one nest per replica, None where there is none.
        strategy: the strategy with these replicas.

    Raises:
        InvalidArgument: nests that differ in structure, or arrays that differ in rank or dtype.
        InvalidType: a leaf that is no array of numbers.
    """
    flat = [None if nest is None else jax.tree.flatten(nest) for nest in group]
    present = [entry for entry in flat if entry is not None]
    tree = present[0][1]
    if any(other != tree for _, other in present):
        raise InvalidArgument(
            "The replicas' elements of one step need one structure. Received: "
            f"{[str(other) for _, other in present]}. Let dataset_fn yield equal nests."
        )
    example = [as_element(leaf) for leaf in present[0][0]]
    is_batched = all(array.ndim for array in example)
    if len(present) < len(flat) and not is_batched:
        return None
    empty = [np.zeros((0, *array.shape[1:]), array.dtype) for array in example if array.ndim]
    rows = [empty if entry is None else [as_element(leaf) for leaf in entry[0]] for entry in flat]
    if is_batched:
        for row, nest in zip(rows, group, strict=True):
            check_examples(row, tree.unflatten(row) if nest is None else nest)
    if len(rows) == 1:
        return tree.unflatten([on_one_device(array, strategy.devices[0]) for array in example])
    return tree.unflatten([stack_parts(parts, strategy) for parts in zip(*rows, strict=True)])


def as_element(leaf: Any) -> Any:
    """Returns a leaf as an array; a number becomes an array without dims."""
    is_number = isinstance(leaf, (np.generic, bool, int, float, complex))
    return np.asarray(leaf) if is_number else as_array(leaf)
