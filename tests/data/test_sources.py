"""Everything that can be read as a dataset."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import grain
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from paceline.data import ArrayBatches
from paceline.data.sources import INFINITE, UNKNOWN, Source, batches
from paceline.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Numbers(keras.utils.PyDataset):
    """Batches of 0..9, and a count of the passes."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.ended = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> np.ndarray:
        return np.arange(10)[4 * index : 4 * index + 4]

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.ended += 1


class OwnClass:
    """Iterates anew each time, without a length."""

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(np.split(np.arange(10), [4, 8]))


class OnlyIndexed:
    """Has items and a length, as older loaders do."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> np.ndarray:
        if index >= 3:
            raise IndexError(index)
        return np.arange(10)[4 * index : 4 * index + 4]


class Tensor:
    """An array of another library: `detach`, `cpu` and `numpy`, as PyTorch's has them."""

    def __init__(self, array: np.ndarray, where: str = "gpu with gradients") -> None:
        self.array, self.where = array, where

    def detach(self) -> Tensor:
        return Tensor(self.array, self.where.removesuffix(" with gradients"))

    def cpu(self) -> Tensor:
        return Tensor(self.array, self.where.replace("gpu", "cpu"))

    def numpy(self) -> np.ndarray:
        assert self.where == "cpu"
        return self.array


def _grain_map() -> Any:
    return grain.MapDataset.range(10).map(np.int32).batch(4)


def _grain_loader() -> Any:
    records = grain.samplers.IndexSampler(
        10, shard_options=grain.sharding.NoSharding(), num_epochs=1
    )
    source = np.arange(10)
    return grain.DataLoader(
        data_source=source,
        sampler=records,
        worker_count=0,
        operations=[grain.transforms.Batch(4)],
    )


SOURCES: dict[str, Callable[[], Any]] = {
    "list": lambda: [np.arange(4), np.arange(4, 8), np.arange(8, 10)],
    "tuple of nests": lambda: ((np.arange(4),), (np.arange(4, 8),), (np.arange(8, 10),)),
    "jax arrays": lambda: [jnp.arange(4), jnp.arange(4, 8), jnp.arange(8, 10)],
    "own class": OwnClass,
    "indexed": OnlyIndexed,
    "ArrayBatches": lambda: ArrayBatches(np.arange(10), batch_size=4),
    "PyDataset": Numbers,
    "grain MapDataset": _grain_map,
    "grain IterDataset": lambda: _grain_map().to_iter_dataset(),
    "grain DataLoader": _grain_loader,
    "tensors": lambda: [Tensor(np.arange(4)), Tensor(np.arange(4, 8)), Tensor(np.arange(8, 10))],
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_every_source_can_be_read_again(
    two: Any, steps: Callable[[Any, Any], Any], make: Callable[[], Any]
) -> None:
    dataset = two.experimental_distribute_dataset(make())
    expected = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]
    for _ in range(2):
        got = steps(two, dataset)
        got = [[part[0] if type(part) is tuple else part for part in step] for step in got]
        assert got == expected


def test_a_generator_is_read_once(two: Any, steps: Callable[[Any, Any], Any]) -> None:
    dataset = two.experimental_distribute_dataset(np.arange(2) + i for i in range(2))
    assert steps(two, dataset) == [[[0], [1]], [[1], [2]]]
    with pytest.raises(InvalidArgument, match=r"can be read once\. Received: a second iteration"):
        iter(dataset)


def test_looking_at_a_generator_loses_no_batch() -> None:
    source = Source(np.arange(2) + i for i in range(2))
    for _ in range(2):
        np.testing.assert_array_equal(source.sample(), [0, 1])
    assert len(list(source.batches())) == 2
    with pytest.raises(InvalidArgument, match="Ask before iterating"):
        source.sample()
    assert Source(iter([])).sample() is None


def test_a_py_dataset_hears_of_its_epochs() -> None:
    dataset = Numbers()
    for _ in range(2):
        assert len(list(batches(dataset))) == 3
    assert (dataset.begun, dataset.ended) == (2, 2)


def test_an_endless_py_dataset_is_read_on() -> None:
    class Endless(keras.utils.PyDataset):
        @property
        def num_batches(self) -> None:
            return None

        def __getitem__(self, index: int) -> np.ndarray:
            return np.full(2, index)

    source = Source(Endless())
    assert source.num_batches == INFINITE
    read = source.batches()
    assert [next(read)[0] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("dataset", "count"),
    [
        ([np.zeros(2)] * 3, 3),
        (Numbers(), 3),
        (ArrayBatches(np.zeros(5), batch_size=2, repeat=3), 9),
        (ArrayBatches(np.zeros(5), batch_size=2, repeat=None), INFINITE),
        (OwnClass(), UNKNOWN),
        ((np.zeros(2) for _ in range(3)), UNKNOWN),
        (_grain_map(), 3),
        (_grain_map().repeat(), INFINITE),
        (_grain_map().to_iter_dataset(), UNKNOWN),
    ],
)
def test_lengths_are_known_where_the_source_knows_them(dataset: Any, count: int) -> None:
    assert Source(dataset).num_batches == count


