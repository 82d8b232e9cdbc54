"""Lockstep, with and without backup workers: event lists worked out by hand."""

from __future__ import annotations

import pytest

from pace_driver import Driver, Push
from paceline.errors import InvalidArgument
from paceline.pace import Apply, Drop, Hold, Synchronous


def test_a_round_closes_with_the_last_push() -> None:
    driver = Driver(Synchronous(), 3)
    driver.start(0, 1, 2)
    assert driver.push(1) == [Hold(0, "Round 1 waits for workers 0 and 2.")]
    assert driver.push(0) == [Hold(1, "Round 1 waits for worker 2.")]
    assert driver.why_wait(1) == "Worker 1 has pushed. Round 1 waits for worker 2."
    assert driver.push(2) == [Apply((0, 1, 2), "Round 1 closes with workers 0, 1 and 2.")]
    driver.start(0, 1, 2)
    assert driver.computing == {0: 1, 1: 1, 2: 1}


def test_a_worker_starts_any_time_before_its_round_closes() -> None:
    driver = Driver(Synchronous(), 2)
    driver.step(0)
    driver.start(1)
    assert driver.push(1) == [Apply((0, 1), "Round 1 closes with workers 0 and 1.")]


def test_a_worker_that_pulls_again_counts_once() -> None:
    driver = Driver(Synchronous(), 2)
    driver.start(0)
    driver.start(0)
    driver.push(0)
    assert driver.why_wait(0)


def test_a_round_does_not_wait_for_a_lost_worker() -> None:
    driver = Driver(Synchronous(), 3)
    driver.start(0, 1, 2)
    driver.push(0)
    driver.push(1)
    assert driver.leave(2) == [Apply((0, 1), "Round 1 closes with workers 0 and 1.")]
    driver.step(0)
    assert driver.step(1) == [Apply((2, 3), "Round 2 closes with workers 0 and 1.")]


def test_a_round_does_not_wait_for_a_worker_out_of_data() -> None:
    driver = Driver(Synchronous(), 3)
    for worker in (0, 1, 2):
        driver.step(worker)
    driver.step(0)
    assert driver.finish(2) == []
    assert driver.step(1) == [Apply((3, 4), "Round 2 closes with workers 0 and 1.")]
    assert driver.why_wait(2) == "Worker 2 ran out of data and has not joined again."
    driver.machine.join(2)
    driver.step(0)
    driver.step(1)
    assert driver.step(2) == [Apply((5, 6, 7), "Round 3 closes with workers 0, 1 and 2.")]


def test_the_held_push_of_a_lost_worker_counts_beside_those_of_the_others() -> None:
    driver = Driver(Synchronous(), 3)
    driver.start(0, 1, 2)
    driver.push(0)
    assert driver.leave(0) == []
    # It doesn't stand in for worker 2: without backups, no push of a live worker is dropped.
    assert driver.push(1) == [Hold(1, "Round 1 waits for worker 2.")]
    assert driver.push(2) == [Apply((0, 1, 2), "Round 1 closes with workers 0, 1 and 2.")]


def test_the_last_worker_to_leave_closes_its_round() -> None:
    driver = Driver(Synchronous(), 2)
    driver.step(0)
    assert driver.leave(1) == [Apply((0,), "Round 1 closes with worker 0.")]
    assert driver.leave(0) == []
    assert driver.leave(0) == []


def test_a_worker_that_comes_back_gives_one_push_to_a_round() -> None:
    driver = Driver(Synchronous(), 2)
    driver.step(0)
    driver.leave(0)
    driver.machine.join(0)
    assert driver.why_wait(0) == "Worker 0 has pushed. Round 1 waits for worker 1."
    assert driver.step(1) == [Apply((0, 1), "Round 1 closes with workers 0 and 1.")]
    assert not driver.why_wait(0)


def test_a_worker_that_joins_takes_part_in_the_open_round() -> None:
    driver = Driver(Synchronous(), 2)
    driver.step(0)
    driver.machine.join(2)
    assert driver.step(1) == [Hold(1, "Round 1 waits for worker 2.")]
    assert driver.step(2) == [Apply((0, 1, 2), "Round 1 closes with workers 0, 1 and 2.")]


def test_a_round_does_without_its_backups_and_drops_what_comes_late() -> None:
    driver = Driver(Synchronous(backups=1), 3)
    driver.start(0, 1, 2)
    waits = "Round 1 waits for workers 1 and 2, of which it can spare 1."
    assert driver.push(0) == [Hold(0, waits)]
    assert driver.why_wait(0) == f"Worker 0 has pushed. {waits}"
    assert driver.push(1) == [
        Apply((0, 1), "Round 1 closes with workers 0 and 1, without worker 2.")
    ]
    driver.step(0)
    assert driver.push(2) == [
        Drop(3, "Worker 2 came late for round 1, which closed without it; round 2 is open.")
    ]
    # It is level with the others again.
    assert driver.step(2) == [
        Apply((2, 4), "Round 2 closes with workers 0 and 2, without worker 1.")
    ]


