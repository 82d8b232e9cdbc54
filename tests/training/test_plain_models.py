"""Models of plain Keras that are built or compiled in a scope are placed right by themselves."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import NUM_CLASSES, NUM_FEATURES, examples, mirrored
from paceline.testing import REFERENCE, assert_close

LOSS = "sparse_categorical_crossentropy"


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(NUM_CLASSES, activation="softmax")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


def build(kind: str) -> Any:
    keras.utils.set_random_seed(7)
    if kind == "subclassed":
        model = Subclassed()
        model(np.zeros((1, NUM_FEATURES), "float32"))
        return model
    inputs = keras.Input((NUM_FEATURES,))
    layer = keras.layers.Dense(NUM_CLASSES, activation="softmax")
    if kind == "sequential":
        return keras.Sequential([inputs, layer])
    return keras.Model(inputs, layer(inputs))


def compile_(model: Any) -> None:
    model.compile(keras.optimizers.SGD(0.1), LOSS, metrics=["accuracy"])


def fit(model: Any) -> None:
    model.fit(*examples(), batch_size=8, epochs=1, shuffle=False, verbose=0)


@functools.cache
def expected() -> list[np.ndarray]:
    """The weights after the same training without any strategy."""
    model = build("sequential")
    compile_(model)
    fit(model)
    return model.get_weights()


@pytest.mark.parametrize("kind", ["sequential", "functional", "subclassed"])
def test_built_and_compiled_in_the_scope(kind: str) -> None:
    strategy = mirrored(3)
    with strategy.scope():
        model = build(kind)
        compile_(model)
    assert model.distribute_strategy is strategy
    fit(model)
    assert_close(model.get_weights(), expected(), REFERENCE)


@pytest.mark.parametrize("kind", ["sequential", "functional", "subclassed"])
def test_built_in_the_scope(kind: str) -> None:
    strategy = mirrored(3)
    with strategy.scope():
        model = build(kind)
    compile_(model)
    fit(model)
    assert model.distribute_strategy is strategy
    assert_close(model.get_weights(), expected(), REFERENCE)
    x, y = examples()
    assert model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] > 0
    fit(model)
    assert int(model.optimizer.iterations) == 6


def test_compiled_in_the_scope() -> None:
    strategy = mirrored(3)
    model = build("functional")
    with strategy.scope():
        compile_(model)
    fit(model)
    assert model.distribute_strategy is strategy
    assert_close(model.get_weights(), expected(), REFERENCE)


@pytest.mark.parametrize("is_compiled_inside", [True, False])
def test_used_in_the_scope(is_compiled_inside: bool) -> None:
    strategy = mirrored(3)
    with strategy.scope():
        model = build("sequential")
        if is_compiled_inside:
            compile_(model)
    if not is_compiled_inside:
        compile_(model)
    with strategy.scope():
        fit(model)
    assert model.distribute_strategy is strategy
    assert_close(model.get_weights(), expected(), REFERENCE)


def test_the_first_use_may_be_one_batch() -> None:
    strategy = mirrored(3)
    with strategy.scope():
        model = build("sequential")
    compile_(model)
    x, y = examples()
    for start in range(0, len(x), 8):
        model.train_on_batch(x[start : start + 8], y[start : start + 8])
    assert model.distribute_strategy is strategy
    assert_close(model.get_weights(), expected(), REFERENCE)


def test_weights_built_by_the_first_fit() -> None:
    strategy = mirrored(3)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(NUM_CLASSES, activation="softmax")])
        compile_(model)
    fit(model)
    assert {weight.distribute_strategy for weight in model.weights} == {strategy}


def test_a_loaded_model_follows_the_scope(tmp_path: Any) -> None:
    model = build("functional")
    compile_(model)
    model.save(tmp_path / "model.keras")
    strategy = mirrored(3)
    with strategy.scope():
        loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    fit(loaded)
    assert loaded.distribute_strategy is strategy
    assert_close(loaded.get_weights(), expected(), REFERENCE)


def test_other_models_stay_as_they_are() -> None:
    outside = build("sequential")
    compile_(outside)
    with mirrored(3).scope():
        inside = build("functional")
        inside(examples()[0])
    for model, cls in ((outside, keras.Sequential), (inside, type(build("functional")))):
        assert type(model) is cls
    fit(outside)
    assert type(outside) is keras.Sequential
    assert_close(outside.get_weights(), expected(), REFERENCE)


def test_two_strategies_are_named() -> None:
    with mirrored(2).scope():
        model = build("sequential")
    with mirrored(3).scope(), pytest.raises(tf.errors.ContextError, match="Mixing strategies"):
        compile_(model)
