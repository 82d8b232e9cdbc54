"""What each worker works on, to count the examples of updates that no compiled step makes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.records import PushRecord


class AtHand:
    """Adds to records without examples those of the batch that the worker has.

    A compiled step knows its batch. An update of plain Python code does not: of all updates that
    follow a batch, the first one gets its examples, so that each example is counted once.

    Args:
        record: is told of every push, with its examples.
    """

    def __init__(self, record: Callable[[PushRecord], None]) -> None:
        self._record = record
        self._batches: dict[int, Any] = {}  # by worker, each written to by its own thread

    def put(self, worker: int, batch: Any) -> None:
        """Notes a nest whose first array has the examples along its first dim."""
        self._batches[worker] = batch

    def clear(self, worker: int) -> None:
        """Lets go of what a worker had."""
        self._batches.pop(worker, None)

    def record(self, push: PushRecord) -> None:
        """Tells of a push."""
        if not push.examples and push.outcome == "applied":
            examples = leading_dim(self._batches.pop(push.worker, None))
            push = dataclasses.replace(push, examples=examples) if examples else push
        self._record(push)


def leading_dim(batch: Any) -> int:
    """First dim of the first array in a nest that has one; 0 where none has."""
    shapes = (np.shape(leaf) for leaf in jax.tree.leaves(batch) if hasattr(leaf, "shape"))
    return next((shape[0] for shape in shapes if shape), 0)
