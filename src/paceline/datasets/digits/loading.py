"""Reads the digits from the package's own files."""

from __future__ import annotations

from importlib.resources import files
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Split: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.uint8]]

FILE = files("paceline.datasets.digits") / "digits.npz"
TEST_EVERY = 5


def load_data() -> tuple[Split, Split]:
    """Loads the UCI 8x8 digits, in the form of `keras.datasets.mnist.load_data`.

    The images are shipped with Paceline, so nothing is downloaded. Every fifth image, beginning
    with the first, belongs to the test part: 1,437 images to train on and 360 to test with, the
    same ones on every call. Both parts hold images of the same 13 writers, so the accuracy on the
    test part says little about the handwriting of others.

    Returns:
        `(x_train, y_train), (x_test, y_test)`: images of shape `[examples, 8, 8]` with values
        from 0 to 16, and labels of shape `[examples]` with values from 0 to 9, all of dtype uint8.

    Example:
        ```python
        (x_train, y_train), (x_test, y_test) = paceline.datasets.digits.load_data()
        x_train, x_test = x_train / 16.0, x_test / 16.0
        ```

    The data set is "Optical Recognition of Handwritten Digits" of the UCI Machine Learning
    Repository (https://doi.org/10.24432/C50P49), licensed under CC BY 4.0; `ATTRIBUTION.txt`
    beside this file has the details.
    """
    with FILE.open("rb") as file, np.load(file) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    test = np.arange(len(labels)) % TEST_EVERY == 0
    return (images[~test], labels[~test]), (images[test], labels[test])
