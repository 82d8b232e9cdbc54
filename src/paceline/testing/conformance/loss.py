"""How a driver treats lost workers and dropped pushes: every example counts exactly once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from paceline.errors import WorkerLost
from paceline.pace import Asynchronous, BoundedStaleness, Softsync, Synchronous
from paceline.testing.conformance.lab import Lab, check, check_equal, raised_by

if TYPE_CHECKING:
    from paceline.pace import Pace
    from paceline.testing.conformance.lab import MakeCluster

PACES: tuple[Pace, ...] = (
    Asynchronous(),
    Asynchronous(max_staleness=1),
    BoundedStaleness(1),
    Softsync(3),
    Synchronous(),
    Synchronous(backups=1),
)


def a_worker_lost_before_its_pull_counts_once(make_cluster: MakeCluster) -> None:
    """The work goes to another worker."""
    _lose_at("pull", make_cluster)


def a_worker_lost_before_its_push_counts_once(make_cluster: MakeCluster) -> None:
    """The work goes to another worker, and what the old one still pushes is refused."""
    _lose_at("push", make_cluster)


def a_worker_lost_after_its_push_counts_once(make_cluster: MakeCluster) -> None:
    """The push has arrived: the work is done, and only its result is lost."""
    _lose_at("end", make_cluster)


def _lose_at(place: str, make_cluster: MakeCluster) -> None:
    for pace in PACES:
        with Lab(make_cluster, pace=pace) as lab:
            gate = lab.gate(f"before the {place}", holds=1)
            lost = lab.submit_step("lost", {place: gate})
            gate.await_visitors()
            others = [lab.submit_step() for _ in range(6)]
            lab.driver.lose(gate.visitors[0])
            gate.open()
            lab.driver.join()
            check_equal((lab.number, lab.counted), (7, 7), f"what counted at {pace} ({place})")
            check_equal({w.state for w in (lost, *others)}, {"finished"}, "every state")
            result = None if place == "end" else "applied"
            check(lost.result in (result, "held"), f"the result is {result}, not {lost.result}")
        lab.await_threads()


def a_push_that_is_held_outlives_its_worker(make_cluster: MakeCluster) -> None:
    """What was pushed in time counts, also when its worker is lost before the group is full."""
    with Lab(make_cluster, pace=Synchronous()) as lab:
        gate = lab.gate()
        lab.driver.submit(lab.step({"push": gate}), "slow", worker=1)
        gate.await_visitors()
        held = lab.driver.submit(lab.step({}), "held", examples=1, is_one_push=True, worker=0)
        check_equal(lab.driver.wait(held, is_last=False), "held", "what became of the push")
        lab.driver.lose(0)
        gate.open()
        lab.driver.join()
        check_equal(lab.number, 2, "the number of steps")


def what_must_not_run_twice_fails(make_cluster: MakeCluster) -> None:
    """The loss of its worker is its error, which names the worker."""
    with Lab(make_cluster) as lab:
        gate = lab.gate(holds=1)
        work = lab.submit(lambda worker: gate.wait(worker.index), "once", is_repeatable=False)
        gate.await_visitors()
        lab.driver.lose(gate.visitors[0], "was unplugged")
        error = raised_by(lambda: lab.driver.wait(work), WorkerLost)
        for part in ("once", f"worker:{gate.visitors[0]}", "was unplugged"):
            check(part in str(error), f"the message says {part!r}: {error}")
        raised_by(lab.driver.join, WorkerLost)
        check_equal(len(gate.visitors), 1, "how often it ran")


def work_of_one_worker_waits_for_its_successor(make_cluster: MakeCluster) -> None:
    """Nobody else may do it."""
    with Lab(make_cluster) as lab:
        gate = lab.gate(holds=1)

        def call(worker: Any) -> tuple[int, int]:
            gate.wait()
            return worker.index, worker.incarnation

        work = lab.submit(call, worker=1)
        gate.await_visitors()
        lab.driver.lose(1)
        check_equal(lab.driver.wait(work), (1, 1), "who did it")


def idle_workers_may_be_lost(make_cluster: MakeCluster) -> None:
    """Repeatedly, before the first work and after the last."""
    with Lab(make_cluster) as lab:
        lab.driver.lose(0)
        for number in range(1, 4):
            lab.submit_step()
            lab.driver.join()
            lab.driver.lose(0)
            lab.driver.lose(0)
            lab.driver.lose(1)
            check_equal(lab.number, number, "the number of steps")
    lab.await_threads()


def work_may_say_that_its_worker_is_lost(make_cluster: MakeCluster) -> None:
    """`WorkerLost`, raised by what a worker runs, is a loss and no error of the work."""
    with Lab(make_cluster) as lab:
        attempts: list[Any] = []

        def call(worker: Any) -> int:
            attempts.append((worker.index, worker.incarnation))
            if len(attempts) < 3:
                raise WorkerLost("its machine is going down")
            return len(attempts)

        check_equal(lab.driver.wait(lab.submit(call)), 3, "the number of attempts")
        lab.driver.join()


def a_dropped_push_comes_again(make_cluster: MakeCluster) -> None:
    """Its work is repeated until it counts; the drop is recorded with a reason."""
    with Lab(make_cluster, pace=Asynchronous(max_staleness=0)) as lab:
        gate = lab.gate(holds=1)
        stale = lab.submit_step("stale", {"push": gate})
        gate.await_visitors()
        lab.driver.wait(lab.submit_step("fresh"))
        gate.open()
        lab.driver.join()
        check_equal((lab.number, lab.counted), (2, 2), "what counted")
        check_equal(stale.result, "applied", "what became of the repeated push")
        dropped = [record for record in lab.records if record.outcome == "dropped"]
        check_equal([r.worker for r in dropped], gate.visitors[:1], "whose push was dropped")
        check(f"orker {gate.visitors[0]}" in dropped[0].reason, f"it is named: {dropped}")


def a_dropped_push_comes_again_though_its_worker_is_lost(make_cluster: MakeCluster) -> None:
    """A push that arrived and was dropped does not make its work done."""
    with Lab(make_cluster, pace=Asynchronous(max_staleness=0)) as lab:
        pushing, ending = lab.gate("push", holds=1), lab.gate("end", holds=1)
        lab.submit_step("stale", {"push": pushing, "end": ending})
        pushing.await_visitors()
        lab.driver.wait(lab.submit_step("fresh"))
        pushing.open()
        ending.await_visitors()
        lab.driver.lose(ending.visitors[0])
        ending.open()
        lab.driver.join()
        check_equal((lab.number, lab.counted), (2, 2), "what counted")


def nothing_is_lost_or_counted_twice_in_a_storm(make_cluster: MakeCluster) -> None:
    """Steps in any interleaving, while workers are lost at random places."""
    for seed, pace in enumerate(PACES):
        with Lab(make_cluster, workers=4, pace=pace) as lab:
            storm, ends = _Storm(lab, seed), []
            for _ in range(80):
                lab.driver.submit(storm, "step", examples=1, is_one_push=True, on_end=ends.append)
            lab.driver.join()
            check_equal((lab.number, lab.counted), (80, 80), f"what counted at {pace}")
            check_equal((len(ends), len(set(map(id, ends)))), (80, 80), "how many ended, and ends")
            applied = sum(record.outcome == "applied" for record in lab.records)
            check_equal(applied, 80, "how many pushes are on record as applied")
            check(storm.losses > 5, "workers were lost")
        lab.await_threads()


class _Storm:
    """A step whose worker is lost now and then, before it or after it."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self._lab = lab
        self._chance = random.Random(seed)
        self._step = lab.step({})
        self.losses = 0

    def __call__(self, worker: Any) -> Any:
        self._strike(worker)
        result = self._step(worker)
        self._strike(worker)
        return result

    def _strike(self, worker: Any) -> None:
        if self._chance.random() < 0.15:
            self.losses += 1
            self._lab.driver.lose(worker.index)


LOSS = (
    a_worker_lost_before_its_pull_counts_once,
    a_worker_lost_before_its_push_counts_once,
    a_worker_lost_after_its_push_counts_once,
    a_push_that_is_held_outlives_its_worker,
    what_must_not_run_twice_fails,
    work_of_one_worker_waits_for_its_successor,
    idle_workers_may_be_lost,
    work_may_say_that_its_worker_is_lost,
    a_dropped_push_comes_again,
    a_dropped_push_comes_again_though_its_worker_is_lost,
    nothing_is_lost_or_counted_twice_in_a_storm,
)
