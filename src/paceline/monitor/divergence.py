"""Checks that copies of variables which must be equal are: on replicas, and on workers."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import jax
import keras
import numpy as np

from paceline.errors import InvalidArgument, InvalidType, ReplicasDiverged
from paceline.monitor import digests
from paceline.variables.placement import Kind
from paceline.variables.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_NAMED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """A variable whose copies differ.

    Attributes:
        name: path of the variable.
        places: the devices or workers whose copy differs from the first one's.
        largest_difference: largest difference between two elements; infinite where a copy has a NaN
            or an infinity and another one has not, 0 where only a zero's sign differs. None
            where the values are not at hand.
        text: what differs, as a sentence.
    """

    name: str
    places: tuple[str, ...]
    largest_difference: float | None
    text: str

    def __str__(self) -> str:
        return self.text


def check_replicas(model_or_variables: Any) -> list[Divergence]:
    """Compares the copies of every mirrored variable, bit by bit.

    A NaN agrees with a NaN. Variables with one copy have nothing to compare, and ON_READ variables,
    such as a metric's, are meant to differ.

    On a CPU the copies are compared where they lie: 3 ms for two copies of 8 MB, 12 ms for eight,
    on two cores. Accelerators compute a digest of 64 bits of each copy, in a program that is
    compiled once for every shape of a variable, and only copies with different digests are read.
    Two that differ have one digest by chance once in 2^64, and never if they differ in a single
    element. On CPU devices the digests took 15 and 60 ms, and 0.2 s to compile for each shape; on
    accelerators their cost was not measured.

    Args:
        model_or_variables: a model, whose optimizer counts too, or variables.

    Returns:
        What differs, one item for each variable; empty when all copies agree.

    Raises:
        InvalidType: something is no variable.
    """
    found = []
    mirrored = [(name, _mirrored(variable)) for name, variable in _named(model_or_variables)]
    for name, array in _suspected([(name, array) for name, array in mirrored if array is not None]):
        copies = list(_copies(array))
        differences = [(place, _compare(copies[0][1], copy)) for place, copy in copies[1:]]
        differing = [(place, found_there) for place, found_there in differences if found_there]
        if differing:
            found.append(_replica_divergence(name, copies[0][0], differing))
    return found


def fingerprints(model_or_variables: Any) -> dict[str, str]:
    """Dtype, shape and a hash of every variable's value, to be compared by `check_workers`.

    Taken on each worker right after it made its model, they tell whether all start from the same
    values, without sending the values.

    Args:
        model_or_variables: a model, whose optimizer counts too, or variables.
    """
    return {
        name: _fingerprint(np.asarray(_copy_to_show(variable)))
        for name, variable in _named(model_or_variables)
    }


def check_workers(of_workers: Mapping[str, Mapping[str, str]]) -> list[Divergence]:
    """Compares fingerprints of workers.

    Args:
        of_workers: what `fingerprints` returned on each worker, by the worker's name.

    Returns:
        What differs, one item for each variable; empty when all workers agree.
    """
    names = dict.fromkeys(name for one in of_workers.values() for name in one)
    found = []
    for name in names:
        values = {worker: one.get(name, "none") for worker, one in of_workers.items()}
        # The first worker is what the others are compared with, as the first replica is.
        first = next(iter(values))
        places = tuple(worker for worker, value in values.items() if value != values[first])
        if places:
            shown = [f"{worker} has {values[worker]}" for worker in (first, *places[:_MOST_NAMED])]
            text = f"{name} differs between workers: {', '.join(shown)}{_rest(places)}."
            found.append(Divergence(name=name, places=places, largest_difference=None, text=text))
    return found


class DivergenceCheck(keras.callbacks.Callback):
    """Checks during `fit` that the replicas of mirrored variables agree.

    The initial values are checked when training begins, all later ones as `every` says; what a
    check costs, `check_replicas` says. `fit` under a strategy with several replicas adds this
    callback by itself. Given among the callbacks it takes the place of that one.

    Args:
        every: "epoch", or a number of batches.
        action: "raise" ends the training with an error, "warn" warns and goes on.

    Raises:
        InvalidArgument: `every` or `action` is none of these.
        ReplicasDiverged: in training, with the names of the variables.
    """

    def __init__(
        self, every: Literal["epoch"] | int = "epoch", action: Literal["raise", "warn"] = "raise"
    ) -> None:
        super().__init__()
        is_number = isinstance(every, int) and not isinstance(every, bool) and every >= 1
        if every != "epoch" and not is_number:
            raise InvalidArgument(
                f'`every` is "epoch" or a number of batches, at least 1. Received: every={every!r}.'
            )
        if action not in ("raise", "warn"):
            raise InvalidArgument(f'`action` is "raise" or "warn". Received: action={action!r}.')
        self._batches_between = None if every == "epoch" else int(every)
        # Keras asks this: who looks at no batch must not make it wait for each.
        self.async_safe = self._batches_between is None
        self._action = action
        self._num_batches = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks the initial values."""
        self._check("before the first step")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the batches of the epoch anew."""
        self._num_batches = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Checks after every so many batches."""
        before, self._num_batches = self._num_batches, batch + 1
        # With steps_per_execution this is called once for several batches.
        between = self._batches_between
        if between is not None and before // between != self._num_batches // between:
            self._check(f"after batch {batch}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Checks at the end of an epoch."""
        if self._batches_between is None:
            self._check(f"at the end of epoch {epoch}")

    def _check(self, when: str) -> None:
        found = check_replicas(self.model)
        if not found:
            return
        text = (
            f"Copies of mirrored variables must be equal on all replicas. Received: {len(found)} "
            f"that differ, found {when}. "
            + " ".join(str(one) for one in found[:_MOST_NAMED])
            + (f" And {len(found) - _MOST_NAMED} more." if len(found) > _MOST_NAMED else "")
            + " Look for an operation that gives other results on another device, or go back to a "
            "checkpoint from before."
        )
        if self._action == "raise":
            raise ReplicasDiverged(text)
        warnings.warn(text, stacklevel=2)


def _named(model_or_variables: Any) -> Iterator[tuple[str, Any]]:
    """The variables, each once, under names of their own."""
    taken: Counter[str] = Counter()
    for variable in {id(one): one for one in _listed(model_or_variables)}.values():
        if not isinstance(variable, keras.Variable):
            raise InvalidType(
                "What is compared are the variables of a model, or variables. Received: "
                f"{variable!r}, of type {type(variable).__name__}."
            )
        taken[variable.path] += 1
        number = taken[variable.path]
        yield (variable.path if number == 1 else f"{variable.path}#{number}"), variable


def _listed(model_or_variables: Any) -> list[Any]:
    if isinstance(model_or_variables, keras.Variable):
        return [model_or_variables]
    owners = [model_or_variables, getattr(model_or_variables, "optimizer", None)]
    if any(hasattr(owner, "variables") for owner in owners):
        return [one for owner in owners for one in getattr(owner, "variables", ())]
    is_iterable = isinstance(model_or_variables, Iterable)
    return list(model_or_variables) if is_iterable else [model_or_variables]


def _mirrored(variable: Any) -> jax.Array | None:
    """The array that a variable holds, if it has copies that must be equal."""
    if not isinstance(variable, Variable):
        array = variable.value
    elif variable.placement.kind is Kind.MIRRORED:
        array = variable._value  # not shown to anyone: the next step may still overwrite it
    else:
        return None
    is_mirrored = isinstance(array, jax.Array) and array.is_fully_replicated
    return array if is_mirrored and len(array.addressable_shards) > 1 else None


def _suspected(arrays: list[tuple[str, jax.Array]]) -> list[tuple[str, jax.Array]]:
    """Those whose copies may differ, by what their devices say."""
    all_started = [None if _is_on_host(array) else digests.start(array) for _, array in arrays]
    return [
        named
        for named, started in zip(arrays, all_started, strict=True)
        if started is None or not digests.are_equal(started)
    ]


def _is_on_host(array: jax.Array) -> bool:
    """Whether reading the copies moves nothing, as they lie in the memory of this process."""
    return all(device.platform == "cpu" for device in array.devices())


def _copies(array: jax.Array) -> Iterator[tuple[str, Any]]:
    """The copies, with the names of their devices."""
    for shard in array.addressable_shards:
        yield f"{shard.device.platform}:{shard.device.id}", shard.data


def _copy_to_show(variable: Any) -> Any:
    if isinstance(variable, Variable) and variable.is_on_read:
        return np.stack([np.asarray(value) for value in variable.values])
    return variable.value


def _compare(first: Any, other: Any) -> tuple[int, float] | None:
    """How many elements differ, and by how much at most; None when all agree."""
    one, two = np.asarray(first), np.asarray(other)
    is_equal = _bits(one) == _bits(two)
    if is_equal.all():
        return None
    wide = np.complex128 if np.issubdtype(one.dtype, np.complexfloating) else np.float64
    one, two = one.astype(wide), two.astype(wide)
    is_equal |= np.isnan(one) & np.isnan(two)
    if is_equal.all():
        return None
    with np.errstate(invalid="ignore"):
        differences = np.abs(one - two)[~is_equal]
    # NaN minus a number is NaN: no finite difference tells how far apart these are.
    return differences.size, float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max())


def _bits(array: np.ndarray) -> np.ndarray:
    """The array's elements as unsigned integers, so that 0.0 differs from -0.0."""
    if array.dtype.itemsize in (1, 2, 4, 8):
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _replica_divergence(
    name: str, first: str, differing: Sequence[tuple[str, tuple[int, float]]]
) -> Divergence:
    places = tuple(place for place, _ in differing)
    largest = max(difference for _, (_, difference) in differing)
    num = max(num for _, (num, _) in differing)
    elements = f"{num:,} element{'' if num == 1 else 's'}"
    return Divergence(
        name=name,
        places=places,
        largest_difference=largest,
        text=(
            f"{name} on {', '.join(places[:_MOST_NAMED])}{_rest(places)} differs from {first} in "
            f"{elements}, by {largest:.3g} at most."
        ),
    )


def _rest(places: Sequence[str]) -> str:
    return f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""


def _fingerprint(array: np.ndarray) -> str:
    shape = ",".join(str(size) for size in array.shape)
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
    return f"{array.dtype}[{shape}] {digest}"
