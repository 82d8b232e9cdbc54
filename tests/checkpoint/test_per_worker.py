"""Variables with a copy per worker: all copies are saved, for as many workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import paceline as tf
from message_models import parameter_servers
from paceline.errors import CheckpointError
from paceline.testing import EXACT, assert_close

if TYPE_CHECKING:
    from pathlib import Path


def per_worker(workers: int, value: Any = 0.0, **options: Any) -> Any:
    with parameter_servers(workers).scope():
        return tf.Variable(value, per_worker_variable=True, **options)


def set_copies(variable: Any, values: Any) -> None:
    variable.copies.assign(np.asarray(values, variable.dtype))


@pytest.mark.contract(98)
def test_every_worker_gets_its_copy_back(tmp_path: Path) -> None:
    v = per_worker(3, np.zeros(2, "float32"))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(v.distribute_strategy)
    for _ in range(10):
        coordinator.schedule(lambda: v.assign_add(np.array([1.0, 2.0])))
    coordinator.join()
    counted = np.stack(v.read_all())
    assert counted.sum(axis=0).tolist() == [10, 20]
    checkpoint = tf.train.Checkpoint(counts=v, step=1)
    path = checkpoint.save(tmp_path / "ckpt")
    v.assign(np.zeros(2))
    checkpoint.restore(path).assert_consumed()
    assert_close(np.stack(v.read_all()), counted, EXACT)
    other = per_worker(3, np.zeros(2, "float32"))
    tf.train.Checkpoint(counts=other, step=0).restore(path).assert_consumed()
    assert_close(np.stack(other.read_all()), counted, EXACT)


@pytest.mark.contract(98)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_another_number_of_workers_is_refused(tmp_path: Path, workers: int) -> None:
    v = per_worker(3, np.int32(0))
    set_copies(v, [1, 2, 3])
    path = tf.train.Checkpoint(counts=v, step=5).save(tmp_path / "ckpt")
    other = per_worker(workers, np.int32(7))
    checkpoint = tf.train.Checkpoint(counts=other, step=0)
    with pytest.raises(CheckpointError, match=rf"counts: the copies of 3 workers .* of {workers} "):
        checkpoint.restore(path)
    assert checkpoint.step == 0
    assert [int(copy) for copy in other.read_all()] == [7] * workers


def test_the_copies_can_be_read_as_an_array(tmp_path: Path) -> None:
    """Who wants them with another number of workers decides what they are to mean."""
    v = per_worker(3, np.int32(0))
    set_copies(v, [1, 2, 3])
    path = tf.train.Checkpoint(counts=v).save(tmp_path / "ckpt")
    saved = tf.train.Checkpoint(counts=np.zeros(3, "int32"))
    saved.restore(path).assert_consumed()
    assert saved.counts.tolist() == [1, 2, 3]


@pytest.mark.parametrize("value", [np.float32(0), np.zeros(2, "int32"), np.zeros((3, 2), "int32")])
def test_another_shape_or_dtype_is_refused(tmp_path: Path, value: Any) -> None:
    path = tf.train.Checkpoint(v=per_worker(2, np.int32(0))).save(tmp_path / "ckpt")
    other = per_worker(2, value)
    with pytest.raises(CheckpointError, match=r"v: int32\[2\] in the checkpoint, .* here"):
        tf.train.Checkpoint(v=other).restore(path)


class _Counting(keras.layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.counts = tf.Variable(0.0, per_worker_variable=True)

    def call(self, x: Any) -> Any:
        return x


def test_layers_get_their_copies_when_they_are_built(tmp_path: Path) -> None:
    strategy = parameter_servers(2)

    def build(layer: Any) -> Any:
        with strategy.scope():
            layer.build((1,))
        return layer

    old, new = build(_Counting()), _Counting()
    set_copies(old.counts, [1.0, 2.0])
    path = tf.train.Checkpoint(layer=old).save(tmp_path / "ckpt")
    status = tf.train.Checkpoint(layer=new).restore(path)
    build(new)
    assert [float(copy) for copy in new.counts.read_all()] == [1, 2]
    status.assert_consumed()


@pytest.mark.contract(83)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
@pytest.mark.parametrize(("aggregation", "value"), [("sum", 6.0), ("mean", 6.0)])
def test_on_read_variables_have_one_value_for_any_number_of_workers(
    tmp_path: Path, before: int, after: int, aggregation: str, value: float
) -> None:
    def make(workers: int) -> Any:
        with parameter_servers(workers).scope():
            return tf.Variable(0.0, synchronization="on_read", aggregation=aggregation)

    old, new = make(before), make(after)
    old.assign(value)
    path = tf.train.Checkpoint(v=old).save(tmp_path / "ckpt")
    tf.train.Checkpoint(v=new).restore(path).assert_consumed()
    assert float(new.value) == value
    assert len(new.values) == after
