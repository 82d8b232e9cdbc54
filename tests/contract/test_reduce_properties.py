"""Reductions of any per-replica values equal NumPy's over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline as tf
from paceline.testing import EXACT, REFERENCE, assert_close

# Small integers: their sums are exact in any order.
NUMBERS = st.integers(-50, 50)
ROWS = st.lists(st.lists(NUMBERS, min_size=2, max_size=2), max_size=4)
FEW = settings(max_examples=30, deadline=None)


def per_replica(strategy: Any, parts: list[Any], dtype: str) -> Any:
    def value(context: Any) -> np.ndarray:
        rows = np.array(parts[context.replica_id_in_sync_group], dtype)
        return rows.reshape(-1, 2)

    return strategy.experimental_distribute_values_from_function(value)


@FEW
@given(st.lists(ROWS, min_size=2, max_size=4), st.sampled_from(["float32", "int32"]))
def test_over_examples(parts: list[Any], dtype: str) -> None:
    strategy = tf.distribute.MirroredStrategy([f"cpu:{i}" for i in range(len(parts))])
    value = per_replica(strategy, parts, dtype)
    whole = np.concatenate([np.array(part, dtype).reshape(-1, 2) for part in parts])
    assert_close(strategy.gather(value, axis=0), whole, EXACT)
    assert_close(strategy.reduce("SUM", value, axis=0), whole.sum(axis=0), EXACT)
    assert_close(strategy.reduce("SUM", value, axis=(0, 1)), whole.sum(), EXACT)
    if len(whole):
        assert_close(strategy.reduce("MEAN", value, axis=0), whole.mean(axis=0), REFERENCE)
        assert_close(strategy.reduce("MEAN", value, axis=(0, -1)), whole.mean(), REFERENCE)


@FEW
@given(st.data(), st.integers(2, 4), st.integers(0, 3), st.sampled_from(["float32", "int32"]))
def test_over_replicas(data: Any, num_replicas: int, num_rows: int, dtype: str) -> None:
    row = st.lists(NUMBERS, min_size=2, max_size=2)
    part = st.lists(row, min_size=num_rows, max_size=num_rows)
    parts = data.draw(st.lists(part, min_size=num_replicas, max_size=num_replicas))
    strategy = tf.distribute.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    value = per_replica(strategy, parts, dtype)
    stacked = np.array(parts, dtype).reshape(num_replicas, num_rows, 2)
    assert_close(strategy.reduce("SUM", value, axis=None), stacked.sum(axis=0), EXACT)
    assert_close(strategy.reduce("MEAN", value, axis=None), stacked.mean(axis=0), REFERENCE)
