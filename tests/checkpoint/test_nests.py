"""Any nest of what a checkpoint can hold comes back as it was."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.extra.numpy as arrays
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import strategies

import paceline as tf
from paceline.checkpoint.tree import state_of
from paceline.errors import CheckpointError
from paceline.testing import EXACT, assert_close

numbers = (
    strategies.booleans()
    | strategies.integers(-(2**63), 2**63 - 1)
    | strategies.floats(allow_nan=False)
    | strategies.complex_numbers(allow_nan=False)
)
numpy_arrays = arrays.arrays(
    strategies.sampled_from([np.float32, np.int64, np.bool_, np.uint8, np.complex64]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    elements={"allow_nan": False},
)
variables = strategies.lists(strategies.integers(-9, 9), max_size=3).map(
    lambda values: tf.Variable(np.array(values, "float32"))
)
leaves = numbers | numpy_arrays | numpy_arrays.map(jnp.asarray) | variables | strategies.none()
nests = strategies.recursive(
    leaves,
    lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(strategies.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def emptied(nest: Any) -> Any:
    """The same nest with other values."""
    if isinstance(nest, dict):
        return {key: emptied(value) for key, value in nest.items()}
    if isinstance(nest, list):
        return [emptied(value) for value in nest]
    if isinstance(nest, keras.Variable):
        return tf.Variable(np.zeros(nest.shape, "float32"))
    if isinstance(nest, jnp.ndarray | np.ndarray):
        return jnp.zeros_like(nest) if isinstance(nest, jnp.ndarray) else np.zeros_like(nest)
    return None if nest is None else type(nest)(0)


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(strategies.dictionaries(strategies.text(max_size=3), nests, max_size=3))
def test_a_nest_comes_back(nest: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(nest=nest).write(Path(folder) / "saved")
        other = tf.train.Checkpoint(nest=emptied(nest))
        other.restore(path, strict=True).assert_consumed()
    check_equal(other.nest, nest)


def check_equal(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict | list):
        assert type(actual) is type(expected)
        assert len(actual) == len(expected)
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            check_equal(actual[key], expected[key])
        return
    assert type(actual) is type(expected)
    if expected is not None:
        assert_close(actual, np.asarray(expected), EXACT)


def test_numbers_and_arrays_are_replaced_where_they_are_held(tmp_path: Path) -> None:
    array, items = np.arange(3), {"losses": [0.5, np.float32(2)], "best": jnp.ones(2)}
    checkpoint = tf.train.Checkpoint(step=3, array=array, items=items)
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.step, items["losses"][0], items["best"] = 0, 0.0, jnp.zeros(2)
    checkpoint.array = array * 0
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.step == 3
    assert items["losses"] == [0.5, 2]
    assert isinstance(items["losses"][1], np.float32)
    assert np.asarray(items["best"]).tolist() == [1, 1]
    assert checkpoint.array.tolist() == [0, 1, 2]
    checkpoint.array[0] = 5  # a restored array can be written to


def test_a_number_may_change_its_kind(tmp_path: Path) -> None:
    path = tf.train.Checkpoint(best=0.25).save(tmp_path / "ckpt")
    checkpoint = tf.train.Checkpoint(best=0)
    checkpoint.restore(path)
    assert checkpoint.best == 0.25
    pair = tf.train.Checkpoint(best=np.array([1, 2])).save(tmp_path / "pair")
    with pytest.raises(CheckpointError, match=r"int64\[2\] in the checkpoint, a number here"):
        checkpoint.restore(pair)


def test_a_root_and_other_checkpoints(tmp_path: Path) -> None:
    inner = tf.train.Checkpoint(v=tf.Variable(1.0))
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    checkpoint = tf.train.Checkpoint(model, inner=inner, step=1)
    assert set(state_of("", checkpoint).leaves) == {
        "layers/0/kernel",
        "layers/0/bias",
        "inner/v",
        "step",
    }
    path = checkpoint.save(tmp_path / "ckpt")
    inner.v.assign(0.0)
    checkpoint.restore(path).assert_consumed()
    assert float(inner.v.value) == 1


def test_what_is_reached_twice_is_stored_once_and_found_by_either_name(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(4)
    both = tf.train.Checkpoint(model=model, optimizer=model.optimizer, layer=model.layers[0])
    saved = set(state_of("", both).leaves)
    assert not any(name.startswith(("optimizer", "layer/")) for name in saved)
    path = both.save(tmp_path / "ckpt")

    optimizer, layer = keras.optimizers.Adam(), keras.layers.Dense(1)
    layer.build((None, 2))
    optimizer.build(layer.trainable_variables)
    status = tf.train.Checkpoint(layer=layer, optimizer=optimizer).restore(path)
    status.assert_existing_objects_matched()
    assert int(optimizer.iterations) == 4
    assert_close(layer.get_weights(), model.get_weights(), EXACT)


def test_attributes_of_every_kind_are_found(tmp_path: Path) -> None:
    class Odd(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.one = keras.Variable(1.0)
            self._one = keras.Variable(2.0)
            self.many = {"a/b": [keras.Variable(3.0)], "c": (keras.Variable(4.0),)}
            self.layers_set = {keras.layers.Dense(1)}
            self.seeds = keras.random.SeedGenerator(5)
            self.metric = keras.metrics.Mean()
            self.note = "config"

    layer = Odd()
    next(iter(layer.layers_set)).build((None, 1))
    names = set(state_of("odd", layer).leaves)
    assert names == {
        "odd/one",
        "odd/_one",
        "odd/many/a%2Fb/0",
        "odd/many/c/0",
        "odd/_layers/0/kernel",
        "odd/_layers/0/bias",
        "odd/seeds/state",
        "odd/metric/total",
        "odd/metric/count",
    }
    held = {id(leaf.variable) for leaf in state_of("odd", layer).leaves.values()}
    assert {id(variable) for variable in layer.variables} <= held
