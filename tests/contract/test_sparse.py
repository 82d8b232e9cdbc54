"""Sparse rows over replicas."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.errors import Unsupported


def rows() -> tf.IndexedSlices:
    """Rows 0 and 1 on the first replica, 0 and 2 on the second; every value is 1."""
    index = jnp.asarray(tf.distribute.get_replica_context().replica_id_in_sync_group, jnp.int32)
    return tf.IndexedSlices(jnp.ones((2, 1)), jnp.stack([0 * index, 1 + index]), (3, 1))


def dense(slices: Any) -> list[float]:
    whole = np.zeros(slices.dense_shape, "float32")
    np.add.at(whole, np.asarray(slices.indices), np.asarray(slices.values))
    return whole[:, 0].tolist()


@pytest.mark.case("R32")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("op", "expected"), [("SUM", [2, 1, 1]), ("MEAN", [1, 0.5, 0.5])])
def test_rows_are_reduced_by_row(op: str, expected: list[float], compiled: bool) -> None:
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica() -> tuple[Any, Any]:
        return rows(), tf.distribute.get_replica_context().all_reduce(op, rows())

    own, everywhere = strategy.run(tf.function(replica) if compiled else replica)
    assert dense(strategy.reduce(op, own, axis=None)) == expected
    for part in strategy.experimental_local_results(everywhere):
        assert dense(part) == expected


def test_rows_are_not_gathered() -> None:
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    with pytest.raises(Unsupported, match="IndexedSlices cannot be gathered"):
        strategy.run(lambda: tf.distribute.get_replica_context().all_gather(rows(), axis=0))
    with pytest.raises(Unsupported, match="IndexedSlices cannot be gathered"):
        strategy.gather(strategy.run(rows), axis=0)
