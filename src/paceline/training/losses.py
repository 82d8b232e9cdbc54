"""Keras's losses with a divisor that counts the global batch.

Inside a replica, a loss that averages divides by the number of elements (or the sum of weights, or
the number of unmasked entries) over *all* replicas, so short, uneven and empty replica batches give
the single-device result. Under the rule "sum" (own loops) the replicas' values add up to the loss
of the global batch; under "mean" (fit) their mean, weighted with the replicas' shares, is it.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras.src import backend
from keras.src.losses import loss as keras_loss

from paceline.program import context, meeting
from paceline.training.twins import Mixin, become_twin, twin
from paceline.training.whole_batch import a_row, is_of_whole_batch, on_whole_batch


class CountsGlobally(Mixin):
    """Mixin over a `keras.losses.Loss`.

    Semantics:
        TensorFlow scales a local mean with 1/N, which weighs short batches wrongly, and leaves
        scalars and `sum` losses alone. Here a loss that reduces the batch by itself (Dice, or a
        user's function that returns a scalar) is computed on the examples of all replicas.
    """

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Returns the loss, reduced (keras.losses.Loss.__call__)."""
        replica = context.replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return super().__call__(y_true, y_pred, sample_weight)
        plainly = super().__call__
        if replica.local_examples == 0 and is_of_whole_batch(self, a_row(self, y_true, y_pred)):
            return on_whole_batch(plainly, y_true, y_pred, sample_weight, replica)
        if _has_own_call(type(self)):
            losses = plainly(y_true, y_pred, sample_weight)
        else:
            with keras.name_scope(self.name):
                losses, weights, mask = self._elements(y_true, y_pred, sample_weight)
                if not is_of_whole_batch(self, losses):
                    return _reduced(losses, weights, mask, self.reduction, replica)
        if not is_of_whole_batch(self, losses):
            return losses
        return on_whole_batch(plainly, y_true, y_pred, sample_weight, replica)

    def _elements(self, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """The losses before reduction, the weights and the mask, as Keras makes them."""
        dtype = self.dtype
        in_mask = backend.get_keras_mask(y_pred)

        def converted(value: Any) -> Any:
            return keras.ops.convert_to_tensor(value, dtype=dtype)

        y_true = keras.tree.map_structure(converted, y_true)
        y_pred = keras.tree.map_structure(converted, y_pred)
        losses = self.call(y_true, y_pred)
        masks = [m for m in (in_mask, backend.get_keras_mask(losses)) if m is not None]
        mask = masks[0] & masks[1] if len(masks) == 2 else (masks[0] if masks else None)
        weights = None if sample_weight is None else converted(sample_weight)
        return converted(losses), weights, mask


def distributed(cls: type) -> type:
    """Returns the loss class `cls` extended to count globally."""
    return twin(CountsGlobally, cls)


def adopt_loss(loss: Any) -> None:
    """Makes a Keras loss count globally, in place."""
    become_twin(loss, CountsGlobally)


def _has_own_call(cls: type) -> bool:
    """Whether a user's class replaces `__call__`, and with it the reduction."""
    bases = cls.__mro__[cls.__mro__.index(CountsGlobally) + 1 :]
    first = next(base for base in bases if "__call__" in base.__dict__)
    return first is not keras.losses.Loss


def _reduced(losses: Any, weights: Any, mask: Any, reduction: Any, replica: Any) -> Any:
    mask = None if mask is None else jnp.asarray(mask, losses.dtype)
    # Keras scales a mask with total/valid so that its later division by the total is right; here
    # the valid entries are counted over all replicas instead.
    combined: Any = keras_loss.apply_mask(weights, mask, losses.dtype, reduction="sum")
    if combined is not None:
        losses, combined = keras_loss.squeeze_or_expand_to_same_rank(losses, combined)
        losses = losses * combined
    if reduction in (None, "none"):
        return losses
    total = jnp.sum(losses)
    if reduction == "sum":
        return _per_share(total, replica)
    if reduction == "mean_with_sample_weight" and combined is not None:
        divisor = meeting.all_reduce(jnp.sum(combined, dtype=jnp.float32))
    elif mask is not None:
        valid = meeting.all_reduce(jnp.sum(mask, dtype=jnp.float32))
        divisor = valid * math.prod(losses.shape[1:]) / math.prod(mask.shape[1:])
    else:
        return _mean(total, losses, replica)
    return _per_share(_divide(total, divisor), replica)


def _mean(total: Any, losses: Any, replica: Any) -> Any:
    """The sum divided by the number of losses over all replicas, as the replica's contribution."""
    count = _global_count(losses, replica)
    if replica.loss_rule == "mean" and not isinstance(count, jax.Array):
        return total / max(losses.size, 1)  # the local mean: its share is count / global count
    return _per_share(_divide(total, count), replica)


def _global_count(losses: Any, replica: Any) -> Any:
    """The number of losses over all replicas: a number where every replica can tell, else counted.

    All replicas must decide alike, so an empty one, which cannot tell, makes all of them count.
    """
    sizes: tuple[int, ...] | None = replica.example_sizes
    if replica.group is None:
        if sizes is None:
            return losses.size * replica.num_replicas_in_sync  # one trace: all replicas are alike
        if min(sizes) > 0 and losses.shape[0] == replica.local_examples:
            return math.prod(losses.shape[1:]) * sum(sizes)
    return meeting.all_reduce(jnp.asarray(losses.size, jnp.int32))


def _per_share(part: Any, replica: Any) -> Any:
    """A part of a sum over replicas, as the contribution that the loss rule asks for."""
    if _is_sum(replica):
        return part
    # Times 0, which keeps the gradient's path: it meets the other replicas where layers gather.
    return part / replica.share if replica.share else part * 0


def _is_sum(replica: Any) -> bool:
    return replica.loss_rule == "sum"


def _divide(total: Any, divisor: Any) -> Any:
    return keras.ops.divide_no_nan(total, jnp.asarray(divisor, total.dtype))
