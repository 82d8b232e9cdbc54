"""Datasets of batches in `fit`, `evaluate` and `predict`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import paceline as tf
from keras_oracle import mirrored
from paceline.errors import InvalidArgument
from paceline.testing import GOLDEN, assert_close

if TYPE_CHECKING:
    from collections.abc import Iterator

X = np.random.default_rng(0).normal(size=(11, 2)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 11, 4)]


class Reiterable:
    """Yields the batches anew for every pass."""

    def __iter__(self) -> Iterator[Any]:
        return iter(BATCHES)


def model_on(strategy: Any) -> Any:
    with strategy.scope():
        dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
        model = tf.keras.Sequential([tf.keras.Input((2,)), dense])
        model.compile("sgd", "mse", metrics=["mae"])
    return model


DATASETS = {
    "array batches": lambda strategy: tf.data.ArrayBatches(X, Y, batch_size=4),
    "re-iterable": lambda strategy: Reiterable(),
    "list of batches": lambda strategy: BATCHES,
    "distributed": lambda strategy: strategy.experimental_distribute_dataset(BATCHES),
    "from a function": lambda strategy: strategy.distribute_datasets_from_function(
        lambda context: [
            (x[part], y[part]) for x, y in BATCHES for part in (slice(2), slice(2, None))
        ]
    ),
}


@pytest.mark.case("R76")
# What Keras says of any data whose length it is not told, here the re-iterable.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("name", DATASETS)
def test_they_train_as_arrays_do(name: str) -> None:
    strategy = mirrored(2)
    expected, actual = model_on(strategy), model_on(strategy)
    dataset = DATASETS[name](strategy)
    history = expected.fit(
        X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, validation_data=(X, Y)
    )
    fed = actual.fit(dataset, epochs=2, verbose=0, validation_data=dataset)
    assert_close(fed.history, history.history, GOLDEN)
    assert_close(actual.get_weights(), expected.get_weights(), GOLDEN)
    assert_close(
        actual.evaluate(dataset, verbose=0),
        expected.evaluate(X, Y, batch_size=4, verbose=0),
        GOLDEN,
    )
    assert_close(actual.predict(dataset, verbose=0), expected.predict(X, verbose=0), GOLDEN)


def test_class_weights_apply() -> None:
    strategy = mirrored(2)
    labels = np.arange(11) % 2
    expected, actual = model_on(strategy), model_on(strategy)
    weight = {0: 1.0, 1: 3.0}
    expected.fit(X, labels, batch_size=4, shuffle=False, class_weight=weight, verbose=0)
    batches = tf.data.ArrayBatches(X, labels, batch_size=4)
    actual.fit(batches, class_weight=weight, verbose=0)
    assert_close(actual.get_weights(), expected.get_weights(), GOLDEN)


def test_endless_data_needs_a_number_of_steps() -> None:
    model = model_on(mirrored(2))
    endless = tf.data.ArrayBatches(X, Y, batch_size=4, repeat=None)
    with pytest.raises(InvalidArgument, match="without an end needs a number of steps"):
        model.fit(endless, verbose=0)
    history = model.fit(endless, steps_per_epoch=5, epochs=2, verbose=0)
    assert len(history.epoch) == 2
    assert model.optimizer.iterations.numpy() == 10