def test_a_dead_worker_uses_up_a_backup_until_it_is_known_to_be_lost() -> None:
    driver = Driver(Synchronous(backups=1), 3)
    driver.start(0, 1, 2)
    driver.push(0)
    driver.push(1)
    driver.step(0)
    assert isinstance(driver.step(1)[0], Apply)
    assert driver.leave(2) == []
    assert driver.step(1) == [Apply((4,), "Round 3 closes with worker 1, without worker 0.")]


@pytest.mark.parametrize("backups", [2, 3, 100])
def test_a_round_has_at_least_one_push_however_many_the_backups(backups: int) -> None:
    driver = Driver(Synchronous(backups), 2)
    driver.start(0, 1)
    assert driver.push(1) == [Apply((0,), "Round 1 closes with worker 1, without worker 0.")]
    assert isinstance(driver.push(0)[0], Drop)
    driver.leave(1)
    assert driver.step(0) == [Apply((2,), "Round 2 closes with worker 0.")]
    assert driver.close() == []


def test_a_lost_worker_s_push_is_dropped_when_it_comes() -> None:
    driver = Driver(Synchronous(), 2)
    driver.start(0, 1)
    driver.leave(1)
    assert driver.push_late(1, 0) == [Drop(0, "Worker 1 has left, or never joined.")]


def test_a_push_from_before_a_worker_was_lost_does_not_count_for_the_one_that_came_back() -> None:
    driver = Driver(Synchronous(), 2)
    driver.start(0, 1)
    driver.leave(1)
    driver.machine.join(1)
    assert driver.push_late(1, 0) == [Drop(0, "Worker 1 pushed what it did not pull for round 1.")]
    driver.push(0)
    assert driver.step(1) == [Apply((1, 2), "Round 1 closes with workers 0 and 1.")]


def test_a_worker_out_of_data_may_still_push_what_it_pulled() -> None:
    driver = Driver(Synchronous(), 2)
    driver.start(0, 1)
    driver.finish(1)
    assert driver.push(1) == [Hold(0, "Round 1 waits for worker 0.")]
    assert driver.push(0) == [Apply((0, 1), "Round 1 closes with workers 0 and 1.")]


def test_two_pushes_of_one_worker_never_meet_in_a_round() -> None:
    driver = Driver(Synchronous(), 2)
    driver.step(0)
    # A driver that starts a worker without permission.
    driver.machine.started(0, 0)
    assert driver.push_late(0, 0) == [Drop(1, "Worker 0 has already pushed in round 1.")]


def test_close_applies_what_is_held_as_a_smaller_group() -> None:
    driver = Driver(Synchronous(), 3)
    driver.start(0, 1, 2)
    driver.push(2)
    assert driver.close() == [Apply((0,), "Update 1 is closed early, with what was held.")]
    assert driver.close() == []
    # The machine goes on with the next round.
    assert isinstance(driver.push(1)[0], Drop)
    for worker in (0, 1, 2):
        driver.machine.join(worker)
    driver.computing.clear()
    driver.step(0)
    driver.step(1)
    assert driver.step(2) == [Apply((2, 3, 4), "Round 2 closes with workers 0, 1 and 2.")]


def test_close_without_held_pushes_leaves_the_round_open() -> None:
    driver = Driver(Synchronous(), 2)
    driver.start(0, 1)
    assert driver.close() == []
    driver.push(0)
    assert driver.push(1) == [Apply((0, 1), "Round 1 closes with workers 0 and 1.")]


def test_nobody_is_stale_in_lockstep() -> None:
    driver = Driver(Synchronous(), 4)
    for _ in range(3):
        for worker in (3, 1, 0, 2):
            driver.step(worker)
    in_order = [Push(worker, 0) for worker in (3, 1, 0, 2)]
    assert driver.updates == [in_order] * 3


def test_a_long_list_of_missing_workers_is_cut() -> None:
    driver = Driver(Synchronous(), 100)
    assert driver.step(7) == [Hold(0, "Round 1 waits for workers 0, 1, 2, 3 and 95 more.")]


@pytest.mark.parametrize("backups", [-1, 0.5, True, None])
def test_backups_are_a_count(backups: object) -> None:
    with pytest.raises(InvalidArgument, match=r"at least 0\. Received: backups=.*Pass 0"):
        Synchronous(backups)  # pyright: ignore[reportArgumentType]
