"""Softsync: event lists worked out by hand, and the published mean staleness."""

from __future__ import annotations

from statistics import fmean

import pytest

from pace_driver import Driver, Push, simulate
from paceline.errors import InvalidArgument
from paceline.pace import Apply, Drop, Hold, Softsync


def test_every_so_many_pushes_make_an_update_whoever_they_come_from() -> None:
    driver = Driver(Softsync(3), 2)
    driver.start(1)
    assert driver.step(0) == [Hold(0, "Update 1 has 1 of 3 pushes.")]
    assert driver.step(0) == [Hold(1, "Update 1 has 2 of 3 pushes.")]
    assert driver.step(0) == [Apply((0, 1, 2), "Update 1 has 3 of 3 pushes.")]
    assert driver.push(1) == [Hold(3, "Update 2 has 1 of 3 pushes.")]
    driver.step(0)
    assert driver.step(0) == [Apply((3, 4, 5), "Update 2 has 3 of 3 pushes.")]
    assert driver.updates == [
        [Push(0, 0), Push(0, 0), Push(0, 0)],
        [Push(1, 1), Push(0, 0), Push(0, 0)],
    ]


def test_groups_of_one_are_applied_at_once() -> None:
    driver = Driver(Softsync(1), 2)
    assert driver.step(1) == [Apply((0,), "Update 1 has 1 of 1 pushes.")]


def test_a_group_that_nobody_is_left_to_fill_is_applied_as_it_is() -> None:
    driver = Driver(Softsync(4), 3)
    driver.step(0)
    driver.step(1)
    assert driver.leave(0) == []
    assert driver.finish(1) == []
    assert driver.leave(2) == [
        Apply((0, 1), "Update 1 has 2 of 4 pushes, and no worker is left to push more.")
    ]
    driver.machine.join(1)
    assert driver.step(1) == [Hold(2, "Update 2 has 1 of 4 pushes.")]


def test_a_push_after_all_ran_out_of_data_is_not_held() -> None:
    driver = Driver(Softsync(2), 1)
    driver.start(0)
    assert driver.finish(0) == []
    assert driver.push(0) == [
        Apply((0,), "Update 1 has 1 of 2 pushes, and no worker is left to push more.")
    ]


def test_close_applies_what_is_held() -> None:
    driver = Driver(Softsync(4), 2)
    driver.step(0)
    driver.step(1)
    assert driver.close() == [Apply((0, 1), "Update 1 is closed early, with what was held.")]
    assert driver.step(0) == [Hold(2, "Update 2 has 1 of 4 pushes.")]


def test_a_lost_worker_s_push_is_dropped_when_it_comes() -> None:
    driver = Driver(Softsync(2), 2)
    driver.start(0)
    driver.leave(0)
    assert driver.push_late(0, 0) == [Drop(0, "Worker 0 has left, or never joined.")]


@pytest.mark.parametrize(("n", "mean"), [(1, 0.97), (2, 1.93), (5, 4.83), (10, 9.67), (30, 29.0)])
def test_mean_staleness_of_n_softsync_is_about_n(n: int, mean: float) -> None:
    num_workers = 30
    updates = simulate(Softsync(num_workers // n), num_workers, num_updates=200 * n)
    # In the first passes over the workers the staleness still grows.
    staleness = [push.staleness for update in updates[10 * n :] for push in update]
    assert fmean(staleness) == pytest.approx(mean, rel=0.05)
    assert max(staleness) <= 2 * n


@pytest.mark.parametrize("pushes", [0, -3, 2.0, False])
def test_pushes_are_a_count(pushes: object) -> None:
    with pytest.raises(InvalidArgument, match=r"at least 1\. Received: pushes=.*workers // n"):
        Softsync(pushes)  # pyright: ignore[reportArgumentType]
