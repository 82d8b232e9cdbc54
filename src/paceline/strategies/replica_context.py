"""What code inside `strategy.run` can ask and do (tf.distribute.ReplicaContext)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import keras

from paceline.errors import InvalidArgument
from paceline.program import context, meeting
from paceline.types import PerReplica, ReduceOp
from paceline.variables.scatter import IndexedSlices, refuse_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class GatherLog:
    """What replicas bring to the meetings of a compiled step that depends on their batch sizes.

    What is gathered holds the parts of all replicas, but the trace of one batch size knows only its
    own part. So each trace assumes what the others bring and notes what it brings itself, and is
    repeated with the truth in the rare case that it assumed wrong (a replica gathers more than its
    examples).

    Args:
        replicas: the replicas whose trace this is.
        known: for each meeting, in order, what every replica brings, where an earlier trace told.
    """

    def __init__(self, replicas: Sequence[int], known: Sequence[tuple[Any, ...]] = ()) -> None:
        self.replicas = tuple(replicas)
        self._known = known
        self.own: list[Any] = []
        self.assumed: list[tuple[Any, ...]] = []

    def of_all(self, own: Any, likely: tuple[Any, ...]) -> tuple[Any, ...]:
        """Notes that these replicas bring `own`, and returns what every replica brings."""
        place = len(self.own)
        self.own.append(own)
        self.assumed.append(self._known[place] if place < len(self._known) else likely)
        return self.assumed[-1]


@dataclasses.dataclass(frozen=True)
class ReplicaContext:
    """One replica of a step.

    Attributes:
        strategy: the strategy that runs the step.
        replica_id_in_sync_group: this replica's index: an int eagerly, a scalar int32 tracer in a
            compiled step, which all replicas share.
        group: the eager replica's side of its group, or None in a compiled step.
        example_sizes: examples that each replica holds in this step, or None where the function
            was not given a per-replica batch.
        local_examples: those of this replica.
        gathers: what replicas bring to the meetings of a compiled step.
        loss_rule: "sum" (own loops: the losses of the replicas add up to the global one) or "mean"
            (fit: their mean, weighted by examples, is the global one).
    """

    strategy: Any
    replica_id_in_sync_group: Any
    group: Any = None
    example_sizes: tuple[int, ...] | None = None
    local_examples: int | None = None
    loss_rule: Literal["sum", "mean"] = "sum"
    gathers: GatherLog | None = None

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas take part in the step."""
        return self.strategy.num_replicas_in_sync

    @property
    def global_examples(self) -> int | None:
        """Examples of this step over all replicas."""
        return None if self.example_sizes is None else sum(self.example_sizes)

    @property
    def share(self) -> float:
        """This replica's part of the step's examples; 1/N where they are equal or unknown."""
        if self.example_sizes is None or not sum(self.example_sizes):
            return 1 / self.num_replicas_in_sync
        return (self.local_examples or 0) / sum(self.example_sizes)

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any, options: Any = None) -> Any:
        """Reduces `value` over the replicas; every replica gets the result.

        Args:
            reduce_op: SUM or MEAN, as member or string.
            value: nest of arrays, per replica, of one structure and shape on all replicas, or of
                `IndexedSlices`, whose rows are collected from all replicas.
            options: accepted and ignored (XLA chooses the algorithm).

        Returns:
            The nest of results, differentiable. The mean of integers is a float.

        Semantics:
            tf.distribute.ReplicaContext.all_reduce, except that the reduction is always over N
            values, also when all replicas pass the same object.
        """
        op = ReduceOp.parse(reduce_op)
        num_replicas = self.num_replicas_in_sync

        def reduce_leaf(leaf: Any) -> Any:
            if isinstance(leaf, IndexedSlices):
                return self._all_slices(op, leaf)
            array = _array(leaf)
            if num_replicas == 1:
                return array
            total = meeting.balanced(self, meeting.all_reduce, array)
            return total / num_replicas if op is ReduceOp.MEAN else total

        return _map(reduce_leaf, value)

    def _all_slices(self, op: ReduceOp, slices: IndexedSlices) -> IndexedSlices:
        """The slices of all replicas; rows that several replicas have occur several times."""
        values = self.all_gather(slices.values, axis=0)
        if op is ReduceOp.MEAN and self.num_replicas_in_sync > 1:
            values = values / self.num_replicas_in_sync
        return IndexedSlices(values, self.all_gather(slices.indices, axis=0), slices.dense_shape)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Concatenates `value` over the replicas along `axis`; every replica gets the result.

        Args:
            value: nest of arrays, per replica, equal in all dims but `axis`.
            axis: the dim to concatenate along.
            options: accepted and ignored.

        Raises:
            InvalidArgument: a scalar, or an axis that the value does not have.
            Unsupported: `IndexedSlices`.
        """

        def gather_leaf(leaf: Any) -> Any:
            refuse_slices(leaf)
            array = _array(leaf)
            place = _axis_of(array, axis)
            if self.num_replicas_in_sync == 1:
                return array
            extents = self._extents(array, place)
            return meeting.balanced(self, lambda x: meeting.all_gather(x, place, extents), array)

        return _map(gather_leaf, value)

    def _extents(self, array: Any, axis: int) -> tuple[int, ...]:
        if self.group is not None:
            shapes = self.group.exchange(tuple(array.shape))
            rest = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
            if len(rest) > 1:
                raise InvalidArgument(
                    "Gathered values must agree in rank and in all dims but the gathered one. "
                    f"Received: shapes {shapes} with axis={axis}."
                )
            return tuple(shape[axis] for shape in shapes)
        extent = array.shape[axis]
        if self.example_sizes is not None and extent == self.local_examples:
            likely = self.example_sizes
        else:
            likely = (extent,) * self.num_replicas_in_sync
        return likely if self.gathers is None else self.gathers.of_all(extent, likely)

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls `merge_fn(strategy, *args, **kwargs)` once, across replicas, with merged arguments.

        Args:
            merge_fn: called in cross-replica context.
            args, kwargs: this replica's arguments; `merge_fn` gets them as per-replica values.

        Returns:
            This replica's part of the result.

        Raises:
            ReplicaMismatch: not all replicas call it.
        """
        return self.strategy._merge(self, merge_fn, tuple(args), dict(kwargs or {}))


def _map(fn: Callable[[Any], Any], nest: Any) -> Any:
    def is_leaf(leaf: Any) -> bool:
        return isinstance(leaf, (keras.Variable, PerReplica, IndexedSlices))

    return jax.tree.map(fn, nest, is_leaf=is_leaf)


def _array(leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        raise InvalidArgument(
            "A collective takes this replica's value. Received: a per-replica value captured from "
            f"outside, {leaf!r}. Pass it to strategy.run through args."
        )
    return leaf.value if isinstance(leaf, keras.Variable) else jnp.asarray(leaf)


def _axis_of(array: Any, axis: int) -> int:
    if array.ndim == 0 or not -array.ndim <= axis < array.ndim:
        raise InvalidArgument(
            "Values are gathered along a dim that they have. Received: a value of shape "
            f"{tuple(array.shape)} with axis={axis}."
        )
    return axis % array.ndim


def get_replica_context() -> ReplicaContext | None:
    """The current replica context, or None across replicas (tf.distribute.get_replica_context).

    Outside every strategy it is the default strategy's.
    """
    frame = context.current()
    if frame is None:
        from paceline.strategies.default import default_strategy  # the default needs this module

        return ReplicaContext(default_strategy(), 0)
    return frame.replica  # pyright: ignore[reportReturnType]
