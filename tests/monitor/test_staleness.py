"""Statistics of pushes, against values worked out by hand."""

from __future__ import annotations

import json
import threading
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidArgument
from paceline.monitor import Statistics, buckets
from push_records import push, recorded, two_workers


def test_nothing_recorded() -> None:
    report = Statistics().report()
    assert (report.pushes, report.seconds, report.steps_per_second) == (0, 0, 0)
    assert (report.mean_staleness, report.max_staleness, report.percentile(50)) == (0, 0, 0)
    assert (report.histogram, report.workers, report.stragglers, report.drops) == ({}, (), (), {})


def test_totals() -> None:
    report = two_workers().report()
    assert (report.applied, report.dropped, report.pushes, report.retries) == (4, 1, 5, 1)
    assert (report.started_at, report.finished_at, report.seconds) == (10, 14, 4)
    assert report.steps_per_second == 1.0
    assert (report.examples, report.examples_per_second) == (28, 7.0)
    # A dropped push has a staleness too, which the weights never saw.
    assert report.histogram == {0: 2, 1: 1, 5: 1}
    assert (report.mean_staleness, report.max_staleness) == (1.5, 5)
    assert report.wait_share == pytest.approx(0.3 / (0.3 + 1.6 + 4.0))
    assert report.drops == {"Too stale.": 1}


def test_workers() -> None:
    fast, slow = two_workers().report().workers
    assert (fast.name, slow.name) == ("worker:0", "worker:1")
    assert (fast.applied, fast.dropped, fast.retries) == (3, 1, 1)
    assert (slow.applied, slow.dropped, slow.retries) == (1, 0, 0)
    assert (fast.steps_per_second, slow.steps_per_second) == (0.75, 0.25)
    assert (fast.examples_per_second, slow.examples_per_second) == (5.0, 2.0)
    assert fast.wait_share == pytest.approx(0.3 / 1.9)
    assert slow.wait_share == 0
    assert fast.mean_compute == pytest.approx(0.4)
    assert fast.mean_staleness == pytest.approx(1 / 3)
    assert slow.mean_staleness == 5
    assert fast.drops == {"Too stale.": 1}
    assert slow.drops == {}


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (7, 7), (50, 50), (90, 90), (99, 99), (99.5, 100), (100, 100)]
)
def test_percentiles_are_the_nearest_ranks(percent: float, expected: int) -> None:
    report = recorded(*(push(staleness=s) for s in range(100, 0, -1))).report()
    assert report.percentile(percent) == expected


@pytest.mark.parametrize("percent", [-1, 100.1])
def test_a_percentile_lies_between_0_and_100(percent: float) -> None:
    with pytest.raises(InvalidArgument, match=r"between 0 and 100. Received: percent="):
        Statistics().report().percentile(percent)


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"outcome='held' of worker 3"):
        recorded(push(3, outcome="held"))


class TestStragglers:
    def test_the_slower_of_two_is_named(self) -> None:
        assert two_workers().report().stragglers == ("worker:1",)

    def test_three_times_the_median_is_not_over_it(self) -> None:
        times = [0.1, 0.1, 0.29, 0.31]
        report = recorded(*(push(i, compute=time) for i, time in enumerate(times))).report()
        assert report.typical_compute == pytest.approx(0.1, rel=0.004)
        assert report.stragglers == ("worker:3",)

    def test_the_median_of_a_worker_counts_and_not_its_compilation(self) -> None:
        first = [push(0, compute=30.0), push(1, compute=0.1)]
        rest = [push(worker, compute=0.1) for worker in (0, 1) for _ in range(2)]
        report = recorded(*first, *rest).report()
        assert report.workers[0].median_compute == pytest.approx(0.1, rel=0.004)
        assert report.stragglers == ()

    def test_waiting_for_a_slow_worker_makes_nobody_slow(self) -> None:
        waiting = [push(worker, wait=10.0, compute=0.1) for worker in (0, 1, 2)]
        report = recorded(*waiting, push(3, compute=10.1)).report()
        assert report.stragglers == ("worker:3",)

    def test_a_worker_whose_pushes_are_all_dropped_is_named(self) -> None:
        # Rounds with a backup worker close without the slow one.
        late = push(2, outcome="dropped", compute=1.0, reason="late")
        assert recorded(push(0), push(1), late).report().stragglers == ("worker:2",)

    def test_updates_without_a_step_time_are_left_out(self) -> None:
        report = recorded(push(0, compute=0.0), push(1, compute=0.1), push(0, compute=0.1)).report()
        assert report.stragglers == ()
        assert report.workers[0].mean_compute == pytest.approx(0.1)

    def test_one_worker_is_alone(self) -> None:
        assert recorded(push(compute=5.0)).report().stragglers == ()


