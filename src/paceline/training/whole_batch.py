"""Losses of a batch as a whole: Dice, Tversky, Circle, or a user's function that returns a scalar.

Such a loss is no sum over examples, so the replicas' values have no combination that gives the one
of the global batch. Every replica gathers the predictions and targets of all and computes the loss
of the global batch; the gradient reaches each replica's own rows through the gather.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras.src import backend

if TYPE_CHECKING:
    from collections.abc import Callable

# It gives a value per example, each of which depends on all examples.
_PAIRWISE = (keras.losses.Circle,)


def is_of_whole_batch(loss: Any, values: Any) -> bool:
    """Whether `loss`, which gave `values` for the local examples, is no sum over examples."""
    return jnp.ndim(values) == 0 or isinstance(loss, _PAIRWISE)


def a_row(loss: Any, y_true: Any, y_pred: Any) -> Any:
    """What `loss` gives for one example, as shapes: it may not be able to take none."""

    def one(x: Any) -> Any:
        return jax.ShapeDtypeStruct((1, *jnp.shape(x)[1:]), jnp.asarray(x).dtype)

    shapes: Any = keras.tree.map_structure(one, (y_true, y_pred))
    return jax.eval_shape(loss.call, *shapes)


def on_whole_batch(
    call: Callable[[Any, Any, Any], Any],
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    replica: Any,
) -> Any:
    """Returns the loss of the global batch, as the replica's contribution.

    Args:
        call: the loss, of targets, predictions and weights of the global batch.
        y_true, y_pred, sample_weight: nests of arrays `[local batch, ...]`; weights may be None.
        replica: the replica context.

    Returns:
        A scalar, or for a loss without reduction the values of the replica's own examples.
    """
    everywhere = keras.tree.map_structure(lambda x: replica.all_gather(x, axis=0), y_pred)
    mask = backend.get_keras_mask(y_pred)
    if mask is not None:
        backend.set_keras_mask(everywhere, replica.all_gather(mask, axis=0))
    targets = keras.tree.map_structure(lambda x: replica.all_gather(x, axis=0), y_true)
    weights = None if sample_weight is None else replica.all_gather(sample_weight, axis=0)
    value = call(targets, everywhere, weights)
    if jnp.ndim(value):
        return _own_rows(value, replica)
    return value / replica.num_replicas_in_sync if replica.loss_rule == "sum" else value


def _own_rows(values: Any, replica: Any) -> Any:
    count = replica.num_replicas_in_sync
    sizes = replica.example_sizes or (values.shape[0] // count,) * count
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype("int32")
    start = jnp.asarray(starts)[replica.replica_id_in_sync_group]
    own = replica.local_examples if replica.example_sizes else sizes[0]
    return jax.lax.dynamic_slice_in_dim(values, start, own)
