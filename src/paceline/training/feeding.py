"""Datasets that Keras's loops do not know: re-iterables of batches and distributed datasets."""

from __future__ import annotations

import inspect
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from paceline.data.arrays import ArrayBatches
from paceline.data.dataset import DistributedDataset
from paceline.data.sources import INFINITE, Source
from paceline.errors import InvalidArgument
from paceline.types import InputContext, PerReplica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Their datasets and loaders are Keras's to read.
_READ_BY_KERAS = ("tensorflow", "torch", "grain", "keras", "pandas", "scipy")


class BatchAdapter(DataAdapter):
    """Feeds global batches to Keras's loops, from the start in every epoch.

    Args:
        dataset: a re-iterable of batches or a distributed dataset.
        class_weight: weight of each class, turned into sample weights; or None.
        is_bounded: whether the loop is told how many steps to take.

    Raises:
        InvalidArgument: endless data without a number of steps.
    """

    def __init__(self, dataset: Any, class_weight: Any, is_bounded: bool) -> None:
        self._dataset = dataset
        self._class_weight = class_weight
        is_distributed = isinstance(dataset, DistributedDataset)
        self._source = None if is_distributed else Source(dataset)
        count = dataset.cardinality() if self._source is None else self._source.num_batches
        if count == INFINITE and not is_bounded:
            raise InvalidArgument(
                "Data without an end needs a number of steps. Received: an endless dataset "
                f"{dataset!r}. Pass steps_per_epoch (or steps, validation_steps)."
            )
        self._num_batches = count if count >= 0 else None

    def get_jax_iterator(self) -> Iterator[Any]:
        """Yields `(x,)`, `(x, y)` or `(x, y, sample_weight)` as NumPy arrays."""
        batches = iter(self._dataset) if self._source is None else self._source.batches()
        for batch in batches:
            yield self._weighted(jax.tree.map(_whole, batch, is_leaf=_is_per_replica))

    get_numpy_iterator = get_jax_iterator

    def _weighted(self, batch: Any) -> Any:
        if self._class_weight is None:
            return batch if isinstance(batch, tuple) else (batch,)
        x, y, _ = data_adapter_utils.unpack_x_y_sample_weight(batch)
        return x, y, data_adapter_utils.class_weight_to_sample_weights(y, self._class_weight)

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch, where known."""
        return self._num_batches

    @property
    def batch_size(self) -> None:
        """The batches are what they are."""

    @property
    def has_partial_batch(self) -> None:
        """Not known before the last batch."""

    @property
    def partial_batch_size(self) -> None:
        """Not known before the last batch."""


def feed(arguments: dict[str, Any], num_replicas: int) -> None:
    """Wraps the data among the arguments of one of Keras's loops, where Keras needs it.

    Args:
        arguments: those of the loop; changed in place. A function given as data is called with an
            `InputContext`, or without arguments, and returns the dataset.
        num_replicas: replicas of the strategy.
    """
    for name in ("x", "validation_data"):
        if is_dataset_function(arguments.get(name)):
            arguments[name] = _called(arguments[name], num_replicas)
    class_weight = arguments.get("class_weight")
    steps = arguments.get("steps_per_epoch") or arguments.get("steps")
    if is_batches(arguments.get("x")):
        arguments["x"] = BatchAdapter(arguments["x"], class_weight, steps is not None)
    if is_batches(arguments.get("validation_data")):
        is_bounded = arguments.get("validation_steps") is not None
        arguments["validation_data"] = BatchAdapter(arguments["validation_data"], None, is_bounded)


def is_dataset_function(data: Any) -> bool:
    """Whether `data` is a function that makes a dataset."""
    return inspect.isfunction(data) or inspect.ismethod(data) or isinstance(data, partial)


def _called(make: Callable[..., Any], num_replicas: int) -> Any:
    takes_context = bool(inspect.signature(make).parameters)
    return make(InputContext(num_replicas_in_sync=num_replicas)) if takes_context else make()


def is_arrays(data: Any) -> bool:
    """Whether `data` is arrays that stay what they are while the loop runs."""
    leaves = jax.tree.leaves(data, is_leaf=lambda x: not isinstance(x, (dict, list, tuple)))
    return bool(leaves) and all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)


def is_batches(data: Any) -> bool:
    """Whether `data` is a dataset of batches that Keras would not take."""
    if isinstance(data, (ArrayBatches, DistributedDataset)):
        return True
    if isinstance(data, list):  # a list of arrays is Keras's model with several inputs
        return all(isinstance(batch, tuple) for batch in data)
    is_keras_s = isinstance(data, (tuple, dict, str, GeneratorType, DataAdapter))
    is_array = hasattr(data, "shape") or hasattr(data, "__array__")
    if is_keras_s or is_array or isinstance(data, keras.utils.PyDataset):
        return False
    modules = {base.__module__.partition(".")[0] for base in type(data).__mro__}
    return hasattr(data, "__iter__") and not modules.intersection(_READ_BY_KERAS)


def _is_per_replica(leaf: Any) -> bool:
    return isinstance(leaf, PerReplica)


def _whole(leaf: Any) -> Any:
    if not _is_per_replica(leaf):
        return leaf
    return np.concatenate([np.asarray(part) for part in leaf.values])
