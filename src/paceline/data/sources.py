"""What can be read as a dataset, and how: anything that yields batches.

Re-iterables (lists, `ArrayBatches`, Grain datasets and loaders, tf.data datasets, PyTorch loaders,
own classes with `__iter__`) are iterated anew for every pass. A Keras `PyDataset` is indexed.
Generators and other iterators can be read once. Nothing of Grain, TensorFlow or PyTorch is
imported: their batches are told by what they can do (`placing.as_array`).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from paceline.data.arrays import ArrayBatches
from paceline.errors import InvalidArgument, InvalidType

INFINITE = -1
UNKNOWN = -2


class Source:
    """A dataset whose batches can be read, as they are, as often as it allows.

    Args:
        dataset: see the module; checked here.

    Raises:
        InvalidArgument: arrays that are not cut into batches.
        InvalidType: nothing that can be iterated over.
    """

    def __init__(self, dataset: Any) -> None:
        _check(dataset)
        self._dataset: Any = dataset
        self._is_read = False

    def batches(self) -> Iterator[Any]:
        """Returns a new iterator over the batches.

        Raises:
            InvalidArgument: a generator or iterator that has been read before.
        """
        if isinstance(self._dataset, keras.utils.PyDataset):
            return _indexed(self._dataset)
        if not isinstance(self._dataset, Iterator):
            return iter(self._dataset)
        if self._is_read:
            raise InvalidArgument(
                "A generator or iterator can be read once. Received: a second iteration over "
                f"{self._dataset!r}. For several passes distribute something that can be iterated "
                "again: a list of batches, paceline.data.ArrayBatches, or an object whose "
                "__iter__ calls the generator function."
            )
        self._is_read = True
        return self._dataset

    def sample(self) -> Any:
        """Returns a batch that shows structure, dtypes and shapes, or None without any batch.

        What can be read once stays complete: the batch is put back.
        """
        dataset = self._dataset
        if isinstance(dataset, ArrayBatches):
            return dataset.sample()
        if isinstance(dataset, keras.utils.PyDataset):
            return dataset[0] if self.num_batches else None
        if not isinstance(dataset, Iterator):
            return next(iter(dataset), None)
        if self._is_read:
            raise InvalidArgument(
                "The batches of a generator can be looked at before they are read, not after. "
                "Received: element_spec of a generator that is being read. Ask before iterating."
            )
        first = list(itertools.islice(dataset, 1))
        self._dataset = itertools.chain(first, dataset)
        return first[0] if first else None

    @property
    def num_batches(self) -> int:
        """How many batches a pass has; `INFINITE` or `UNKNOWN`, as in tf.data."""
        dataset: Any = self._dataset
        if isinstance(dataset, keras.utils.PyDataset):
            return INFINITE if dataset.num_batches is None else int(dataset.num_batches)
        if isinstance(dataset, ArrayBatches) and dataset.repeats_forever:
            return INFINITE
        count = getattr(dataset, "cardinality", None)
        if callable(count):  # tf.data
            return int(count())  # pyright: ignore[reportArgumentType]
        try:
            length = len(dataset)
        except (TypeError, NotImplementedError, AttributeError):
            return UNKNOWN
        return INFINITE if length == sys.maxsize else length  # Grain's repeat()


def batches(dataset: Any) -> Iterator[Any]:
    """Returns a new iterator over the batches of `dataset`.

    Raises:
        InvalidArgument: arrays that are not cut into batches.
        InvalidType: nothing that can be iterated over.
    """
    return Source(dataset).batches()


def _indexed(dataset: keras.utils.PyDataset) -> Iterator[Any]:
    dataset.on_epoch_begin()
    count = dataset.num_batches
    for index in itertools.count() if count is None else range(count):
        yield dataset[index]
    dataset.on_epoch_end()


def _check(dataset: Any) -> None:
    if _is_arrays(dataset):
        raise InvalidArgument(
            "A dataset yields batches, and arrays are not cut into batches yet. Received: "
            f"{_described(dataset)}. Distribute paceline.data.ArrayBatches(x, y, "
            "batch_size=global_batch_size) instead."
        )
    if isinstance(dataset, (str, bytes, Mapping)) or not isinstance(dataset, Iterable):
        is_indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, (str, bytes, Mapping)) or not is_indexed:
            raise InvalidType(
                "A dataset is something to iterate over that yields batches: a list of batches, "
                "paceline.data.ArrayBatches, a generator, a Keras PyDataset, a Grain dataset, a "
                f"tf.data dataset or a PyTorch loader. Received: {dataset!r} of type "
                f"{type(dataset).__name__}."
                + (" Call the function and pass its result." if callable(dataset) else "")
            )


def _is_arrays(dataset: Any) -> bool:
    """Whether `dataset` is an array, or a tuple or dict of arrays, as `fit` takes them.

    A list of arrays is a list of batches.
    """
    if isinstance(dataset, Mapping):
        return any(_is_arrays(value) for value in dataset.values())
    if isinstance(dataset, tuple):
        return any(_is_arrays(part) for part in dataset if not isinstance(part, (tuple, Mapping)))
    return isinstance(dataset, (np.ndarray, np.generic, jax.Array)) or (
        hasattr(dataset, "shape") and hasattr(dataset, "dtype") and hasattr(dataset, "numpy")
    )


def _described(dataset: Any) -> str:
    shapes = [getattr(leaf, "shape", leaf) for leaf in jax.tree.leaves(dataset)]
    return f"{type(dataset).__name__} with shapes {shapes}"
