"""`ArrayBatches`: arrays in memory as a re-iterable of batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from paceline.errors import InvalidArgument, InvalidType
from paceline.program import context
from paceline.program.handover import handover

if TYPE_CHECKING:
    from collections.abc import Iterator


class ArrayBatches:
    """Batches of arrays in memory, anew on every iteration.

    Args:
        *arrays: arrays `[examples, ...]` of one length, or nests of them; lists of numbers are
            converted. One argument gives its batches bare, several give tuples.
        batch_size: the global batch size; the last batch of a pass may be shorter.
        shuffle: reads each pass in a new order.
        seed: makes the orders reproducible; None draws one from NumPy's global generator, which
            `keras.utils.set_random_seed` seeds.
        drop_remainder: leaves out a last batch that is shorter.
        repeat: how many passes one iteration makes; None means without end.

    Raises:
        InvalidArgument: arrays that differ in length, are scalars or missing; a batch size or
            number of passes below 1.
        InvalidType: a batch size or number of passes that is no integer.

    Semantics:
        tf.data.Dataset.from_tensor_slices(arrays).shuffle(all, seed).batch(batch_size,
        drop_remainder).repeat(repeat).

    Example:
        ```python
        batches = ArrayBatches(x, y, batch_size=64, shuffle=True, seed=0)
        for x_batch, y_batch in strategy.experimental_distribute_dataset(batches):
            strategy.run(step, args=(x_batch, y_batch))
        ```
    """

    def __init__(
        self,
        *arrays: Any,
        batch_size: int,
        shuffle: bool = False,
        seed: int | None = None,
        drop_remainder: bool = False,
        repeat: int | None = 1,
    ) -> None:
        _check_count("batch_size", batch_size)
        if repeat is not None:
            _check_count("repeat", repeat)
        nest = jax.tree.map(np.asarray, arrays, is_leaf=lambda node: isinstance(node, list))
        self._arrays = nest[0] if len(nest) == 1 else nest
        self._num_examples = _common_length(self._arrays)
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._repeat = repeat
        self._num_passes = 0
        self._seed = None
        if shuffle:
            self._seed = _drawn_seed() if seed is None else seed

    def __iter__(self) -> Iterator[Any]:
        passes = iter(int, 1) if self._repeat is None else range(self._repeat)
        for _ in passes:
            yield from self._one_pass()

    def __len__(self) -> int:
        """The number of batches of one iteration."""
        if self._repeat is None:
            raise TypeError("ArrayBatches(repeat=None) has no end, and so no length.")
        return self._batches_per_pass * self._repeat

    def __bool__(self) -> bool:
        return True

    @property
    def repeats_forever(self) -> bool:
        """Whether an iteration never ends."""
        return self._repeat is None and self._batches_per_pass > 0

    def sample(self) -> Any:
        """Returns a batch that shows structure, dtypes and shapes, without starting a pass."""
        return jax.tree.map(lambda array: array[: self._batch_size], self._arrays)

    @property
    def _batches_per_pass(self) -> int:
        count = self._num_examples / self._batch_size
        return math.floor(count) if self._drop_remainder else math.ceil(count)

    def _one_pass(self) -> Iterator[Any]:
        order = None
        if self._seed is not None:
            order = np.random.default_rng((self._seed, self._num_passes))
            order = order.permutation(self._num_examples)
        self._num_passes += 1
        for i in range(self._batches_per_pass):
            taken: Any = slice(i * self._batch_size, (i + 1) * self._batch_size)
            taken = taken if order is None else order[taken]
            yield jax.tree.map(lambda array, taken=taken: array[taken], self._arrays)


def _common_length(arrays: Any) -> int:
    leaves = jax.tree.leaves(arrays)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves) or len({len(a) for a in leaves}) > 1:
        raise InvalidArgument(
            "ArrayBatches needs arrays [examples, ...] of one length. Received: shapes "
            f"{[leaf.shape for leaf in leaves]}. Give one row per example in every array."
        )
    return len(leaves[0])


def _drawn_seed() -> int:
    """A seed from the process's generator, which workers share: they draw in turn."""
    worker = context.worker()
    with handover:
        if worker is not None:
            worker.check()
        return np.random.randint(2**31)


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise InvalidType(f"`{name}` is a whole number. Received: {name}={value!r}.")
    if value < 1:
        raise InvalidArgument(f"`{name}` must be at least 1. Received: {name}={value}.")
