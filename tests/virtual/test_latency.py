"""Models of how long steps take, against the formulas of their distributions."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paceline.errors import InvalidArgument
from paceline.testing.tolerances import CONVERGENCE, EXACT, GOLDEN, assert_close
from paceline.virtual import (
    Constant,
    Latency,
    LogNormal,
    Measured,
    Pareto,
    RareSlow,
    Slow,
    Spread,
)
from paceline.virtual.latency import latency_of

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 40_000

MODELS: list[Latency] = [
    Constant(2.0),
    LogNormal(1.0, 0.3),
    Pareto(1.0, 0.06, 2.0),
    RareSlow(1.0, 0.03, 1.3, 2.2),
    Slow(LogNormal(), {1: 2.0}),
    Spread(LogNormal(), 1.0, 3.0),
    Measured((0.5, 1.0, 4.0)),
]


def drawn(
    model: Latency, count: int = COUNT, *, seed: int = 0, worker: int = 0, workers: int = 4
) -> np.ndarray:
    sample = model.sampler(np.random.default_rng(seed), worker, workers)
    return np.array([sample() for _ in range(count)])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_one_seed_gives_one_sequence(model: Latency) -> None:
    first, again, other = (drawn(model, 1000, seed=seed) for seed in (7, 7, 8))
    assert_close(first, again, EXACT)
    is_random = not isinstance(model, Constant)
    assert (first != other).any() == is_random


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_models_can_be_compared_printed_and_hashed(model: Latency) -> None:
    assert model == copy.deepcopy(model)
    assert hash(model) == hash(copy.deepcopy(model))
    assert repr(model).startswith(type(model).__name__ + "(")


def test_two_samplers_of_one_model_share_nothing() -> None:
    model = LogNormal()
    alone = drawn(model, 600, seed=1)
    one = model.sampler(np.random.default_rng(1), 0, 2)
    two = model.sampler(np.random.default_rng(2), 1, 2)
    mixed = []
    for _ in range(600):
        mixed.append(one())
        two()
    assert_close(np.array(mixed), alone, EXACT)


def test_constant() -> None:
    assert set(drawn(Constant(1.5), 100)) == {1.5}
    assert latency_of(2, "compute") == Constant(2.0)


def test_log_normal() -> None:
    values = drawn(LogNormal(2.0, 0.5))
    assert_close(np.median(values), 2.0, CONVERGENCE)
    assert_close(values.mean(), 2.0 * math.exp(0.5**2 / 2), CONVERGENCE)
    assert_close(np.log(values).std(), 0.5, CONVERGENCE)


def test_pareto() -> None:
    """Quantile q of the noise is scale * ((1 - q) ** (-1 / shape) - 1)."""
    model = Pareto(base=1.0, scale=0.5, shape=2.0)
    values = drawn(model)
    for q in (0.25, 0.5, 0.9, 0.99):
        expected = 1.0 + 0.5 * ((1 - q) ** -0.5 - 1)
        assert_close(np.quantile(values, q), expected, CONVERGENCE)
    assert values.min() >= 1.0
    light = drawn(Pareto(base=0.0, scale=3.0, shape=4.0))
    assert_close(light.mean(), 1.0, CONVERGENCE)  # scale / (shape - 1)


def test_rare_slow_steps() -> None:
    values = drawn(RareSlow(2.0, share=0.1, least=1.5, most=2.5))
    is_slow = values != 2.0
    assert_close(is_slow.mean(), 0.1, CONVERGENCE)
    assert values[is_slow].min() >= 3.0
    assert values[is_slow].max() <= 5.0
    assert_close(values[is_slow].mean(), 4.0, CONVERGENCE)


def test_rare_slow_steps_of_noisy_ones_keep_their_noise() -> None:
    values = drawn(RareSlow(LogNormal(1.0, 0.2), share=0.0))
    assert_close(np.log(values).std(), 0.2, CONVERGENCE)


def test_some_workers_are_slow_for_good() -> None:
    model = Slow(Constant(3.0), {1: 2.0, 3: 0.5})
    seconds = [float(drawn(model, 1, worker=worker)[0]) for worker in range(4)]
    assert seconds == [3.0, 6.0, 3.0, 1.5]


def test_speeds_spread_over_a_range() -> None:
    model = Spread(2.0, 1.0, 3.0)
    seconds = [float(drawn(model, 1, worker=worker, workers=5)[0]) for worker in range(5)]
    assert seconds == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert drawn(model, 1, worker=0, workers=1)[0] == 2.0


def test_what_is_around_another_model_draws_as_often_as_it() -> None:
    """So that a slow worker has the same noise as it would have at full speed."""
    plain = drawn(LogNormal(), 500, seed=3)
    assert_close(drawn(Slow(LogNormal(), {0: 4.0}), 500, seed=3), 4.0 * plain, GOLDEN)
    assert_close(drawn(Spread(LogNormal(), 2.0, 2.0), 500, seed=3), 2.0 * plain, GOLDEN)


def test_measured_durations_are_drawn_again() -> None:
    values = drawn(Measured((1.0, 1.0, 3.0)))
    assert set(values) == {1.0, 3.0}
    assert_close(values.mean(), 5 / 3, CONVERGENCE)


def test_durations_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.txt"
    path.write_text("# seconds\n0.25\n0.5\n")
    for given in (path, str(path)):
        assert set(drawn(Measured(given), 200)) == {0.25, 0.5}
    path.write_text("0.125\n")
    assert set(drawn(Measured(path), 10)) == {0.125}


@pytest.mark.parametrize("text", ["", "a\n", "1.0\n-1.0\n", "nan\n"])
@pytest.mark.filterwarnings("ignore:.*input contained no data")
def test_a_file_without_durations_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "steps.txt"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"Received: .*steps\.txt"):
        Measured(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"text file with a number .*missing\.txt"):
        Measured(tmp_path / "missing.txt")


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Constant, {"seconds": -1.0}),
        (Constant, {"seconds": math.nan}),
        (Constant, {"seconds": True}),
        (LogNormal, {"median": 0.0}),
        (LogNormal, {"sigma": -0.1}),
        (Pareto, {"shape": 0.0}),
        (Pareto, {"scale": math.inf}),
        (RareSlow, {"share": 1.5}),
        (RareSlow, {"share": -0.1}),
        (RareSlow, {"least": 2.0, "most": 1.0}),
        (RareSlow, {"inner": "slow"}),
        (Slow, {"factors": {0: 0.0}}),
        (Slow, {"inner": None}),
        (Spread, {"least": 0.0}),
        (Spread, {"least": 3.0, "most": 1.0}),
        (Measured, {"seconds": ()}),
        (Measured, {"seconds": (1.0, -1.0)}),
        (Measured, {"seconds": (math.inf,)}),
    ],
)
def test_wrong_numbers_are_refused(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"Received: "):
        model(**options)


@pytest.mark.parametrize("value", ["1 s", None, True, -1.0])
def test_what_is_no_model_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="Received: "):
        latency_of(value, "compute")