@pytest.mark.parametrize(
    "dataset",
    [
        np.zeros((4, 2)),
        jnp.zeros(4),
        (np.zeros(4), np.zeros(4)),
        ((np.zeros(4),), np.zeros(4)),
        {"x": np.zeros(4)},
    ],
)
@pytest.mark.contract(79)
def test_arrays_are_no_dataset(two: Any, dataset: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"arrays are not cut.*ArrayBatches\(x, y, batch_s"):
        two.experimental_distribute_dataset(dataset)


@pytest.mark.parametrize("dataset", [3, None, "text", b"bytes", {"x": 1}, lambda: []])
def test_what_yields_no_batches_is_refused(two: Any, dataset: Any) -> None:
    with pytest.raises(InvalidType, match="something to iterate over that yields batches"):
        two.experimental_distribute_dataset(dataset)


def test_a_function_is_to_be_called_first(two: Any) -> None:
    with pytest.raises(InvalidType, match="Call the function and pass its result"):
        two.experimental_distribute_dataset(lambda: [np.zeros(2)])


@pytest.mark.parametrize(
    "dataset", [range(4), [1, 2], grain.MapDataset.range(4), [[1, 2]], iter([np.float32(1)])]
)
@pytest.mark.contract(79)
def test_elements_without_a_batch_dim_are_refused(two: Any, dataset: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"must be a batch.*Batch the dataset, for example"):
        list(two.experimental_distribute_dataset(dataset))


def test_array_batches_give_the_structure_of_their_arguments() -> None:
    x, y = np.arange(6).reshape(3, 2), [7, 8, 9]
    first = next(iter(ArrayBatches(x, y, batch_size=2)))
    assert [part.tolist() for part in first] == [[[0, 1], [2, 3]], [7, 8]]
    assert next(iter(ArrayBatches(range(5), batch_size=2))).tolist() == [0, 1]
    named = next(iter(ArrayBatches({"x": x, "none": None}, batch_size=1)))
    assert named["x"].tolist() == [[0, 1]]
    assert named["none"] is None


def test_array_batches_repeat_and_drop() -> None:
    def read(**options: Any) -> list[list[int]]:
        return [b.tolist() for b in ArrayBatches(range(3), batch_size=2, **options)]

    assert read(repeat=2) == [[0, 1], [2], [0, 1], [2]]
    assert read(drop_remainder=True, repeat=2) == [[0, 1], [0, 1]]
    endless = iter(ArrayBatches(range(3), batch_size=2, repeat=None))
    assert [next(endless).tolist() for _ in range(3)] == [[0, 1], [2], [0, 1]]
    assert list(ArrayBatches([], batch_size=2)) == []


def test_array_batches_shuffle_anew_and_reproducibly() -> None:
    def orders(seed: int | None) -> list[list[int]]:
        dataset = ArrayBatches(range(50), batch_size=50, shuffle=True, seed=seed)
        return [next(iter(dataset)).tolist() for _ in range(2)]

    assert orders(3) == orders(3)
    assert orders(3) != orders(4)
    assert orders(3)[0] != orders(3)[1]
    assert sorted(orders(3)[0]) == list(range(50))
    keras.utils.set_random_seed(1)
    first = orders(None)
    keras.utils.set_random_seed(1)
    assert orders(None) == first


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.zeros(3), np.zeros(2)), {"batch_size": 1}, r"one length\. Received: shapes \[\(3,\)"),
        ((np.zeros(()),), {"batch_size": 1}, "one length"),
        ((), {"batch_size": 1}, "one length"),
        ((np.zeros(3),), {"batch_size": 0}, r"at least 1\. Received: batch_size=0"),
        ((np.zeros(3),), {"batch_size": 2.5}, r"whole number\. Received: batch_size=2\.5"),
        ((np.zeros(3),), {"batch_size": 2, "repeat": 0}, r"at least 1\. Received: repeat=0"),
    ],
)
def test_array_batches_refuse_what_they_cannot_cut(
    arguments: Any, options: Any, message: str
) -> None:
    with pytest.raises((InvalidArgument, InvalidType), match=message):
        ArrayBatches(*arguments, **options)


@pytest.mark.parametrize("library", ["tensorflow", "torch"])
def test_batches_of_other_libraries(
    two: Any, steps: Callable[[Any, Any], Any], library: str
) -> None:
    found = importlib.util.find_spec(library)
    if found is None:
        pytest.skip(f"{library} is not installed here")
    if library == "torch":
        data = importlib.import_module("torch.utils.data")
        tensors = importlib.import_module("torch").arange(7)
        dataset = data.DataLoader(data.TensorDataset(tensors), batch_size=4)
        expected = [[[[0, 1]], [[2, 3]]], [[[4, 5]], [[6]]]]
    else:
        dataset = importlib.import_module("tensorflow").data.Dataset.range(7).batch(4)
        expected = [[[0, 1], [2, 3]], [[4, 5], [6]]]
    distributed = two.experimental_distribute_dataset(dataset)
    assert steps(two, distributed) == expected
    assert len(distributed) == 2
