"""How long the steps of workers take, as models with seeds of their own.

A model is a frozen description. `sampler(rng, worker, workers)` gives the durations of one worker,
drawn from a generator that only this worker has: what one worker draws depends neither on how many
others there are nor on the order in which they run.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Sampler = Callable[[], float]

_BLOCK = 256  # numbers drawn at a time: one by one they would cost more than the event they are for


class Latency(abc.ABC):
    """How long something takes, in seconds: a base class."""

    @abc.abstractmethod
    def sampler(self, rng: np.random.Generator, worker: int, workers: int) -> Sampler:
        """Returns a function that gives the next duration of a worker.

        Args:
            rng: the worker's own generator.
            worker: its index.
            workers: how many there are.
        """


def latency_of(value: Any, name: str) -> Latency:
    """A model; a number is a constant.

    Raises:
        InvalidArgument: neither a model nor a number of at least 0.
    """
    if isinstance(value, Latency):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Constant(float(value))
    raise InvalidArgument(
        f"`{name}` is a number of seconds or a latency model from paceline.virtual. Received: "
        f"{name}={value!r}."
    )


@dataclasses.dataclass(frozen=True)
class Constant(Latency):
    """Always the same.

    Args:
        seconds: how long.

    Raises:
        InvalidArgument: negative, or no finite number.
    """

    seconds: float = 1.0

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, is_zero_allowed=True)

    def sampler(self, rng: np.random.Generator, worker: int, workers: int) -> Sampler:
        """The constant."""
        seconds = float(self.seconds)
        return lambda: seconds


@dataclasses.dataclass(frozen=True)
class LogNormal(Latency):
    """Jitter as of a busy machine: the logarithm is normally distributed.

    Args:
        median: seconds that half of the steps stay below.
        sigma: standard deviation of the logarithm; 0.25 is 25 % up or down.

    Raises:
        InvalidArgument: not positive, or no finite number.
    """

    median: float = 1.0
    sigma: float = 0.25

    def __post_init__(self) -> None:
        _check("median", self.median)
        _check("sigma", self.sigma, is_zero_allowed=True)

    def sampler(self, rng: np.random.Generator, worker: int, workers: int) -> Sampler:
        """Draws."""
        mean = math.log(self.median)
        return _drawing(lambda: rng.lognormal(mean, self.sigma, _BLOCK))


@dataclasses.dataclass(frozen=True)
class Pareto(Latency):
    """A base time plus rare long delays: Pareto noise, whose tail is heavy.

    Args:
        base: seconds of every step.
        scale: the noise is `scale * (u ** (-1 / shape) - 1)` with u uniform in (0, 1): its mean is
            `scale / (shape - 1)`.
        shape: the tail's exponent; at 2 the noise has a mean, but no variance.

    Raises:
        InvalidArgument: not positive, or no finite number.
    """

    base: float = 1.0
    scale: float = 0.06
    shape: float = 2.0

    def __post_init__(self) -> None:
        _check("base", self.base, is_zero_allowed=True)
        _check("scale", self.scale, is_zero_allowed=True)
        _check("shape", self.shape)

    def sampler(self, rng: np.random.Generator, worker: int, workers: int) -> Sampler:
        """Draws."""
        return _drawing(lambda: self.base + self.scale * rng.pareto(self.shape, _BLOCK))


@dataclasses.dataclass(frozen=True)
class RareSlow(Latency):
    """Now and then a step is slow, as when another job starts on the machine.

    Args:
        inner: how long a step takes otherwise, seconds or a model.
        share: share of slow steps.
        least, most: a slow step takes this many times as long, evenly distributed.

    Raises:
        InvalidArgument: a share outside of 0 to 1, or factors that are not positive and in order.
    """

    inner: Latency | float = 1.0
    share: float = 0.03
    least: float = 1.3
    most: float = 2.2

    def __post_init__(self) -> None:
        latency_of(self.inner, "inner")
        _check("share", self.share, is_zero_allowed=True)
        _check("least", self.least)
        if not self.share <= 1 or not self.least <= self.most < math.inf:
            raise InvalidArgument(
                "A share is at most 1, and `least` at most `most`. Received: "
                f"share={self.share!r}, least={self.least!r}, most={self.most!r}."
            )

    def sampler(self, rng: np.random.Generator, worker: int, workers: int) -> Sampler:
        """Draws."""
        inner = latency_of(self.inner, "inner").sampler(rng, worker, workers)

        def factors() -> np.ndarray:
            is_slow = rng.random(_BLOCK) < self.share
            return np.where(is_slow, rng.uniform(self.least, self.most, _BLOCK), 1.0)

        factor = _drawing(factors)
        return lambda: inner() * factor()


@dataclasses.dataclass(frozen=True)
class Slow(Latency):
    """Some workers are slower than the others for good.

    Args:
        inner: how long a step takes otherwise, seconds or a model.
        factors: by index of the worker, how many times as long it takes there.

    Raises:
        InvalidArgument: a factor that is not positive.
    """

    inner: Latency | float = 1.0
    factors: Mapping[int, float] = dataclasses.field(default_factory=lambda: {0: 2.0})

    def __post_init__(self) -> None:
        latency_of(self.inner, "inner")
        for worker, factor in self.factors.items():
            _check(f"factors[{worker}]", factor)

    def sampler(self, rng: np.random.Generator, worker: int, workers: int) -> Sampler:
        """The inner model's, times the worker's factor."""
        inner = latency_of(self.inner, "inner").sampler(rng, worker, workers)
        factor = self.factors.get(worker, 1.0)
        return inner if factor == 1.0 else lambda: inner() * factor

    def __hash__(self) -> int:
        return hash((self.inner, tuple(sorted(self.factors.items()))))


@dataclasses.dataclass(frozen=True)
class Spread(Latency):
    """The workers' speeds are spread evenly over a range, as in a mixed cluster.

    Args:
        inner: how long a step takes on the fastest worker, seconds or a model.
        least, most: worker 0 takes `least` times as long, the last worker `most` times.

    Raises:
        InvalidArgument: not positive, or not in order.
    """

    inner: Latency | float = 1.0
    least: float = 1.0
    most: float = 3.0

    def __post_init__(self) -> None:
        latency_of(self.inner, "inner")
        _check("least", self.least)
        if not self.least <= self.most < math.inf:
            raise InvalidArgument(
                f"`least` is at most `most`. Received: least={self.least!r}, most={self.most!r}."
            )

    def sampler(self, rng: np.random.Generator, worker: int, workers: int) -> Sampler:
        """The inner model's, times the worker's factor."""
        inner = latency_of(self.inner, "inner").sampler(rng, worker, workers)
        factor = self.least + (self.most - self.least) * worker / max(1, workers - 1)
        return lambda: inner() * factor


@dataclasses.dataclass(frozen=True)
class Measured(Latency):
    """Durations that were measured, drawn again at random.

    Args:
        seconds: durations, or the path of a text file with one number a line.

    Raises:
        InvalidArgument: none, negative ones, or a file without numbers.
    """

    seconds: tuple[float, ...] | str | Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "_values", self._read())  # once, not for each worker
        values = self.values()
        if not len(values) or not (np.isfinite(values).all() and (values >= 0).all()):
            raise InvalidArgument(
                "Measured durations are one or more numbers of at least 0. Received: "
                f"{len(values)} from {self.seconds!r}."
            )

    def values(self) -> np.ndarray:
        """The durations, in seconds."""
        return self.__dict__["_values"]

    def _read(self) -> np.ndarray:
        if isinstance(self.seconds, (str, Path)):
            try:
                return np.atleast_1d(np.loadtxt(self.seconds, dtype=float, ndmin=1))
            except (OSError, ValueError) as error:
                raise InvalidArgument(
                    "A file of durations is a text file with a number of seconds in each line. "
                    f"Received: {str(self.seconds)!r}."
                ) from error
        return np.asarray(self.seconds, float)

    def sampler(self, rng: np.random.Generator, worker: int, workers: int) -> Sampler:
        """Draws one of them."""
        values = self.values()
        return _drawing(lambda: rng.choice(values, _BLOCK))


def _drawing(draw: Callable[[], np.ndarray]) -> Sampler:
    """Gives out numbers that are drawn many at a time, a block when the one before is used up."""
    blocks = (draw().tolist() for _ in itertools.count())
    return itertools.chain.from_iterable(blocks).__next__


def _check(name: str, value: Any, *, is_zero_allowed: bool = False) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (value == 0 < 1 - is_zero_allowed):
        least = "at least 0" if is_zero_allowed else "above 0"
        raise InvalidArgument(f"`{name}` is a number {least}. Received: {name}={value!r}.")
