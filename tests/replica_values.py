"""What replicas hold and returned, as plain numbers, and numbers that differ between replicas."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import paceline as tf


def mirrored_strategy(num_replicas: int) -> Any:
    """A MirroredStrategy over the first CPU devices."""
    return tf.distribute.MirroredStrategy(jax.devices("cpu")[:num_replicas])


def components(variable: Any) -> list[Any]:
    """The variable's copies as (nested lists of) numbers, in replica order."""
    return [np.asarray(value).tolist() for value in variable.values]


def per_replica(strategy: Any, result: Any) -> list[Any]:
    """What each replica returned, as (nested lists of) numbers, in replica order."""
    values = strategy.experimental_local_results(result)
    is_shared = len(values) == 1 and strategy.num_replicas_in_sync > 1
    if is_shared:
        values = values * strategy.num_replicas_in_sync
    return [np.asarray(value).tolist() for value in values]


def replica_number(dtype: Any = jnp.float32) -> Any:
    """The index of the replica that asks, as an array."""
    return jnp.asarray(tf.distribute.get_replica_context().replica_id_in_sync_group, dtype)


def one_per_replica(values: list[Any], dtype: Any = jnp.float32) -> Any:
    """`values[i]` on replica i, as an array, also where the replica's index is traced."""
    return jnp.asarray(values, dtype)[replica_number(jnp.int32)]


def distributed(strategy: Any, *values: Any) -> Any:
    """The distributed value with `values[i]` on replica i, as an array."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(values[context.replica_id_in_sync_group])
    )
