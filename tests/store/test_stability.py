"""The last stable learning rate, and the watch that warns of it."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest

from paceline.errors import InvalidArgument
from paceline.store.rules import GapAware, Plain, StalenessScaled, UpdateRule
from paceline.store.stability import StabilityWatch, last_stable_rate
from paceline.testing.tolerances import GOLDEN, assert_close

DELAYS = [0, 1, 3, 7, 31]


@pytest.mark.parametrize(
    ("delay", "rate"), [(0, 2), (1, 1), (3, 0.4450), (7, 0.2091), (31, 0.0499)]
)
def test_the_rates_of_the_formula(delay: int, rate: float) -> None:
    assert round(last_stable_rate(delay), 4) == rate
    assert_close(last_stable_rate(delay, 4.0), last_stable_rate(delay) / 4, GOLDEN)


def is_stable(rate: float, delay: int) -> bool:
    """Whether delayed descent on w^2 / 2 shrinks, by running it."""
    history = deque([1.0] * (delay + 1), maxlen=delay + 1)
    peaks = []
    for _ in range(4):
        peak = 0.0
        for _ in range(150 * (delay + 1)):
            history.append(history[-1] - rate * history[0])
            peak = max(peak, abs(history[-1]))
        if not peak < 1e100:
            return False
        peaks.append(peak)
    return peaks[-1] < peaks[1]


@pytest.mark.parametrize("delay", DELAYS)
def test_delayed_descent_is_stable_up_to_that_rate(delay: int) -> None:
    low, high = 0.0, 3.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(middle, delay) else (low, middle)
    assert abs(low / last_stable_rate(delay) - 1) < 0.01


def test_a_fractional_delay_lies_between_its_neighbours() -> None:
    assert last_stable_rate(3) > last_stable_rate(3.5) > last_stable_rate(4)


@pytest.mark.parametrize(("delay", "curvature"), [(-1, 1.0), (math.inf, 1.0), (1, 0.0), (1, -2.0)])
def test_what_has_no_last_rate_is_refused(delay: float, curvature: float) -> None:
    with pytest.raises(InvalidArgument, match=rf"Received: delay={delay!r}, curvature="):
        last_stable_rate(delay, curvature)


def said(
    watch: StabilityWatch, rate: float, *, rule: UpdateRule | None = None, delay: int = 3
) -> list[str]:
    """What the watch says in 100 pushes of one staleness at curvature 2."""
    rule = rule or Plain()
    sentences = [
        watch.observe(delay, rate, scale=rule.effective_scale(delay), curvature=2.0)
        for _ in range(100)
    ]
    return [sentence for sentence in sentences if sentence]


# With delay 3 and curvature 2 the last stable rate is 0.2225, and 80% of it 0.178.


def test_it_speaks_once_when_the_rate_is_near_the_limit() -> None:
    watch = StabilityWatch()
    (sentence,) = said(watch, 0.18)
    assert "close to instability" in sentence
    assert "mean staleness of 3.0" in sentence
    assert "learning rate of 0.18," in sentence
    assert "last stable rate is 0.223" in sentence
    assert "measured curvature of 2" in sentence
    assert "lower the learning rate below 0.178" in sentence
    assert "StalenessScaled" in sentence
    assert not said(watch, 10.0)


def test_it_is_silent_below_four_fifths_of_the_limit() -> None:
    watch = StabilityWatch()
    assert not said(watch, 0.175)
    assert_close(watch.last_stable_rate, last_stable_rate(3, 2.0), GOLDEN)


def test_beyond_the_limit_it_says_so() -> None:
    (sentence,) = said(StabilityWatch(), 0.25)
    assert "training is unstable" in sentence


@pytest.mark.parametrize("rule", [StalenessScaled(), StalenessScaled(slope=1.0), GapAware()])
def test_a_rule_that_scales_the_step_counts(rule: UpdateRule) -> None:
    assert not said(StabilityWatch(), 0.25, rule=rule)


def test_a_scaled_rate_may_still_be_too_large() -> None:
    (sentence,) = said(StabilityWatch(), 0.6, rule=StalenessScaled())
    assert "learning rate of 0.6 that the update rule scales to 0.2," in sentence
    assert "lower the learning rate below 0.534" in sentence  # 0.178 * 3
    assert "StalenessScaled" not in sentence


def test_it_needs_pushes_and_a_curvature_before_it_judges() -> None:
    watch = StabilityWatch(warm_up=5)
    assert not any(watch.observe(3, 9.0) for _ in range(50))
    assert watch.curvature is None
    assert watch.last_stable_rate is None
    answers = [watch.observe(3, 9.0, secant=(0.5, 1.0)) for _ in range(5)]
    assert [bool(answer) for answer in answers] == [False] * 4 + [True]
    assert watch.curvature == 2.0


def test_secants_count_once_all_workers_have_pushed_twice() -> None:
    watch = StabilityWatch()
    for index, staleness in enumerate((0, 1, 2, 3, 3, 3)):
        watch.observe(staleness, 0.1, secant=(1.0, 100.0) if index >= 4 else None)
    assert watch.curvature is None  # 6 pushes of mean staleness 2
    watch.observe(3, 0.1, curvature=5.0)
    assert watch.curvature == 5.0
    watch.observe(3, 0.1, secant=(1.0, 7.0))
    assert watch.curvature == 6.0


def test_the_mean_follows_the_pushes_of_its_window() -> None:
    watch = StabilityWatch(window=50)
    for staleness in (0, 2, 4):
        watch.observe(staleness, 0.3, scale=0.5)
    assert watch.mean_staleness == 2.0
    assert_close((watch.mean_rate, watch.effective_rate), (0.3, 0.15), GOLDEN)
    for _ in range(1000):
        watch.observe(7, 0.1)
    assert_close((watch.mean_staleness, watch.mean_rate), (7.0, 0.1), GOLDEN)


def test_numbers_of_a_run_that_blew_up_are_left_out() -> None:
    watch = StabilityWatch()
    watch.observe(0, 0.1, secant=(1.0, 2.0))
    for bad in (math.nan, math.inf):
        watch.observe(0, bad, secant=(1.0, bad))
        watch.observe(0, 0.1, secant=(bad, 1.0))
    assert watch.mean_rate == 0.1
    assert watch.curvature == 2.0


def test_negative_curvature_sets_no_limit() -> None:
    watch = StabilityWatch()
    assert not any(watch.observe(3, 9.0, secant=(1.0, -1.0)) for _ in range(50))
    assert watch.curvature is None


@pytest.mark.parametrize("options", [{"margin": 0.0}, {"window": 0}, {"warm_up": 0}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=r"Received: margin=.*, window=.*, warm_up="):
        StabilityWatch(**options)  # pyright: ignore[reportArgumentType]


def trained(
    rate: float, num_workers: int, curvatures: np.ndarray, noise: float
) -> StabilityWatch | str:
    """Workers in turn on a quadratic, watched by the secants of each worker's own reads."""
    rng = np.random.default_rng(0)
    w = np.ones_like(curvatures)
    watch = StabilityWatch()
    reads, before = [w] * num_workers, [None] * num_workers
    for step in range(600):
        m = step % num_workers
        grad = curvatures * reads[m] + noise * rng.normal(size=w.shape)
        secant = None
        if before[m] is not None:
            moved, changed = reads[m] - before[m][0], grad - before[m][1]
            secant = (float(moved @ moved), float(moved @ changed))
        before[m] = (reads[m], grad)
        w = w - rate * grad
        reads[m] = w
        sentence = watch.observe(min(step, num_workers - 1), rate, secant=secant)
        if sentence:
            return sentence
    return watch


CURVATURES = np.linspace(0.05, 1.0, 20)


@pytest.mark.parametrize("num_workers", [1, 4, 8, 32])
def test_secants_find_an_unstable_rate(num_workers: int) -> None:
    limit = last_stable_rate(num_workers - 1)
    assert isinstance(trained(1.05 * limit, num_workers, CURVATURES, noise=0.0), str)


@pytest.mark.parametrize("num_workers", [1, 4, 8, 32])
def test_secants_of_a_stable_run_say_nothing(num_workers: int) -> None:
    limit = last_stable_rate(num_workers - 1)
    assert not isinstance(trained(0.5 * limit, num_workers, CURVATURES, noise=0.0), str)


@pytest.mark.parametrize("num_workers", [1, 2, 8, 32, 96])
def test_noise_alone_says_nothing(num_workers: int) -> None:
    watch = trained(0.01, num_workers, np.full(1000, 1e-3), noise=1.0)
    assert isinstance(watch, StabilityWatch)
    assert watch.curvature is not None
    assert watch.curvature * 0.01 < 0.7 * last_stable_rate(num_workers - 1)
