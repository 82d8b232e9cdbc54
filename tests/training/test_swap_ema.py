"""Validating on the moving averages of the weights, which a Keras callback swaps in and out."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import NUM_CLASSES, NUM_FEATURES, examples, mirrored
from paceline.testing import REFERENCE, assert_close


def fitted(k: Any, overwrite_frequency: int | None, swap_on_epoch: bool) -> tuple[Any, Any]:
    """Trains with uneven batches and validates with uneven ones; returns model and history."""
    keras.utils.set_random_seed(7)
    model = k.Sequential(
        [k.Input((NUM_FEATURES,)), k.layers.Dense(NUM_CLASSES, activation="softmax")]
    )
    # Not Adam: it makes a whole step of a gradient that is nothing but rounding.
    optimizer = k.optimizers.SGD(
        0.3, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=overwrite_frequency
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        *examples(20),
        batch_size=8,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=examples(11, seed=5),
        validation_batch_size=4,
        callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch)],
    )
    return model, {name: np.float32(values) for name, values in history.history.items()}


@pytest.mark.parametrize(("swap_on_epoch", "overwrite_frequency"), [(True, None), (False, 2)])
def test_swapped_moving_averages_equal_one_device(
    swap_on_epoch: bool, overwrite_frequency: int | None
) -> None:
    plain, expected = fitted(keras, overwrite_frequency, swap_on_epoch)
    with mirrored(3).scope():
        model, actual = fitted(tf.keras, overwrite_frequency, swap_on_epoch)
    assert_close(actual, expected, REFERENCE)
    assert_close(model.get_weights(), plain.get_weights(), REFERENCE)
    for ours, theirs in zip(model.optimizer.variables, plain.optimizer.variables, strict=True):
        assert_close(ours.numpy(), theirs.numpy(), REFERENCE)
