"""Bounded staleness: event lists worked out by hand."""

from __future__ import annotations

import pytest

from pace_driver import Driver, Push, simulate
from paceline.errors import InvalidArgument
from paceline.pace import Apply, BoundedStaleness, Drop, Hold, Synchronous

AT_ONCE = "Bounded staleness holds back starts, never pushes."


@pytest.mark.case("R90")
def test_a_fast_worker_finishes_three_clocks_and_waits_before_the_fourth() -> None:
    driver = Driver(BoundedStaleness(2), 2)
    driver.start(1)
    for ticket in range(3):
        assert driver.step(0) == [Apply((ticket,), AT_ONCE)]
    assert driver.why_wait(0) == (
        "Worker 0 has finished clock 3 and may be at most 2 ahead: "
        "it waits for worker 1 to finish clock 1."
    )
    assert driver.push(1) == [Apply((3,), AT_ONCE)]
    assert driver.step(0) == [Apply((4,), AT_ONCE)]
    assert driver.why_wait(0)
    assert not driver.why_wait(1)
    assert driver.updates[3] == [Push(1, 3)]


@pytest.mark.parametrize("bound", [1, 3, 8])
def test_the_lead_grows_to_one_more_than_the_bound(bound: int) -> None:
    driver = Driver(BoundedStaleness(bound), 3)
    for _ in range(bound + 1):
        driver.step(0)
    assert "it waits for workers 1 and 2 to finish clock 1." in driver.why_wait(0)
    driver.step(1)
    assert "it waits for worker 2 to finish clock 1." in driver.why_wait(0)
    driver.step(2)
    assert not driver.why_wait(0)


@pytest.mark.parametrize("event", ["leave", "finish"])
def test_only_live_members_are_waited_for(event: str) -> None:
    driver = Driver(BoundedStaleness(1), 3)
    driver.start(1)
    driver.step(0)
    driver.step(0)
    driver.step(2)
    assert "waits for worker 1 to" in driver.why_wait(0)
    assert getattr(driver, event)(1) == []
    driver.step(0)
    assert "waits for worker 2 to" in driver.why_wait(0)


def test_a_worker_that_joins_is_level_with_the_slowest() -> None:
    driver = Driver(BoundedStaleness(1), 2)
    for _ in range(5):
        driver.step(0)
        driver.step(1)
    driver.step(0)
    driver.machine.join(2)
    # At clock 5: two steps to the wait, as for worker 1.
    driver.step(2)
    driver.step(2)
    assert "Worker 2 has finished clock 7" in driver.why_wait(2)
    assert "waits for worker 1 to finish clock 6" in driver.why_wait(2)


def test_joining_twice_changes_nothing() -> None:
    driver = Driver(BoundedStaleness(1), 2)
    driver.step(0)
    driver.step(0)
    driver.machine.join(0)
    assert driver.why_wait(0)


def test_a_rest_does_not_wipe_out_a_lead() -> None:
    driver = Driver(BoundedStaleness(1), 2)
    driver.step(0)
    driver.step(0)
    driver.finish(0)
    driver.machine.join(0)
    assert "Worker 0 has finished clock 2" in driver.why_wait(0)


def test_a_worker_that_rested_does_not_hold_the_others_up() -> None:
    driver = Driver(BoundedStaleness(1), 2)
    driver.finish(1)
    for _ in range(10):
        driver.step(0)
    driver.machine.join(1)
    driver.step(0)
    driver.step(0)
    assert "waits for worker 1 to finish clock 11" in driver.why_wait(0)


def test_a_group_that_rested_goes_on_where_it_stood() -> None:
    driver = Driver(BoundedStaleness(1), 2)
    for _ in range(3):
        driver.step(0)
        driver.step(1)
    driver.step(0)
    driver.finish(1)
    driver.leave(0)
    driver.machine.join(2)
    driver.machine.join(1)
    # Level with worker 0, the last to go: clock 4.
    driver.step(2)
    driver.step(2)
    assert "waits for worker 1 to finish clock 5" in driver.why_wait(2)


def test_a_worker_out_of_data_may_still_push_what_it_pulled() -> None:
    driver = Driver(BoundedStaleness(1), 2)
    driver.step(0)
    driver.start(0)
    driver.finish(0)
    assert driver.push(0) == [Apply((1,), AT_ONCE)]
    driver.machine.join(0)
    assert "Worker 0 has finished clock 2" in driver.why_wait(0)


def test_a_lost_worker_s_push_is_dropped_when_it_comes() -> None:
    driver = Driver(BoundedStaleness(1), 2)
    driver.start(0)
    driver.leave(0)
    assert driver.push_late(0, 0) == [Drop(0, "Worker 0 has left, or never joined.")]
    assert driver.why_wait(0) == "Worker 0 has left, or never joined."
    assert driver.close() == []


@pytest.mark.case("R90")
def test_bound_zero_is_lockstep() -> None:
    driver = Driver(BoundedStaleness(0), 2)
    driver.start(0, 1)
    assert driver.push(0) == [Hold(0, "Round 1 waits for worker 1.")]
    assert driver.why_wait(0)
    assert driver.push(1) == [Apply((0, 1), "Round 1 closes with workers 0 and 1.")]
    assert simulate(BoundedStaleness(0), 5, 40) == simulate(Synchronous(), 5, 40)


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_staleness_is_bounded_among_equal_workers(bound: int) -> None:
    num_workers = 8
    updates = simulate(BoundedStaleness(bound), num_workers, 2000)
    # Between a worker's start and its push, another one goes from at most `bound` behind to at
    # most `bound + 1` ahead.
    most = (num_workers - 1) * (2 * bound + 1)
    assert all(push.staleness <= most for update in updates for push in update)
    counts = [0] * num_workers
    for [push] in updates:
        counts[push.worker] += 1
        assert max(counts) - min(counts) <= bound + 1


@pytest.mark.parametrize("bound", [-1, 1.5, True, None])
def test_the_bound_is_a_count(bound: object) -> None:
    with pytest.raises(InvalidArgument, match=r"at least 0\. Received: bound=.*Asynchronous\(\)"):
        BoundedStaleness(bound)  # pyright: ignore[reportArgumentType]
