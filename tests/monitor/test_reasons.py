"""Reasons for drops, counted together where only their numbers differ."""

from __future__ import annotations

import pickle

from paceline.monitor.reasons import MOST_KINDS, Reasons


def counted(*reasons: str) -> Reasons:
    result = Reasons()
    for reason in reasons:
        result.add(reason)
    return result


def test_numbers_that_differ_become_one() -> None:
    reasons = counted(
        "Worker 1 pushed with staleness 7, above 4.",
        "Worker 1 pushed with staleness 12, above 4.",
        "Worker 1 has left.",
    )
    assert reasons.as_dict() == {
        "Worker 1 pushed with staleness N, above 4.": 2,
        "Worker 1 has left.": 1,
    }
    assert reasons.total == 3


def test_a_reason_that_came_once_is_shown_as_it_is() -> None:
    assert counted("late for round 17").as_dict() == {"late for round 17": 1}


def test_sums_of_workers() -> None:
    both = counted("worker 0 is late", "worker 0 is late") + counted("worker 1 is late")
    assert both.as_dict() == {"worker N is late": 3}


def test_a_sum_leaves_its_parts_alone() -> None:
    one = counted("round 1")
    both = one + counted("round 2")
    both.add("round 3")
    assert one.as_dict() == {"round 1": 1}
    assert both.as_dict() == {"round N": 3}


def test_differences() -> None:
    earlier = counted("round 1", "left")
    later = earlier + counted("round 2", "round 3")
    assert (later - earlier).as_dict() == {"round N": 2}
    assert (later - later).as_dict() == {}


def test_many_reasons_are_counted_as_others() -> None:
    letters = [chr(ord("a") + i // 26) + chr(ord("a") + i % 26) for i in range(MOST_KINDS + 10)]
    reasons = counted(*letters)
    assert len(reasons.as_dict()) == MOST_KINDS + 1
    assert reasons.as_dict()["other reasons"] == 10
    assert reasons.total == MOST_KINDS + 10
    more = counted(*letters, *letters) - reasons
    assert more.total == MOST_KINDS + 10


def test_the_same_words_with_numbers_elsewhere() -> None:
    assert sum(counted("a1b", "ab1").as_dict().values()) == 2


def test_an_empty_reason() -> None:
    assert counted("", "").as_dict() == {"no reason given": 2}


def test_they_can_be_sent() -> None:
    reasons = counted("round 1", "round 2")
    assert pickle.loads(pickle.dumps(reasons)).as_dict() == reasons.as_dict()
