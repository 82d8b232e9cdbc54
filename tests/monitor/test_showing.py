"""What people read: the paragraph and the table."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paceline.monitor import Report, Statistics
from push_records import push, recorded, two_workers


def printed(report: Report, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(report.table())
    return stream.getvalue()


def test_the_summary() -> None:
    assert two_workers().report().summary() == (
        "2 workers made 4 steps in 4.00 s: 1.00 steps and 7.00 examples a second, "
        "5% of the time waiting. Staleness: mean 1.50, median 0, 99% at most 5, largest 5. "
        "worker:1 is slow: its steps take 4.0 s, 10 times the median over workers. "
        '1 of 5 pushes dropped: 1 because "Too stale". '
        "1 push came once more and did not count again."
    )


def test_the_summary_of_nothing() -> None:
    assert Statistics().report().summary() == "No push was recorded."


def test_the_summary_names_who_had_a_lease_too_long() -> None:
    statistics = two_workers()
    for worker in (1, 1, 7):
        statistics.note_taken_back(worker)
    assert (
        statistics.report()
        .summary()
        .endswith(
            " worker:1 had 2 leases longer than allowed: taken back. "
            "worker:7 had 1 lease longer than allowed: taken back."
        )
    )
    lone = Statistics()
    lone.note_taken_back(0)
    assert lone.report().summary() == (
        "No push was recorded. worker:0 had 1 lease longer than allowed: taken back."
    )


def test_the_summary_when_everything_was_dropped() -> None:
    report = recorded(push(outcome="dropped", reason="late"), push(outcome="dropped")).report()
    assert report.summary() == (
        "1 worker made 0 steps in 100 ms: 0.00 steps a second, 0% of the time waiting. "
        '2 of 2 pushes dropped: 1 because "late", 1 because "no reason given".'
    )


def test_the_summary_names_few_reasons() -> None:
    letters = [push(outcome="dropped", reason=f"reason {letter}") for letter in "abcdefgh"]
    assert recorded(*letters).report().summary().endswith(", 3 for other reasons.")


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_many_pushes_is_cut_nowhere(width: int) -> None:
    statistics = Statistics()
    for i in range(3_000):
        worker = i % 12
        outcome = "applied" if i % 5 else "dropped"
        statistics.record(
            push(worker, 0.001 * i, outcome=outcome, staleness=11, examples=512, reason="late")
        )
    text = printed(statistics.report(), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for heading in ("Worker", "Steps/s", "Examples/s", "Waits", "Stale", "Dropped", "Retried"):
        assert heading in text
    assert "worker:11" in text
    assert "12 workers made 2,400 steps" in text


def test_the_table_row_by_row() -> None:
    lines = [line.split() for line in printed(two_workers().report(), 80).splitlines()]
    assert ["worker:0", "3", "0.75", "5.00", "16%", "400", "ms", "0.33", "1", "1"] in lines
    assert ["worker:1", "1", "0.25", "2.00", "0%", "4.0", "s", "5.00", "0", "0"] in lines
    assert ["all", "4", "1.00", "7.00", "5%", "400", "ms", "1.50", "1", "1"] in lines


def test_a_table_without_drops_has_no_column_for_them() -> None:
    text = printed(recorded(push()).report(), 80)
    assert "Dropped" not in text
    assert "all" not in text.split()
