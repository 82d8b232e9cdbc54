"""`tf.nn`'s helpers for a loop of one's own: losses to scale, rows of sharded tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras

from paceline.errors import ContextError, InvalidArgument
from paceline.program import context
from paceline.program.scope import is_traced
from paceline.strategies.replica_context import get_replica_context
from paceline.variables.rows import lookup
from paceline.variables.sharded import ShardedVariable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.strategies.replica_context import ReplicaContext

__all__ = ["compute_average_loss", "embedding_lookup", "scale_regularization_loss"]


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> Any:
    """Returns this replica's part of the mean loss over the global batch.

    The sum of the parts over the replicas is the mean, so the gradients of the parts are summed.

    Args:
        per_example_loss: array `[local batch, ...]`, this replica's losses. All dims are summed:
            average a loss per pixel or token over its own dims first, or pass their number in
            `global_batch_size`.
        sample_weight: array `[local batch]`, or of any shape that broadcasts from the left.
        global_batch_size: the divisor, a number. Default: the examples over all replicas.

    Returns:
        A scalar; 0 where there are no examples.

    Raises:
        InvalidArgument: a scalar loss, weights of another shape, a negative divisor.
        ContextError: called across replicas without `global_batch_size`.

    Semantics:
        tf.nn.compute_average_loss. The default divisor is the true number of examples of the
        step, also when the replicas hold different numbers of them or none (TensorFlow takes the
        local number times the number of replicas).
    """
    losses = _floating(per_example_loss)
    if losses.ndim == 0:
        raise InvalidArgument(
            "The loss is given per example, with the batch as first dim. Received: "
            f"per_example_loss={per_example_loss!r}, a scalar. Leave out the mean over the batch "
            "(reduction=None in a Keras loss)."
        )
    if sample_weight is not None:
        losses = losses * _aligned(sample_weight, losses)
    replica = context.replica_context()
    if global_batch_size is None:
        divisor = _global_size(losses.shape[0], _replica("compute_average_loss"))
    else:
        divisor = _checked(global_batch_size)
    return _as_part(_divide(jnp.sum(losses), divisor), replica)


def embedding_lookup(params: Any, ids: Any, max_norm: float | None = None, name: Any = None) -> Any:
    """Looks up rows of a table that may lie in shards, without putting it together.

    Args:
        params: the table, an array or variable `[row, ...]`; or its shards one after the other, a
            sharded variable or a list of arrays or variables.
        ids: integers of any shape.
        max_norm: rows of a larger Euclidean norm are scaled down to it.
        name: accepted for tf.nn's signature.

    Returns:
        Array `[*ids.shape, ...]`. Traced ids that are out of range give zeros.

    Raises:
        InvalidArgument: an empty list; ids that are not integers, or known ones out of range.

    Semantics:
        tf.nn.embedding_lookup. Deviation: the shards may be of any sizes.
    """
    parts = params if isinstance(params, (list, tuple)) else [params]
    parts = [shard for part in parts for shard in _shards(part)]
    if not parts:
        raise InvalidArgument(
            "Rows are looked up in a table. Received: params=[]. Pass an array, a variable or the "
            "list of its shards."
        )
    rows = lookup(parts, ids, getattr(params, "name", "params"))
    if max_norm is None:
        return rows
    dims = tuple(range(rows.ndim - parts[0].ndim + 1, rows.ndim))
    # Of a row of zeros the norm has no gradient, so its square is kept away from zero.
    squares = jnp.sum(rows * rows, axis=dims, keepdims=True)
    is_large = squares > max_norm**2
    return jnp.where(
        is_large, rows * (max_norm * jax.lax.rsqrt(jnp.where(is_large, squares, 1))), rows
    )


def _shards(table: Any) -> Sequence[Any]:
    if isinstance(table, ShardedVariable):
        return table.variables
    return [table if isinstance(table, keras.Variable) else jnp.asarray(table)]


def scale_regularization_loss(regularization_loss: Any) -> Any:
    """Returns this replica's part of a loss that all replicas compute alike, such as a regulariser.

    Args:
        regularization_loss: array of any shape, or a list of scalars; it is summed.

    Returns:
        The sum divided by the number of replicas, a scalar.

    Raises:
        ContextError: called across replicas.

    Semantics:
        tf.nn.scale_regularization_loss.
    """
    replica = _replica("scale_regularization_loss")
    part = jnp.sum(_floating(regularization_loss)) / replica.num_replicas_in_sync
    # In fit the losses are averaged with the replicas' shares, which add up to 1.
    is_mean = replica.loss_rule == "mean"
    return part * replica.num_replicas_in_sync if is_mean else part


def _replica(what: str) -> ReplicaContext:
    replica = get_replica_context()
    if replica is None:
        raise ContextError(
            f"`{what}` computes one replica's part and needs replica context. Received: a call in "
            "cross-replica context. Call it from the function given to strategy.run"
            + ("." if what.startswith("scale") else ", or pass `global_batch_size`.")
        )
    return replica


def _global_size(local_size: int, replica: ReplicaContext) -> Any:
    """The number of losses over all replicas, of which this one holds `local_size`."""
    sizes = replica.example_sizes
    if sizes is not None and local_size == replica.local_examples:
        return sum(sizes)
    is_uneven = sizes is not None and len(set(sizes)) > 1
    if replica.num_replicas_in_sync > 1 and (is_uneven or replica.group is not None):
        # Not one loss per example, or made inside the replica: only the replicas can tell.
        return replica.all_reduce("SUM", jnp.asarray(local_size))
    return local_size * replica.num_replicas_in_sync


def _checked(divisor: Any) -> Any:
    if isinstance(divisor, keras.Variable):
        divisor = divisor.value
    if jnp.ndim(divisor):
        raise InvalidArgument(
            "The global batch size is one number. Received: "
            f"global_batch_size of shape {jnp.shape(divisor)}."
        )
    if not is_traced(divisor) and divisor < 0:
        raise InvalidArgument(
            f"The global batch size cannot be negative. Received: global_batch_size={divisor!r}."
        )
    return divisor


def _divide(total: Any, divisor: Any) -> Any:
    divisor = jnp.asarray(divisor, total.dtype)
    is_empty = divisor == 0
    return jnp.where(is_empty, jnp.zeros_like(total), total / jnp.where(is_empty, 1, divisor))


def _as_part(part: Any, replica: Any) -> Any:
    """The same loss under fit's rule, where the replicas' losses count with their shares."""
    if replica is None or replica.loss_rule == "sum":
        return part
    return part / replica.share if replica.share else jnp.zeros_like(part)


def _floating(value: Any) -> Any:
    array = jnp.asarray(value.value if isinstance(value, keras.Variable) else value)
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return array.astype(keras.config.floatx())


def _aligned(sample_weight: Any, losses: Any) -> Any:
    weights = jnp.asarray(sample_weight, losses.dtype)
    shape = tuple(weights.shape) + (1,) * (losses.ndim - weights.ndim)
    fits = weights.ndim <= losses.ndim and all(
        own in (1, full) for own, full in zip(shape, losses.shape, strict=True)
    )
    if not fits:
        raise InvalidArgument(
            "Sample weights have the shape of the losses or of their first dims. Received: "
            f"sample_weight of shape {tuple(weights.shape)} for losses of shape "
            f"{tuple(losses.shape)}."
        )
    return weights.reshape(shape)
