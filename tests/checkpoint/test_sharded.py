"""A variable in shards is saved as one value, and does not depend on their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import paceline as tf
from message_models import parameter_servers
from paceline.errors import CheckpointError
from paceline.store.partitioners import FixedShardsPartitioner
from paceline.store.sharding import create
from paceline.testing import EXACT, REFERENCE, assert_close
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

    def build(self, input_shape: Any) -> None:
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


# Optimizers ----------------------------------------------------------------------------------


def trainable(num_shards: int) -> list[Any]:
    """A table between two other variables, as an optimizer gets them."""
    table = variable(num_shards, TABLE)
    return [tf.Variable(np.ones(3, "float32")), table, tf.Variable(np.ones((2, 2), "float32"))]


def flat(variables: list[Any]) -> list[Any]:
    return [own for v in variables for own in getattr(v, "variables", [v])]


def step(optimizer: Any, variables: list[Any], seed: int) -> None:
    """One update, with the same gradient of the table in any number of shards."""
    rng = np.random.default_rng(seed)
    gradients = []
    for v in variables:
        gradient = rng.normal(size=v.shape).astype("float32")
        gradients += v.divided(gradient) if hasattr(v, "divided") else [gradient]
    optimizer.apply(gradients, flat(variables))


OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.1, amsgrad=True),
    "momentum": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True),
    "accumulating": lambda: tf.keras.optimizers.RMSprop(0.1, gradient_accumulation_steps=3),
    "scaled": lambda: tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.Adagrad(0.1)),
}


@pytest.mark.contract(107)
@pytest.mark.parametrize("is_built", [True, False], ids=["built", "delayed"])
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("adam", 2, 3),
        ("adam", 3, 2),
        ("adam", 2, 1),
        ("adam", 1, 3),
        ("momentum", 2, 3),
        ("accumulating", 2, 3),
        ("scaled", 2, 3),
    ],
)
def test_training_goes_on_with_another_number_of_shards(
    tmp_path: Path, kind: str, before: int, after: int, is_built: bool
) -> None:
    make = OPTIMIZERS[kind]
    variables, optimizer = trainable(before), make()
    for seed in range(2):
        step(optimizer, variables, seed)
    path = tf.train.Checkpoint(v=variables, optimizer=optimizer).save(tmp_path / "ckpt")
    others, other = trainable(after), make()
    if is_built:
        other.build(flat(others))
    status = tf.train.Checkpoint(v=others, optimizer=other).restore(path)
    for seed in range(2, 5):
        step(optimizer, variables, seed)
        step(other, others, seed)
    status.assert_consumed()
    for v, w in zip(variables, others, strict=True):
        assert_close(np.asarray(w), np.asarray(v), REFERENCE)
    assert int(other.iterations) == int(optimizer.iterations)


@pytest.mark.contract(107)
def test_slots_are_saved_as_those_of_the_whole_table(tmp_path: Path) -> None:
    variables, optimizer = trainable(3), tf.keras.optimizers.Adagrad(0.1)
    step(optimizer, variables, 0)
    path = tf.train.Checkpoint(optimizer=optimizer).save(tmp_path / "ckpt")
    plain = [keras.Variable(np.asarray(v)) for v in trainable(1)]
    other = keras.optimizers.Adagrad(0.1)
    other.build(plain)
    tf.train.Checkpoint(optimizer=other).restore(path).assert_consumed()
    slots = optimizer.variables[2:]
    joined = np.concatenate([np.asarray(slot) for slot in slots[1:4]])
    expected = [np.asarray(slots[0]), joined, np.asarray(slots[4])]
    for slot, values in zip(other.variables[2:], expected, strict=True):
        assert_close(np.asarray(slot), values, EXACT)


@pytest.mark.contract(107)
def test_slots_find_their_shards_in_any_order(tmp_path: Path) -> None:
    old, new = variable(2, TABLE), variable(3, TABLE)
    optimizers = [tf.keras.optimizers.SGD(1.0, momentum=0.5) for _ in range(2)]
    optimizers[0].build(old.variables)
    optimizers[0].apply(old.divided(TABLE), old.variables)
    path = tf.train.Checkpoint(optimizer=optimizers[0]).save(tmp_path / "ckpt")
    optimizers[1].build(new.variables[::-1])
    tf.train.Checkpoint(optimizer=optimizers[1]).restore(path).assert_consumed()
    momentum = [np.asarray(slot) for slot in optimizers[1].variables[2:]]
    assert_close(np.concatenate(momentum[::-1]), -TABLE, EXACT)


@pytest.mark.contract(107)
@pytest.mark.parametrize(("after", "text"), [(3, r"float32\[3, 2\]"), (1, r"float32\[2\]")])
def test_slots_that_are_no_rows_fit_as_many_shards_only(
    tmp_path: Path, after: int, text: str
) -> None:
    def make(num_shards: int) -> tuple[Any, Any]:
        with parameter_servers(1, variable_partitioner=FixedShardsPartitioner(num_shards)).scope():
            layer = tf.keras.layers.Embedding(7, 2)
            layer.build()
        optimizer = keras.optimizers.Adafactor(0.1)  # remembers the mean square of each column
        optimizer.build(layer.trainable_variables)
        return layer, optimizer

    old, optimizer = make(2)
    optimizer.apply(old.embeddings.divided(TABLE), old.trainable_variables)
    path = tf.train.Checkpoint(layer=old, optimizer=optimizer).save(tmp_path / "ckpt")
    new, other = make(2)
    tf.train.Checkpoint(layer=new, optimizer=other).restore(path).assert_consumed()
    for mine, theirs in zip(other.variables, optimizer.variables, strict=True):
        assert_close(mine, np.asarray(theirs), EXACT)
    new, other = make(after)
    start = np.asarray(new.embeddings)
    with pytest.raises(CheckpointError, match=rf"optimizer/c/0: float32\[2, 2\].*{text} here"):
        tf.train.Checkpoint(layer=new, optimizer=other).restore(path)
    assert_close(np.asarray(new.embeddings), start, EXACT)
    tf.train.Checkpoint(layer=new).restore(path).assert_existing_objects_matched()
    assert_close(np.asarray(new.embeddings), np.asarray(old.embeddings), EXACT)


class _Squares(keras.optimizers.SGD):
    """Has for each weight a matrix of its rows, of another shape for each shard."""

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            self.squares = [
                self.add_variable((v.shape[0],) * 2, name=f"square_{i}", initializer="ones")
                for i, v in enumerate(variables)
            ]


@pytest.mark.contract(107)
def test_slots_of_different_shapes_are_saved_one_by_one(tmp_path: Path) -> None:
    def make(num_shards: int) -> Any:
        optimizer = _Squares(0.1)
        optimizer.build(variable(num_shards, TABLE).variables)
        return optimizer

    old, new = make(2), make(2)
    old.squares[1].assign(np.full((3, 3), 2.0))
    path = tf.train.Checkpoint(optimizer=old).save(tmp_path / "ckpt")
    tf.train.Checkpoint(optimizer=new).restore(path).assert_consumed()
    assert_close(np.asarray(new.squares[1]), np.full((3, 3), 2.0, "float32"), EXACT)
    with pytest.raises(CheckpointError, match=r"optimizer/squares/0.0"):
        tf.train.Checkpoint(optimizer=make(3)).restore(path).assert_consumed()


# Keras's layers ------------------------------------------------------------------------------


def model_with_embedding(num_shards: int | None) -> Any:
    """A compiled model; None: by plain Keras, without a strategy."""
    keras.utils.set_random_seed(3)
    k = keras if num_shards is None else tf.keras

    def make() -> Any:
        made = k.Sequential([k.layers.Embedding(7, 2), k.layers.Flatten(), k.layers.Dense(1)])
        made.compile(k.optimizers.Adagrad(0.5), "mse")
        return made

    if num_shards is None:
        return make()
    partitioner = FixedShardsPartitioner(num_shards)
    with parameter_servers(1, variable_partitioner=_of_tables(partitioner)).scope():
        return make()


def _of_tables(partitioner: Any) -> Any:
    def divide(shape: Any, dtype: Any) -> Any:
        return partitioner(shape, dtype) if tuple(shape) == (7, 2) else [1] * len(shape)

    return divide


@pytest.mark.contract(107)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, None), (None, 3)])
@pytest.mark.parametrize("is_built", [True, False], ids=["built", "delayed"])
def test_fit_goes_on_with_another_number_of_shards(
    tmp_path: Path, before: int | None, after: int | None, is_built: bool
) -> None:
    ids = np.random.default_rng(0).integers(0, 7, (24, 3)).astype("int32")
    labels = ids.sum(axis=1, keepdims=True).astype("float32")
    fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
    model, other = model_with_embedding(before), model_with_embedding(after)
    model.fit(ids, labels, **fit)
    path = tf.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    if is_built:
        other.fit(ids, labels, **fit)
    status = tf.train.Checkpoint(model=other).restore(path)
    expected = model.fit(ids, labels, **fit).history["loss"]
    assert_close(np.float32(other.fit(ids, labels, **fit).history["loss"]), np.float32(expected))
    status.assert_consumed()
    assert len(other.layers[0].weights) == (after or 1)
    assert_close(np.asarray(other.layers[0].embeddings), np.asarray(model.layers[0].embeddings))


class _Shards(keras.layers.Layer):
    """Keeps the shards of its table, and not the table."""

    def __init__(self, num_shards: int, start: Any) -> None:
        super().__init__()
        table = variable(num_shards, start)
        self.shards = getattr(table, "variables", [table])
        self.bias = tf.Variable(np.float32(start[0, 0]))


@pytest.mark.contract(107)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_a_list_of_shards_is_saved_as_their_table(tmp_path: Path, before: int, after: int) -> None:
    path = tf.train.Checkpoint(layer=_Shards(before, TABLE + 1)).save(tmp_path / "ckpt")
    new = _Shards(after, np.zeros_like(TABLE))
    tf.train.Checkpoint(layer=new).restore(path).assert_consumed()
    assert_close(np.concatenate([np.asarray(v) for v in new.shards]), TABLE + 1, EXACT)
    assert float(new.bias) == 1
