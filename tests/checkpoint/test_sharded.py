"""A variable in shards is saved as one value, and does not depend on their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import paceline as tf
from paceline.errors import CheckpointError
from paceline.store.partitioners import FixedShardsPartitioner
from paceline.store.sharding import create
from paceline.testing import EXACT, assert_close
from replica_values import mirrored_strategy

if TYPE_CHECKING:
    from pathlib import Path

TABLE = np.arange(14.0, dtype="float32").reshape(7, 2)


def variable(num_shards: int, value: Any, **options: Any) -> Any:
    return create(FixedShardsPartitioner(num_shards), tf.Variable, value, name="table", **options)


@pytest.mark.contract(107)
@pytest.mark.parametrize(("before", "after"), [(4, 2), (4, 1), (1, 4), (2, 4), (3, 3)])
def test_the_number_of_shards_does_not_matter(tmp_path: Path, before: int, after: int) -> None:
    old, new = variable(before, TABLE), variable(after, np.zeros_like(TABLE))
    path = tf.train.Checkpoint(table=old).save(tmp_path / "there")
    checkpoint = tf.train.Checkpoint(table=new)
    checkpoint.restore(path).assert_consumed()
    assert_close(new, TABLE, EXACT)
    new.assign_add(np.ones_like(TABLE))
    back = checkpoint.save(tmp_path / "back")
    tf.train.Checkpoint(table=old).restore(back).assert_consumed()
    assert_close(old, TABLE + 1, EXACT)


@pytest.mark.contract(107)
def test_it_is_saved_as_one_tensor(tmp_path: Path) -> None:
    path = tf.train.Checkpoint(table=variable(3, TABLE)).save(tmp_path / "ckpt")
    array = tf.train.Checkpoint(table=np.zeros_like(TABLE))
    array.restore(path).assert_consumed()
    assert_close(array.table, TABLE, EXACT)


@pytest.mark.contract(107)
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (1, 2), (2, 1)])
def test_values_restored_before_the_variable_exists(
    tmp_path: Path, before: int, after: int
) -> None:
    path = tf.train.Checkpoint(table=variable(before, TABLE), step=3).save(tmp_path / "ckpt")
    checkpoint = tf.train.Checkpoint(step=0)
    status = checkpoint.restore(path)
    assert checkpoint.step == 3
    checkpoint.table = variable(after, np.zeros_like(TABLE))
    assert_close(checkpoint.table, TABLE, EXACT)
    status.assert_consumed()


class _Lookup(keras.layers.Layer):
    """Makes its table when it is built, and keeps a list of the shards besides."""

    def __init__(self, num_shards: int) -> None:
        super().__init__()
        self.num_shards = num_shards

    def build(self, shape: Any) -> None:
        self.table = variable(self.num_shards, np.zeros_like(TABLE))
        self.weights_of_table = getattr(self.table, "variables", [self.table])

    def call(self, ids: Any) -> Any:
        return tf.nn.embedding_lookup(self.table, ids)


@pytest.mark.contract(107)
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (2, 1), (1, 2)])
def test_layers_get_the_values_when_they_are_built(tmp_path: Path, before: int, after: int) -> None:
    ids = np.array([0, 6, 3])
    old, new = _Lookup(before), _Lookup(after)
    old(ids)
    old.table.assign(TABLE)
    path = tf.train.Checkpoint(model=old).save(tmp_path / "ckpt")
    status = tf.train.Checkpoint(model=new).restore(path)
    assert_close(new(ids), TABLE[ids], EXACT)
    status.assert_consumed()
    tf.train.Checkpoint(model=old).restore(path).assert_consumed()


@pytest.mark.contract(107)
def test_another_shape_is_refused_and_nothing_restored(tmp_path: Path) -> None:
    path = tf.train.Checkpoint(table=variable(2, TABLE), step=1).save(tmp_path / "ckpt")
    new = variable(2, np.zeros((6, 2), "float32"))
    checkpoint = tf.train.Checkpoint(table=new, step=0)
    with pytest.raises(CheckpointError, match=r"table: float32\[7, 2\] in the .*float32\[6, 2\]"):
        checkpoint.restore(path)
    assert checkpoint.step == 0
    assert_close(new, np.zeros((6, 2)), EXACT)


@pytest.mark.contract(107)
@pytest.mark.parametrize("synchronization", ["on_write", "on_read"])
def test_shards_with_copies(tmp_path: Path, synchronization: str) -> None:
    declared = {"aggregation": "sum", "synchronization": synchronization}
    with mirrored_strategy(2).scope():
        old = variable(2, np.zeros_like(TABLE), **declared)
    old.assign(TABLE)
    path = tf.train.Checkpoint(table=old).save(tmp_path / "ckpt")
    with mirrored_strategy(3).scope():
        new = variable(3, np.zeros_like(TABLE), **declared)
    tf.train.Checkpoint(table=new).restore(path).assert_consumed()
    assert_close(new, TABLE)


@pytest.mark.contract(107)
def test_optimizers_of_as_many_shards_get_their_slots(tmp_path: Path) -> None:
    def make() -> Any:
        table = variable(2, TABLE)
        optimizer = tf.keras.optimizers.Adam(0.1)
        optimizer.build(table.variables)
        return table, optimizer

    old, optimizer = make()
    optimizer.apply([np.ones((4, 2), "float32"), np.ones((3, 2), "float32")], old.variables)
    path = tf.train.Checkpoint(table=old, optimizer=optimizer).save(tmp_path / "ckpt")
    new, other = make()
    tf.train.Checkpoint(table=new, optimizer=other).restore(path).assert_consumed()
    for mine, theirs in zip(other.variables, optimizer.variables, strict=True):
        assert_close(mine, np.asarray(theirs), EXACT)
