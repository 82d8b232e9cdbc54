"""The data set that is shipped with the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from paceline.datasets import digits


def test_the_two_parts_hold_all_images_in_keras_form() -> None:
    (x_train, y_train), (x_test, y_test) = digits.load_data()
    assert x_train.shape == (1437, 8, 8)
    assert x_test.shape == (360, 8, 8)
    assert (y_train.shape, y_test.shape) == ((1437,), (360,))
    assert {a.dtype for a in (x_train, y_train, x_test, y_test)} == {np.dtype(np.uint8)}
    images = np.concatenate([x_train, x_test])
    assert (images.min(), images.max()) == (0, 16)
    counts = np.bincount(np.concatenate([y_train, y_test]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_split_is_the_same_on_every_call() -> None:
    (x_train, y_train), (x_test, y_test) = digits.load_data()
    # The file begins with the classes 0 to 9 in order; the first and sixth images are for testing.
    assert y_test[:2].tolist() == [0, 5]
    assert y_train[:8].tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    (x_again, y_again), (x_test_again, y_test_again) = digits.load_data()
    np.testing.assert_array_equal(x_train, x_again)
    np.testing.assert_array_equal(y_train, y_again)
    np.testing.assert_array_equal(x_test, x_test_again)
    np.testing.assert_array_equal(y_test, y_test_again)


def test_the_attribution_is_shipped_beside_the_data() -> None:
    text = (files(digits) / "ATTRIBUTION.txt").read_text()
    assert "10.24432/C50P49" in text
    assert "CC BY 4.0" in text