class TestSince:
    def test_only_what_came_in_between_counts(self) -> None:
        statistics = recorded(
            push(0, 1.0, staleness=7, compute=1.0, examples=4),
            push(0, 1.5, outcome="dropped", compute=0.5, reason="Late for round 1."),
        )
        earlier = statistics.report()
        for record in (
            push(1, 3.0, staleness=2, compute=0.1, examples=8),
            push(0, 3.5, staleness=3, compute=0.1, wait=0.3, examples=8),
            push(0, 3.6, outcome="duplicate"),
            push(0, 4.0, outcome="dropped", compute=0.1, reason="Late for round 2."),
        ):
            statistics.record(record)
        epoch = statistics.report().since(earlier)
        assert (epoch.applied, epoch.dropped, epoch.retries, epoch.examples) == (2, 1, 1, 16)
        assert epoch.histogram == {2: 1, 3: 1}
        assert (epoch.mean_staleness, epoch.max_staleness) == (2.5, 3)
        assert epoch.workers[0].median_compute == pytest.approx(0.1, rel=0.004)
        assert epoch.workers[0].wait_share == pytest.approx(0.3 / 0.5)
        assert epoch.drops == {"Late for round N.": 1}

    def test_a_pause_before_the_first_push_does_not_count(self) -> None:
        statistics = recorded(push(at=1.0))
        earlier = statistics.report()
        # A validation from second 1 to second 9.
        statistics.record(push(at=10.0, wait=0.25, compute=0.75))
        statistics.record(push(at=11.0))
        epoch = statistics.report().since(earlier)
        assert (epoch.started_at, epoch.seconds, epoch.steps_per_second) == (9.0, 2.0, 1.0)

    def test_a_push_under_way_begins_with_the_part(self) -> None:
        statistics = recorded(push(0, 1.0), push(1, 5.0))
        earlier = statistics.report()
        statistics.record(push(0, 7.0, compute=6.0))
        assert statistics.report().since(earlier).seconds == 2.0

    def test_since_nothing_is_everything(self) -> None:
        statistics = Statistics()
        earlier = statistics.report()
        statistics.record(push(at=3.0, compute=1.0))
        report = statistics.report()
        assert report.since(earlier) == report
        assert report.since(earlier).seconds == 1.0

    def test_since_itself_is_nothing(self) -> None:
        statistics = two_workers()
        empty = statistics.report().since(statistics.report())
        assert (empty.pushes, empty.seconds, empty.histogram) == (0, 0, {})
        assert [one.name for one in empty.workers] == ["worker:0", "worker:1"]
        assert empty.stragglers == ()

    def test_parts_of_parts(self) -> None:
        statistics = Statistics()
        reports = [statistics.report()]
        for at in (1.0, 2.0, 3.0):
            statistics.record(push(at=at, staleness=int(at), compute=0.5))
            reports.append(statistics.report())
        last = reports[3].since(reports[1]).since(reports[2].since(reports[1]))
        assert (last.histogram, last.seconds) == ({3: 1}, 0.5)

    def test_a_later_report_is_refused(self) -> None:
        statistics = recorded(push())
        earlier = statistics.report()
        statistics.record(push())
        with pytest.raises(InvalidArgument, match="counts 2 pushes, where this one counts 1"):
            earlier.since(statistics.report())

    def test_a_report_does_not_change_afterwards(self) -> None:
        statistics = recorded(push(outcome="dropped", reason="a"))
        report = statistics.report()
        statistics.record(push(staleness=4))
        statistics.record(push(outcome="dropped", reason="a"))
        assert (report.pushes, report.histogram, report.drops) == (1, {}, {"a": 1})


