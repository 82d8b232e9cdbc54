"""How a driver keeps a pace: who may start when, and which pushes make an update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.pace import Asynchronous, BoundedStaleness, Softsync, Synchronous
from paceline.testing.conformance.lab import Lab, check, check_equal

if TYPE_CHECKING:
    from paceline.testing.conformance.lab import MakeCluster


def free_running_pushes_are_as_stale_as_they_overlap(make_cluster: MakeCluster) -> None:
    """Three steps from one version: the second to arrive is stale by 1, the third by 2."""
    with Lab(make_cluster, workers=3) as lab:
        gate = lab.gate()
        for _ in range(3):
            lab.submit_step(gates={"push": gate})
        gate.await_visitors(3)
        gate.open()
        lab.driver.join()
        check_equal([r.staleness for r in lab.records], [0, 1, 2], "the staleness")
        check_equal([r.read_version for r in lab.records], [0, 0, 0], "the versions that were read")


def a_fast_worker_waits_at_the_bound(make_cluster: MakeCluster) -> None:
    """With a bound of 2 it makes three steps, and the fourth when the slow one has made one."""
    with Lab(make_cluster, pace=BoundedStaleness(2)) as lab:
        slow = lab.gate("slow")
        for _ in range(2):
            lab.driver.submit(lab.step({"push": slow}), "slow", worker=1)
        slow.await_visitors()
        for _ in range(5):
            lab.driver.submit(lab.step({}), "fast", worker=0)
        lab.until(lambda: lab.count("ask", 0) == 4, "worker:0 asks for its fourth step")
        check_equal((lab.count("pull", 0), lab.number), (3, 3), "steps begun and made by then")
        slow.let(1)
        lab.until(lambda: lab.count("ask", 0) == 5, "worker:0 asks for its fifth step")
        check_equal((lab.count("pull", 0), lab.number), (4, 5), "steps begun and made by then")
        slow.open()
        lab.driver.join()
        check_equal(lab.number, 7, "the number of steps")


def no_start_exceeds_the_bound(make_cluster: MakeCluster) -> None:
    """In any interleaving, whoever takes the work."""
    for bound in (1, 3):
        with Lab(make_cluster, workers=4, pace=BoundedStaleness(bound)) as lab:
            for _ in range(100):
                lab.submit_step()
            lab.driver.join()
            check_equal(lab.number, 100, "the number of steps")
            check(_largest_lead(lab) <= bound, f"no lead is above {bound}: {_largest_lead(lab)}")


def _largest_lead(lab: Lab) -> int:
    """The largest lead over the slowest live worker at any start."""
    clocks: dict[int, int] = {}
    live: set[int] = set()
    largest = 0
    for event, worker, detail in lab.log:
        if event == "join":
            slowest = min((clocks[other] for other in live), default=0)
            clocks[worker] = max(clocks.get(worker, 0), slowest)
            live.add(worker)
        elif event in ("finish", "leave"):
            live.discard(worker)
        elif event == "push" and detail == "applied":
            clocks[worker] += 1
        elif event == "pull":
            slowest = min(clocks[other] for other in live)
            largest = max(largest, clocks[worker] - slowest)
    return largest


def lockstep_groups_are_one_push_of_each_worker(make_cluster: MakeCluster) -> None:
    """All start a round from one version, and nobody pushes twice into one."""
    for pace in (Synchronous(), BoundedStaleness(0)):
        with Lab(make_cluster, workers=4, pace=pace) as lab:
            for number in (1, 2):
                works = [lab.submit_step()]
                lab.driver.wait(works[0], is_last=False)  # as a loop that hands out more does
                works += [lab.submit_step() for _ in range(11)]
                lab.driver.join()
                check_equal(len(lab.groups), 3 * number, "the number of updates")
            check_equal([sorted(g) for g in lab.groups], [[0, 1, 2, 3]] * 6, "who is in them")
            check_equal({r.staleness for r in lab.records}, {0}, "the staleness")


def work_of_a_round_goes_to_who_may_start(make_cluster: MakeCluster) -> None:
    """A worker that has pushed leaves the work to one that has not."""
    with Lab(make_cluster, pace=Synchronous()) as lab:
        busy = lab.gate("worker:1")
        blocked = lab.submit(lambda worker: busy.wait(), worker=1)
        busy.await_visitors()
        lab.driver.wait(lab.submit_step("first"), is_last=False)
        busy.open()
        lab.driver.wait(blocked, is_last=False)
        lab.driver.wait(lab.submit_step("second"), is_last=False)
        check_equal(lab.groups, [[0, 1]], "the groups")


def backups_drop_late_pushes(make_cluster: MakeCluster) -> None:
    """The round does without the slow worker; its push is dropped, named, and made again."""
    with Lab(make_cluster, workers=3, pace=Synchronous(backups=1)) as lab:
        slow = lab.gate("slow", holds=1)
        lab.driver.submit(lab.step({"push": slow}), "slow", examples=1, is_one_push=True, worker=2)
        slow.await_visitors()
        works = [
            lab.driver.submit(lab.step({}), "fast", examples=1, is_one_push=True, worker=k % 2)
            for k in range(4)
        ]
        for work in works:
            lab.driver.wait(work, is_last=False)
        check_equal([sorted(group) for group in lab.groups], [[0, 1], [0, 1]], "the groups")
        slow.open()
        lab.driver.join()
        dropped = [record for record in lab.records if record.outcome == "dropped"]
        check_equal([record.worker for record in dropped], [2], "whose pushes were dropped")
        check("orker 2" in dropped[0].reason, f"the reason names the worker: {dropped[0].reason}")
        check_equal((lab.number, lab.counted), (5, 5), "what counted")


def what_came_late_is_made_by_another(make_cluster: MakeCluster) -> None:
    """The push of a slow worker was dropped: an idle one does that work, not the slow one again."""
    with Lab(make_cluster, pace=Asynchronous(max_staleness=0)) as lab:
        slow = lab.gate("slow", holds=1)
        late = lab.submit_step("late", {"push": slow})
        slow.await_visitors()
        lab.driver.wait(lab.submit_step("in time"))
        slow.open()
        lab.driver.wait(late)
        check_equal([r.outcome for r in lab.records], ["applied", "dropped", "applied"], "pushes")
        check_equal(lab.records[2].worker, lab.records[0].worker, "who made it")


def softsync_updates_are_so_many_pushes(make_cluster: MakeCluster) -> None:
    """Whoever they come from; what is left at the end is a smaller update."""
    with Lab(make_cluster, workers=3, pace=Softsync(4)) as lab:
        for _ in range(10):
            lab.submit_step()
        lab.driver.join()
        check_equal([len(group) for group in lab.groups], [4, 4, 2], "the sizes of the groups")
        check_equal(lab.number, 10, "the number of steps")


def workers_without_data_hold_nobody_up(make_cluster: MakeCluster) -> None:
    """When no more work comes, the others go on without them."""
    for pace in (Synchronous(), BoundedStaleness(1)):
        with Lab(make_cluster, workers=3, pace=pace) as lab:
            last = None
            for _ in range(7):
                last = lab.driver.submit(lab.step({}), "step", worker=0)
            lab.driver.wait(last)
            lab.driver.join()
            check_equal(lab.number, 7, "the number of steps")


def a_new_pace_applies_what_was_held(make_cluster: MakeCluster) -> None:
    """And lets go who waited for the old one."""
    with Lab(make_cluster, pace=Synchronous()) as lab:
        slow = lab.gate("slow")
        lab.driver.submit(lab.step({"push": slow}), "slow", worker=1)
        slow.await_visitors()
        steps: list[Any] = [lab.driver.submit(lab.step({}), "fast", worker=0) for _ in range(2)]
        lab.until(lambda: lab.count("ask", 0) == 2, "worker:0 asks for its second step")
        check_equal((lab.number, lab.count("pull", 0)), (0, 1), "steps counted and begun by then")
        lab.driver.set_pace(Asynchronous())
        check_equal(lab.driver.wait(steps[1], is_last=False), "applied", "the second push")
        check_equal(lab.number, 2, "the number of steps")
        slow.open()
        lab.driver.join()
        check_equal(lab.number, 3, "the number of steps")


PACE = (
    free_running_pushes_are_as_stale_as_they_overlap,
    a_fast_worker_waits_at_the_bound,
    no_start_exceeds_the_bound,
    lockstep_groups_are_one_push_of_each_worker,
    work_of_a_round_goes_to_who_may_start,
    backups_drop_late_pushes,
    what_came_late_is_made_by_another,
    softsync_updates_are_so_many_pushes,
    workers_without_data_hold_nobody_up,
    a_new_pace_applies_what_was_held,
)
