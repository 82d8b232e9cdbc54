"""The virtual clock: lists of events worked out by hand."""

from __future__ import annotations

import math

import pytest

from paceline.virtual import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def drained(clock: Clock) -> list[float]:
    """Lets all events happen; returns when each one came."""
    times = []
    while clock.step():
        times.append(clock.now)
    return times


def test_events_come_in_the_order_of_their_times(clock: Clock) -> None:
    came: list[str] = []
    for time, name in ((3.0, "c"), (1.0, "a"), (2.0, "b")):
        clock.at(time, came.append, name)
    assert drained(clock) == [1.0, 2.0, 3.0]
    assert came == ["a", "b", "c"]


def test_of_equal_times_in_the_order_in_which_they_were_set(clock: Clock) -> None:
    came: list[int] = []
    for number in range(50):
        clock.at(1.0, came.append, number)
    drained(clock)
    assert came == list(range(50))


def test_events_that_cannot_be_compared_are_no_trouble(clock: Clock) -> None:
    came: list[object] = []
    for thing in (object(), {}, None, 1j):
        clock.at(1.0, came.append, thing)
    drained(clock)
    assert len(came) == 4


def test_time_stands_still_while_an_event_is_handled(clock: Clock) -> None:
    seen: list[float] = []
    clock.at(2.0, lambda: seen.append(clock.now))
    assert clock.now == 0.0
    clock.step()
    assert seen == [2.0]


def test_an_event_sets_others(clock: Clock) -> None:
    def tick() -> None:
        if clock.now < 3:
            clock.at(clock.now + 1, tick)

    clock.at(1.0, tick)
    assert drained(clock) == [1.0, 2.0, 3.0]


def test_what_was_set_for_the_past_comes_now(clock: Clock) -> None:
    clock.at(5.0, lambda: clock.at(1.0, list))
    clock.at(6.0, list)
    assert drained(clock) == [5.0, 5.0, 6.0]


def test_without_events_nothing_happens(clock: Clock) -> None:
    assert not clock.step()
    assert (clock.now, len(clock), clock.next_time) == (0.0, 0, math.inf)


def test_what_is_to_come_can_be_seen(clock: Clock) -> None:
    clock.at(4.0, list)
    clock.at(2.0, list)
    assert (len(clock), clock.next_time) == (2, 2.0)
    clock.step()
    assert (len(clock), clock.next_time) == (1, 4.0)


def test_an_event_that_fails_is_over(clock: Clock) -> None:
    clock.at(1.0, int, "no number")
    clock.at(2.0, list)
    with pytest.raises(ValueError, match="no number"):
        clock.step()
    assert drained(clock) == [2.0]