def test_leases_that_were_taken_back() -> None:
    statistics = two_workers()
    statistics.note_taken_back(1)
    earlier = statistics.report()
    statistics.note_taken_back(1)
    statistics.note_taken_back(4)
    report = statistics.report()
    assert report.taken_back == 3
    assert {one.name: one.taken_back for one in report.since(earlier).workers} == {
        "worker:0": 0,
        "worker:1": 1,
        "worker:4": 1,
    }
    assert report.as_dict()["taken_back"] == 3
    assert report.as_dict()["workers"]["worker:1"]["taken_back"] == 2
    with pytest.raises(InvalidArgument, match="an earlier report of the same statistics"):
        earlier.since(report)


def test_as_dict_is_json() -> None:
    told = two_workers().report().as_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["staleness"] == {
        "mean": 1.5,
        "p50": 0,
        "p90": 5,
        "p99": 5,
        "max": 5,
        "histogram": {"0": 2, "1": 1, "5": 1},
    }
    assert told["stragglers"] == ["worker:1"]
    assert told["workers"]["worker:1"]["applied"] == 1
    assert told["workers"]["worker:0"]["drops"] == {"Too stale.": 1}


def test_memory_does_not_grow_with_the_run() -> None:
    statistics = Statistics()
    for i in range(20_000):
        statistics.record(push(staleness=i * 50, compute=1e-4 * (i + 1)))
        statistics.record(push(outcome="dropped", compute=0.1, reason=f"Late for round {i}."))
    report = statistics.report()
    # 4,096 exact values and 2,048 for each of the 8 doublings up to a million.
    assert len(report.histogram) < 4096 / 50 + 8 * 2048
    assert len(report.workers[0].step_times) <= 128 * 16
    assert report.drops == {"Late for round N.": 20_000}
    assert report.percentile(50) == pytest.approx(500_000, rel=1 / 2048)


@given(st.integers(0, 2**60))
def test_large_numbers_are_rounded_down_a_little(number: int) -> None:
    rounded = buckets.rounded(number)
    assert number * 2047 // 2048 <= rounded <= number
    if number < buckets.EXACT_BELOW:
        assert rounded == number


@given(st.floats(1e-9, 1e6))
def test_a_duration_is_kept_within_the_width_of_its_bucket(seconds: float) -> None:
    assert buckets.to_seconds(buckets.of_seconds(seconds)) == pytest.approx(seconds, rel=0.004)


@given(st.floats(1e-9, 1e6), st.floats(1e-9, 1e6))
def test_buckets_are_in_order(one: float, other: float) -> None:
    if one <= other:
        assert buckets.of_seconds(one) <= buckets.of_seconds(other)


def test_pushes_from_many_threads_all_count() -> None:
    statistics = Statistics()
    reports = []

    def work(worker: int) -> None:
        for i in range(500):
            statistics.record(push(worker, at=float(i), staleness=i % 7))
            if i % 50 == 0:
                reports.append(statistics.report())

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = statistics.report()
    assert [one.applied for one in report.workers] == [500] * 4
    assert sum(report.histogram.values()) == 2000
    assert all(one.applied == sum(one.histogram.values()) for one in reports)


def test_a_record_is_cheap() -> None:
    statistics = Statistics()
    reason = "Worker 1 came late for round 7, which closed without it; round 9 is open."
    records = [push(1, staleness=3, wait=0.1), push(1, outcome="dropped", reason=reason)]
    for record in records:
        best = min(timeit.repeat(lambda one=record: statistics.record(one), number=500, repeat=20))
        # About 1.5 microseconds; the bound leaves room for a machine that is busy or slow.
        assert best / 500 < 20e-6
