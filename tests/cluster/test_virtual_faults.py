"""Errors, losses and deadlines in virtual time, event by event, worked out by hand."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import pytest

from paceline.errors import Cancelled, Unavailable, WaitTimeout, WorkerLost
from paceline.pace import Asynchronous, BoundedStaleness, Softsync, Synchronous
from paceline.testing import GOLDEN, assert_close
from paceline.virtual import Loss, Network, Pareto, Preemptions, Slow
from virtual_labs import lab_of, pushes, ran

if TYPE_CHECKING:
    from paceline.pace import Pace
    from paceline.testing.conformance import Lab


# Errors ---------------------------------------------------------------------------------------


class Failure(Exception):
    """What steps of these tests raise."""


def test_an_error_surfaces_once_and_calls_off_the_rest() -> None:
    with lab_of(3, compute=Slow(1.0, {1: 5.0, 2: 9.0})) as lab:
        step = lab.step({})

        def fail(worker: Any) -> None:
            step(worker)
            raise Failure("on purpose")

        bad = lab.submit(fail, "bad")
        others = [lab.submit_step(f"other {k}") for k in range(6)]
        with pytest.raises(Failure, match="on purpose"):
            lab.driver.join()
        assert lab.driver.clock.now == 1.0  # nobody waits for 5 or 9: they are called off
        assert lab.number == 1
        with pytest.raises(Failure):
            lab.driver.wait(bad)
        for other in others:
            with pytest.raises(Cancelled, match="on purpose"):
                lab.driver.wait(other)
        lab.driver.join()
        lab.submit_step()
        lab.driver.join()
        assert (lab.number, lab.driver.clock.now) == (2, 2.0)


def test_who_may_not_go_on_is_told_when_nothing_more_is_to_come() -> None:
    with lab_of(1) as lab:
        gate = lab.gate("closed")
        work = lab.submit(lambda worker: gate.wait(), "the visitor")
        with pytest.raises(WaitTimeout, match=r"for the visitor at 0 virtual s.*nothing more"):
            lab.driver.wait(work)
        gate.open()
        lab.driver.wait(work)


# Faults ---------------------------------------------------------------------------------------


def test_a_worker_is_lost_at_a_time_and_comes_back() -> None:
    """By hand: worker:1 has B when it is lost at 0.5; worker:0 takes it at 1. It is back at 1.5."""
    lab = ran(4, 2, faults=Loss(task="worker:1", at=0.5, back_after=1.0))
    assert pushes(lab) == [(0, 1.0), (0, 2.0), (1, 2.5), (0, 3.0)]
    assert [(e, w) for e, w, _ in lab.log if e in ("leave", "join")] == [
        ("join", 0), ("join", 1), ("leave", 1), ("join", 1),
    ]  # fmt: skip


def test_a_worker_is_lost_in_a_step() -> None:
    """In the midst of the computation of its second step."""
    lab = ran(5, 2, faults=Loss(task="worker:0", step=1, back_after=0.25))
    assert pushes(lab) == [(0, 1.0), (1, 1.0), (1, 2.0), (0, 2.75), (1, 3.0)]


@pytest.mark.parametrize("kind", ["step", "plain"])
def test_what_is_no_step_is_counted_as_one(kind: str) -> None:
    with lab_of(1, faults=Loss(task="worker:0", step=1, back_after=0.0)) as lab:
        made = []
        for _ in range(3):
            call = lab.step({}) if kind == "step" else lambda worker: None
            lab.submit(lambda worker, call=call: made.append(lab.driver.now()) or call(worker))
        lab.driver.join()
        assert made == [0.0, 1.0, 1.5, 2.5]
        assert lab.driver.clock.now == 3.5


def test_a_lost_worker_has_its_own_random_numbers_when_it_is_back() -> None:
    """What the others draw does not depend on it."""
    whole = ran(200, 2, compute=Pareto())
    with_loss = ran(200, 2, compute=Pareto(), faults=Loss(task="worker:1", at=9.5, back_after=2.0))
    own = [[r.compute for r in lab.records if r.worker == 0][:90] for lab in (whole, with_loss)]
    assert_close(own[0], own[1], GOLDEN)


def test_workers_that_are_not_there_cannot_be_lost() -> None:
    losses = [Loss(task="worker:1", at=at, back_after=5.0) for at in (0.5, 1.0, 2.0)]
    lab = ran(6, 2, faults=losses)
    assert pushes(lab) == [(0, float(k)) for k in range(1, 7)]
    assert lab.count("leave", 1) == 1


def test_a_worker_may_be_lost_while_it_waits_for_its_round() -> None:
    """It has pushed; the round closes with what it gave, and goes on without it."""
    lab = ran(
        6, 3, pace=Synchronous(), compute=Slow(1.0, {2: 4.0}), faults=Loss(task="worker:0", at=2.0)
    )
    assert [sorted(group) for group in lab.groups] == [[0, 1, 2], [1, 2]]
    assert len(lab.records) == 6


def test_a_worker_may_be_lost_on_the_way_to_the_server() -> None:
    """Its push is under way at 1.5: it does not arrive, and the step is made once more."""
    lab = ran(1, 1, network=0.5, faults=Loss(task="worker:0", at=2.25, back_after=1.0))
    assert [record.outcome for record in lab.records] == ["applied"]
    assert pushes(lab) == [(0, 3.25 + 2.5)]


def test_a_worker_that_is_lost_with_its_answer_has_pushed() -> None:
    lab = ran(2, 1, network=0.5, faults=Loss(task="worker:0", at=2.75, back_after=1.0))
    assert pushes(lab) == [(0, 2.5), (0, 3.75 + 2.5)]


def test_without_any_worker_left_the_wait_says_so() -> None:
    with lab_of(2, faults=[Loss(task=f"worker:{k}", at=2.5 + k) for k in range(2)]) as lab:
        for _ in range(9):
            lab.submit_step("step")
        with pytest.raises(WaitTimeout) as caught:
            lab.driver.join()
        text = str(caught.value)
        assert "a wait for all scheduled work at 3.5 virtual s" in text
        assert "without worker:0, worker:1" in text
        assert "queued for any worker: 4" in text
        with pytest.raises(WaitTimeout, match="all scheduled work"):
            lab.driver.is_done()


def test_what_must_not_run_twice_fails_with_its_worker() -> None:
    with lab_of(2, faults=Loss(task="worker:0", at=0.5)) as lab:
        lab.submit(lambda worker: None, "once", is_repeatable=False)
        with pytest.raises(WorkerLost, match=r"once on worker:0, which was lost, as planned"):
            lab.driver.join()
        assert lab.driver.clock.now == 0.5


def test_a_lost_server_ends_the_run_at_that_time() -> None:
    with lab_of(2, faults=Loss(task="ps:0", at=2.5)) as lab:
        works = [lab.submit_step() for _ in range(100)]
        with pytest.raises(Unavailable, match=r"ps:0 was lost, as planned"):
            lab.driver.join()
        assert (lab.number, lab.driver.clock.now) == (4, 2.5)
        with pytest.raises(Cancelled, match="ps:0"):
            lab.driver.wait(works[50])
        with pytest.raises(Unavailable):
            lab.submit_step()


def test_preemptions_come_at_their_rate() -> None:
    """Ten workers, 36 an hour each: in 1000 seconds of all of them 100."""
    lab = ran(
        10_000, 10, capacity=10_000, faults=Preemptions(per_hour=36.0, back_after=0.0), seed=3
    )
    losses = lab.count("leave")
    assert 70 <= losses <= 135  # three standard deviations around the time that it took
    by_worker = collections.Counter(worker for event, worker, _ in lab.log if event == "leave")
    assert len(by_worker) == 10
    # Each loss costs half a step on average.
    assert 1000 <= lab.driver.clock.now <= 1000 + losses / 10 + 5


def test_preemptions_do_not_keep_time_going_when_all_is_done() -> None:
    with lab_of(2, faults=Preemptions(per_hour=3600.0, back_after=1.0)) as lab:
        lab.driver.join()
        assert lab.driver.clock.now == 0.0


def test_work_is_taken_back_at_its_deadline() -> None:
    """By hand: worker:1 would take 10 s and has 3.

    At 3 the other one is busy, so that it gets the same work again. At 6 the other one is idle, and
    makes it at once.
    """
    lab = ran(6, 2, compute=Slow(1.0, {1: 10.0}), lease_deadline=3.0)
    assert pushes(lab) == [(0, at) for at in (1.0, 2.0, 3.0, 4.0, 5.0, 7.0)]
    counts = lab.session.dispatch.ledger.counts()
    assert (counts[0].expired, counts[1].expired) == (0, 2)


def test_a_push_at_its_deadline_is_in_time() -> None:
    lab = ran(4, 2, compute=Slow(1.0, {1: 3.0}), lease_deadline=3.0)
    assert (1, 3.0) in pushes(lab)
    assert lab.session.dispatch.ledger.counts()[1].expired == 0


def test_polling_takes_work_back_too() -> None:
    with lab_of(2, compute=Slow(1.0, {1: 10.0}), lease_deadline=3.0) as lab:
        works = [lab.submit_step() for _ in range(2)]
        while not lab.driver.is_done():
            pass
        assert [work.result for work in works] == ["applied"] * 2
        assert lab.driver.clock.now == 4.0


def test_the_same_seed_gives_the_same_events() -> None:
    """Whatever happens in them, down to the last bit of each time."""

    def run(seed: int, pace: Pace) -> Lab:
        return ran(
            300,
            6,
            seed=seed,
            pace=pace,
            compute=Slow(Pareto(), {2: 3.0}),
            network=Network(latency=0.01),
            faults=[
                Preemptions(per_hour=200.0, back_after=2.0),
                Loss(task="worker:4", step=5, back_after=1.0),
            ],
        )

    for pace in (
        Asynchronous(),
        Asynchronous(max_staleness=8),
        BoundedStaleness(2),
        Softsync(4),
        Synchronous(),
        Synchronous(backups=2),
    ):
        first, again, other = run(1, pace), run(1, pace), run(2, pace)
        assert first.records == again.records
        assert first.log == again.log
        assert first.driver.clock.now == again.driver.clock.now
        assert first.log != other.log


def test_one_worker_draws_the_same_whoever_else_there_is() -> None:
    alone, among = ran(20, 1, compute=Pareto()), ran(400, 16, compute=Pareto())
    times = [[r.compute for r in lab.records if r.worker == 0][:15] for lab in (alone, among)]
    assert_close(times[0], times[1], GOLDEN)  # the ends of steps are rounded, and their starts
