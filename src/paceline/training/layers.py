"""Layers whose statistics reach over the replicas."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import keras

from paceline.program import context, meeting


class BatchNormalization(keras.layers.BatchNormalization):
    """keras.layers.BatchNormalization with `synchronized=True` on JAX.

    Synchronised, the moments are those of the global batch, weighted by true counts (and masks),
    also when replicas hold different numbers of examples or none. Otherwise every replica uses the
    moments of its own examples, and the moving statistics get their mean, weighted by examples.

    Args:
        *args, **kwargs: as for keras.layers.BatchNormalization.
        synchronized: whether replicas pool their statistics. Elsewhere it makes no difference.

    Semantics:
        TensorFlow pools sums and sums of squares, so a large mean costs digits of the variance.
        Here each replica centres its own examples first, and the replicas combine count, mean and
        sum of squared deviations in one meeting. (Chan, Golub and LeVeque, "Updating formulae and
        a pairwise algorithm for computing sample variances", 1979.)
    """

    def __init__(self, *args: Any, synchronized: bool = False, **kwargs: Any) -> None:
        # Keras refuses synchronized=True on backends other than TensorFlow.
        super().__init__(*args, **kwargs)
        self.synchronized = synchronized

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        replica = context.replica_context()
        if self.synchronized and replica is not None and replica.num_replicas_in_sync > 1:
            return _pooled_moments(inputs, mask, self._reduction_axes, replica)
        is_synchronized, self.synchronized = self.synchronized, False
        try:
            moments: Any = super()._moments(inputs, mask)
            return moments
        finally:
            self.synchronized = is_synchronized


# Saved models name the class that plain Keras has, too.
BatchNormalization.__module__ = "keras.layers"


def _pooled_moments(inputs: Any, mask: Any, axes: Any, replica: Any) -> tuple[Any, Any]:
    """Mean and variance `[channel]` over the examples of all replicas."""
    axes = tuple(axes)
    if mask is None:
        is_valid = None
        size = math.prod(inputs.shape[axis] for axis in axes)
        count = jnp.full(
            [d for i, d in enumerate(inputs.shape) if i not in axes], size, inputs.dtype
        )
    else:
        is_valid = jnp.broadcast_to(jnp.asarray(mask, bool)[..., None], inputs.shape)
        inputs = jnp.where(is_valid, inputs, 0)
        count = jnp.sum(is_valid, axes, dtype=inputs.dtype)
    mean = jnp.sum(inputs, axes) / jnp.maximum(count, 1)
    centred = inputs - jnp.expand_dims(mean, axes)
    centred = centred if is_valid is None else jnp.where(is_valid, centred, 0)
    own = jnp.stack([count, mean, jnp.sum(jnp.square(centred), axes)])
    sizes = (1,) * replica.num_replicas_in_sync
    rows = meeting.balanced(replica, lambda x: meeting.all_gather(x, 0, sizes), own[None])
    counts, means, deviations = jnp.moveaxis(rows, 1, 0)
    total = jnp.sum(counts, 0)
    # Keras divides by the count of a mask plus epsilon.
    divisor = jnp.maximum(total, 1) if mask is None else total + keras.config.epsilon()
    pooled = jnp.sum(counts * means, 0) / divisor
    spread = jnp.sum(deviations + counts * jnp.square(means - pooled), 0)
    return pooled, spread / divisor
