"""Workers in virtual time, event by event: lists and times worked out by hand.

A step takes its worker one second unless a test says otherwise.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from paceline.errors import WaitTimeout
from paceline.pace import Asynchronous, BoundedStaleness, Softsync, Synchronous
from paceline.program.handover import handover
from paceline.testing import CONVERGENCE, assert_close
from paceline.virtual import LogNormal, Pareto, Slow
from virtual_labs import lab_of, pushes, ran

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.cluster.work import Work
    from paceline.pace import Pace


# Time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "workers", "seconds"), [(1, 1, 2.0), (7, 1, 14.0), (8, 4, 4.0), (9, 4, 6.0)]
)
def test_equal_workers_share_the_steps(steps: int, workers: int, seconds: float) -> None:
    lab = ran(steps, workers, compute=2.0)
    assert lab.driver.clock.now == seconds
    assert {record.compute for record in lab.records} == {2.0}
    assert {record.wait for record in lab.records} == {0.0}


def test_a_slow_worker_takes_fewer_steps() -> None:
    lab = ran(11, 2, compute=Slow(1.0, {1: 10.0}))
    assert pushes(lab) == [(0, float(k)) for k in range(1, 10)] + [(1, 10.0), (0, 10.0)]


def test_latency_is_paid_four_times_a_step() -> None:
    """For the request and the answer of the pull, and for those of the push."""
    lab = ran(3, 1, network=0.25)
    assert [at for _, at in pushes(lab)] == [1.75, 3.75, 5.75]
    assert lab.driver.clock.now == 6.0
    assert {record.compute for record in lab.records} == {1.5}  # from the pull to the push


def test_work_that_makes_no_step_takes_as_long_as_one() -> None:
    with lab_of(2) as lab:
        for _ in range(4):
            lab.submit(lambda worker: None)
        lab.driver.join()
        assert lab.driver.clock.now == 2.0


def test_several_steps_of_one_function_take_their_times() -> None:
    with lab_of(1) as lab:
        step = lab.step({})
        lab.submit(lambda worker: [step(worker) for _ in range(3)])
        lab.driver.join()
        assert [at for _, at in pushes(lab)] == [1.0, 2.0, 3.0]
        assert lab.driver.clock.now == 3.0


def test_nothing_happens_while_nobody_waits() -> None:
    with lab_of(2) as lab:
        work = lab.submit_step()
        assert (lab.driver.clock.now, lab.log) == (0.0, [("join", 0, None), ("join", 1, None)])
        lab.driver.wait(work)
        assert lab.driver.clock.now == 1.0


def test_a_wait_ends_as_soon_as_it_can() -> None:
    with lab_of(2, compute=Slow(1.0, {1: 10.0})) as lab:
        fast, slow = lab.submit_step("fast"), lab.submit_step("slow")
        lab.driver.wait(fast)
        assert lab.driver.clock.now == 1.0
        lab.driver.wait(slow)
        assert lab.driver.clock.now == 10.0


def test_polling_lets_time_pass() -> None:
    """Twice as much each time, so that even a program that sleeps in between comes to an end."""
    with lab_of(2) as lab:
        for _ in range(1000):
            lab.submit_step()
        polls = 1
        while not lab.driver.is_done():
            polls += 1
        assert lab.driver.clock.now == 500.0
        assert 8 <= polls <= 16
        lab.submit_step()
        assert not lab.driver.is_done()


# Staleness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 5, 32])
def test_n_equal_workers_are_stale_by_n_minus_1(workers: int) -> None:
    lab = ran(4 * workers, workers)
    expected = [min(k, workers - 1) for k in range(4 * workers)]
    assert [record.staleness for record in lab.records] == expected
    assert [record.worker for record in lab.records] == list(range(workers)) * 4


@pytest.mark.parametrize("compute", [Pareto(), Slow(Pareto(), {0: 2.0})])
def test_the_mean_is_n_minus_1_however_fast_they_are(compute: Any) -> None:
    lab = ran(3000, 30, compute=compute)
    staleness = [record.staleness for record in lab.records[100:-100]]
    assert_close(sum(staleness) / len(staleness), 29.0, CONVERGENCE)


# The means are 29 / (30 // n): between two pushes of a worker each other one pushes once.
@pytest.mark.parametrize(("n", "mean"), [(1, 0.97), (2, 1.93), (5, 4.83), (10, 9.67), (30, 29.0)])
def test_softsync_is_stale_by_about_n(n: int, mean: float) -> None:
    lab = ran(3000, 30, pace=Softsync(30 // n), compute=LogNormal(1.0, 0.1))
    staleness = [record.staleness for record in lab.records[300:-300]]
    assert_close(sum(staleness) / len(staleness), mean, CONVERGENCE)
    assert max(staleness) <= 2 * n


# Paces ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", [Synchronous(), BoundedStaleness(0)])
def test_lockstep_takes_as_long_as_the_slowest(pace: Pace) -> None:
    lab = ran(12, 3, pace=pace, compute=Slow(1.0, {1: 2.0, 2: 5.0}))
    assert lab.driver.clock.now == 20.0
    assert {record.staleness for record in lab.records} == {0}
    rounds = [sorted(group) for group in lab.groups]
    assert rounds == [[0, 1, 2]] * 4
    waits = {k: [r.wait for r in lab.records if r.worker == k] for k in range(3)}
    assert waits == {0: [0.0, 4.0, 4.0, 4.0], 1: [0.0, 3.0, 3.0, 3.0], 2: [0.0] * 4}


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_no_worker_starts_further_ahead_than_the_bound(bound: int) -> None:
    lab = ran(400, 8, pace=BoundedStaleness(bound), compute=Slow(Pareto(), {3: 3.0}))
    clocks, leads = dict.fromkeys(range(8), 0), []
    finished: set[int] = set()
    for event, worker, detail in lab.log:
        if event == "finish":
            finished.add(worker)
        elif event == "push" and detail == "applied":
            clocks[worker] += 1
        elif event == "pull":
            live = [clock for other, clock in clocks.items() if other not in finished]
            leads.append(clocks[worker] - min(live))
    assert max(leads) == bound


def test_a_fast_worker_waits_at_the_bound() -> None:
    """By hand: 1 s and 3 s, bound 1. The fast one finishes clock 2 at 2 and waits until 3."""
    lab = ran(7, 2, pace=BoundedStaleness(1), compute=Slow(1.0, {1: 3.0}))
    fast = [(record.wait, record.finished_at) for record in lab.records if record.worker == 0]
    assert fast == [(0.0, 1.0), (0.0, 2.0), (1.0, 4.0), (2.0, 7.0)]
    assert [at for worker, at in pushes(lab) if worker == 1] == [3.0, 6.0, 9.0]


def test_backups_do_without_the_slow_one() -> None:
    """Rounds of the two fast ones. The third comes late at 5."""
    lab = ran(12, 3, pace=Synchronous(backups=1), compute=Slow(1.0, {2: 5.0}))
    assert [sorted(group) for group in lab.groups[:5]] == [[0, 1]] * 5
    assert [at for _, at in pushes(lab)][:11] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5]
    late = lab.records[8]
    assert (late.worker, late.outcome) == (2, "dropped")
    assert "orker 2 came late for round 1" in late.reason


def test_work_that_waits_at_its_pace_goes_on_when_it_may() -> None:
    """Two functions of three steps each, in lockstep: the fast one waits in the midst."""
    with lab_of(2, pace=Synchronous(), compute=Slow(1.0, {1: 4.0})) as lab:
        step = lab.step({})
        for _ in range(2):
            lab.submit(lambda worker: [step(worker) for _ in range(3)])
        lab.driver.join()
        assert lab.groups == [[0, 1]] * 3
        assert [r.wait for r in lab.records if r.worker == 0] == [0.0, 3.0, 3.0]
        assert lab.driver.clock.now == 12.0


def test_a_new_pace_applies_from_then_on() -> None:
    with lab_of(2, pace=Synchronous(), compute=Slow(1.0, {1: 4.0})) as lab:
        for _ in range(6):
            lab.submit_step()
        lab.driver.wait_until(lambda: lab.number == 2, "the first round")
        lab.driver.set_pace(Asynchronous())
        lab.driver.join()
        assert pushes(lab) == [(0, 4.0), (1, 4.0), (0, 5.0), (0, 6.0), (0, 7.0), (1, 8.0)]


# Work -----------------------------------------------------------------------------------------


def test_work_that_waits_for_other_work() -> None:
    """At 1 the first has ended; a second later the one that waited for it has, too."""
    for pace in (Asynchronous(), Synchronous()):
        with lab_of(2, pace=pace) as lab:
            first = lab.submit(lambda worker: 20, "first")

            def wait(worker: Any, first: Work = first) -> int:
                return worker.driver.wait(first) + 1

            second = lab.submit(wait, "second")
            assert lab.driver.wait(second) == 21
            assert lab.driver.clock.now == 2.0


def test_work_for_one_worker_does_not_wait_for_its_pace() -> None:
    """Worker 0 has pushed and waits for the round, but has something of its own to do."""
    with lab_of(2, pace=Synchronous(), compute=Slow(1.0, {1: 9.0})) as lab:
        for _ in range(4):
            lab.submit_step()
        lab.driver.wait_until(lambda: lab.count("push", 0) == 1, "the first push")
        own = lab.submit(lambda worker: worker.index, worker=0)
        assert lab.driver.wait(own, is_last=False) == 0
        assert lab.driver.clock.now == 2.0


def test_two_threads_of_the_program_may_wait() -> None:
    with lab_of(2) as lab:
        works = [lab.submit_step() for _ in range(2000)]
        results: list[Any] = []
        others = [
            threading.Thread(target=lambda k=k: results.append(lab.driver.wait(works[k])))
            for k in (1999, 1000, 5)
        ]
        for other in others:
            other.start()
        lab.driver.join()
        for other in others:
            other.join(60)
        assert results == ["applied"] * 3
        assert lab.number == 2000


def test_a_program_may_wait_while_it_holds_the_lock() -> None:
    with lab_of(2) as lab:
        work = lab.submit_step()
        with handover, handover:
            assert lab.driver.wait(work) == "applied"


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Also where the tests were started in the background, which ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
def test_virtual_time_goes_on_after_an_interrupt() -> None:
    """Ctrl-C comes while a worker computes: it is raised when that one stands still."""
    with lab_of(2) as lab:
        step = lab.step({})

        def interrupted(worker: Any) -> None:
            _thread.interrupt_main()
            step(worker)

        lab.submit_step()
        lab.submit(interrupted)
        for _ in range(4):
            lab.submit_step()
        with pytest.raises(KeyboardInterrupt):
            lab.driver.join()
        lab.driver.join()
        assert (lab.number, lab.driver.clock.now) == (6, 3.0)


def test_code_that_goes_on_for_too_long_is_named() -> None:
    """In real time: it neither pulls nor pushes nor ends. When it does, all goes on."""
    with lab_of(2, deadline=0.01) as lab:
        may_end = threading.Event()
        lab.submit(lambda worker: may_end.wait(60), "an endless loop")
        lab.submit_step()
        for _ in range(2):
            with pytest.raises(WaitTimeout, match=r"0\.01 s of real time.*'?an endless loop"):
                lab.driver.join()
        may_end.set()
        lab.driver.wait_until(lambda: True, "nothing")
        with contextlib.suppress(WaitTimeout):  # it may take some milliseconds to end
            lab.driver.join()
        lab.driver.join()
        assert lab.number == 1
