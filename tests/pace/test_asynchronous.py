"""Free-running, with and without a cap: event lists worked out by hand, and the mean staleness."""

from __future__ import annotations

from statistics import fmean

import pytest

from pace_driver import Driver, Push, simulate
from paceline.errors import InvalidArgument
from paceline.pace import Apply, Asynchronous, Drop

AT_ONCE = "A free-running pace applies every push at once."


def test_every_push_is_applied_at_once() -> None:
    driver = Driver(Asynchronous(), 2)
    driver.start(1)
    for ticket in range(20):
        assert driver.step(0) == [Apply((ticket,), AT_ONCE)]
    assert driver.push(1) == [Apply((20,), AT_ONCE)]
    assert driver.updates[-1] == [Push(1, 20)]
    assert driver.close() == []


def test_a_push_above_the_cap_is_dropped_and_the_next_is_fresh() -> None:
    driver = Driver(Asynchronous(max_staleness=2), 2)
    driver.start(1)
    driver.step(0)
    assert driver.step(0) == [Apply((1,), "Its staleness is within the largest allowed, 2.")]
    assert isinstance(driver.push(1)[0], Apply)
    driver.start(1)
    for _ in range(3):
        driver.step(0)
    assert driver.push(1) == [
        Drop(6, "Worker 1 pushed with staleness 3, above the largest allowed, 2.")
    ]
    assert isinstance(driver.step(1)[0], Apply)


def test_a_cap_of_zero_takes_current_pushes_only() -> None:
    driver = Driver(Asynchronous(max_staleness=0), 3)
    driver.start(0, 1, 2)
    driver.push(2)
    driver.push(0)
    driver.push(1)
    assert driver.updates == [[Push(2, 0)]]
    assert list(driver.dropped) == [1, 2]


def test_workers_come_and_go() -> None:
    driver = Driver(Asynchronous(), 2)
    driver.start(0)
    assert driver.leave(0) == []
    assert driver.push_late(0, 0) == [Drop(0, "Worker 0 has left, or never joined.")]
    assert driver.push_late(7, 0) == [Drop(1, "Worker 7 has left, or never joined.")]
    assert driver.why_wait(7) == "Worker 7 has left, or never joined."
    driver.start(1)
    assert driver.finish(1) == []
    assert driver.why_wait(1) == "Worker 1 ran out of data and has not joined again."
    assert driver.push(1) == [Apply((2,), AT_ONCE)]
    driver.machine.join(1)
    driver.machine.join(0)
    assert driver.step(0) == [Apply((3,), AT_ONCE)]
    assert driver.step(1) == [Apply((4,), AT_ONCE)]


@pytest.mark.parametrize("num_workers", [1, 2, 8, 32])
def test_mean_staleness_of_n_equal_workers_is_n_minus_1(num_workers: int) -> None:
    updates = simulate(Asynchronous(), num_workers, num_updates=300 * num_workers)
    # In the first passes over the workers the staleness still grows.
    staleness = [push.staleness for [push] in updates[10 * num_workers :]]
    assert fmean(staleness) == pytest.approx(num_workers - 1, rel=0.01)
    assert max(staleness) <= 2 * num_workers


def test_no_update_is_staler_than_the_cap() -> None:
    updates = simulate(Asynchronous(max_staleness=5), 8, num_updates=1000)
    assert max(push.staleness for [push] in updates) == 5


@pytest.mark.parametrize("max_staleness", [-1, 2.5, True])
def test_the_cap_is_a_count(max_staleness: object) -> None:
    with pytest.raises(InvalidArgument, match=r"Received: max_staleness=.*Pass None"):
        Asynchronous(max_staleness)  # pyright: ignore[reportArgumentType]
