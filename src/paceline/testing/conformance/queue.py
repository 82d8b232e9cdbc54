"""How a driver treats work: order, results, waits and the ends of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import EndOfData, WaitTimeout
from paceline.pace import Synchronous
from paceline.testing.conformance.lab import Lab, check, check_equal, raised_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.testing.conformance.lab import MakeCluster

SOON_S = 0.05  # a deadline that is meant to pass


def every_item_ends_exactly_once(make_cluster: MakeCluster) -> None:
    """Each is told its end once, and each has its own result."""
    with Lab(make_cluster, workers=3) as lab:
        ends: list[Any] = []
        works = [
            lab.submit(lambda worker, k=k: k * k, f"item {k}", examples=2, on_end=ends.append)
            for k in range(60)
        ]
        lab.driver.join()
        check_equal(
            [lab.driver.wait(work) for work in works], [k * k for k in range(60)], "results"
        )
        check_equal(sorted(ends, key=works.index), works, "what has ended")
        check_equal({work.state for work in works}, {"finished"}, "every state")
        check_equal(lab.counted, 120, "the number of counted examples")


def submit_returns_before_anything_has_run(make_cluster: MakeCluster) -> None:
    """Submitting waits for nothing while there is room."""
    with Lab(make_cluster) as lab:
        gate = lab.gate()
        works = [lab.submit(lambda worker: gate.wait()) for _ in range(10)]
        gate.await_visitors(2)
        check(not any(work.has_ended for work in works), "nothing has ended")
        check(not lab.driver.is_done(), "is_done() is False")
        gate.open()
        lab.driver.join()
        check(lab.driver.is_done(), "is_done() is True after join()")


def one_worker_keeps_the_order(make_cluster: MakeCluster) -> None:
    """The queue is first in, first out."""
    with Lab(make_cluster, workers=1) as lab:
        order: list[int] = []
        for k in range(20):
            lab.submit(lambda worker, k=k: order.append(k))
        lab.driver.join()
        check_equal(order, list(range(20)), "the order")


def work_for_one_worker_runs_there_and_first(make_cluster: MakeCluster) -> None:
    """What only one worker may do waits for it, before what anybody may do."""
    with Lab(make_cluster) as lab:
        gates = [lab.gate("worker:0"), lab.gate("worker:1")]
        for gate, index in zip(gates, range(2), strict=True):
            lab.submit(lambda worker, gate=gate: gate.wait(), worker=index)
        for gate in gates:
            gate.await_visitors()
        ran: list[Any] = []
        lab.submit(lambda worker: ran.append("any"))
        for _ in range(3):
            lab.submit(lambda worker: ran.append(worker.index), worker=1)
        last = lab.submit(lambda worker: ran.append("last"), worker=1)
        gates[1].open()
        lab.driver.wait(last)
        check_equal(ran[:4], [1, 1, 1, "last"], "what worker:1 did first")
        gates[0].open()
        lab.driver.join()
        check("any" in ran, "the work for any worker was done")


def wait_gives_what_came_of_the_work(make_cluster: MakeCluster) -> None:
    """Its result or its own error, each time it is asked for."""
    with Lab(make_cluster) as lab:
        work = lab.submit(lambda worker: "result")
        check_equal([lab.driver.wait(work) for _ in range(2)], ["result"] * 2, "what wait returns")
        failing = lab.submit(_divide)
        raised_by(lambda: lab.driver.wait(failing), ZeroDivisionError)
        raised_by(lambda: lab.driver.wait(failing), ZeroDivisionError)
        raised_by(lab.driver.join, ZeroDivisionError)


def join_without_work_returns(make_cluster: MakeCluster) -> None:
    """Also repeatedly, and before anything was submitted."""
    with Lab(make_cluster) as lab:
        for _ in range(3):
            lab.driver.join()
        check(lab.driver.is_done(), "is_done() is True where there was no work")
        lab.submit_step()
        for _ in range(3):
            lab.driver.join()
        check_equal(lab.number, 1, "the number of steps")


def a_full_queue_holds_up_submit(make_cluster: MakeCluster) -> None:
    """It waits for room, says so when there is none for too long, and loses nothing."""
    with Lab(make_cluster, workers=1, capacity=2, deadline=SOON_S) as lab:
        gate = lab.gate()
        lab.submit(lambda worker: gate.wait(), "a long item")
        gate.await_visitors()
        for _ in range(2):
            lab.submit_step()
        error = raised_by(lab.submit_step, WaitTimeout)
        check("room in the queue" in str(error), f"the message names the room: {error}")
        check("a long item" in str(error), f"the message says what takes so long: {error}")
        gate.open()
        for _ in range(20):
            lab.submit_step()
        lab.driver.join()
        check_equal(lab.number, 22, "the number of steps")


def every_wait_has_a_deadline_and_says_what_for(make_cluster: MakeCluster) -> None:
    """`wait`, `join` and the wait of a worker for its pace."""
    with Lab(make_cluster, deadline=SOON_S) as lab:
        gate = lab.gate()
        work = lab.submit(lambda worker: gate.wait(), "an endless item", worker=1)
        gate.await_visitors()
        waits: dict[str, Callable[[], Any]] = {
            "for an endless item": lambda: lab.driver.wait(work),
            "for all scheduled work": lab.driver.join,
        }
        for what, call in waits.items():
            error = raised_by(call, WaitTimeout)
            check(what in str(error), f"the message says {what!r}: {error}")
            check("worker:1 has had an endless item" in str(error), f"it names who: {error}")
        gate.open()
        lab.driver.join()


def a_wait_for_the_pace_has_a_deadline_too(make_cluster: MakeCluster) -> None:
    """A worker that may not start says what it waits for, and does not wait forever."""
    with Lab(make_cluster, pace=Synchronous(), deadline=SOON_S) as lab:
        slow, ended = lab.gate("slow"), lab.gate("ended", holds=0)
        lab.driver.submit(lab.step({"push": slow}), "slow", worker=1)
        slow.await_visitors()
        for k in range(2):
            lab.driver.submit(lab.step({}), f"step {k}", worker=0, on_end=ended.wait)
        ended.await_visitors(2)  # the second one, after the deadline
        blocked: Any = ended.visitors[1]
        check(isinstance(blocked.error, WaitTimeout), f"a timeout, not {blocked.error!r}")
        text = str(blocked.error)
        check("worker:0 to be allowed to start" in text, f"the message names the wait: {text}")
        check("waits for worker 1" in text, f"the message says for whom: {text}")
        slow.open()
        raised_by(lab.driver.join, WaitTimeout)


def the_end_of_data_is_an_error_of_its_own(make_cluster: MakeCluster) -> None:
    """An exhausted iterator in scheduled work is no silent end of a loop."""
    with Lab(make_cluster) as lab:
        exhausted = iter(())
        lab.submit(lambda worker: next(exhausted), "the step")
        error = raised_by(lab.driver.join, EndOfData)
        check("the step" in str(error), f"the message names the work: {error}")


def work_may_wait_for_other_work(make_cluster: MakeCluster) -> None:
    """A worker that waits for a result holds nobody up, at any pace."""
    with Lab(make_cluster, pace=Synchronous()) as lab:
        gate = lab.gate()
        first = lab.submit(lambda worker: gate.wait() or 1, "first", worker=0)
        second = lab.submit(lambda worker: worker.driver.wait(first) + 1, "second", worker=1)
        gate.await_visitors()
        lab.until(lambda: lab.count("finish", 1) >= 1, "worker:1 does not take part")
        gate.open()
        check_equal(lab.driver.wait(second), 2, "the result")


def released_workers_end_and_others_begin(make_cluster: MakeCluster) -> None:
    """`release` lets what is scheduled be done; later work gets new workers."""
    with Lab(make_cluster) as lab:
        gate = lab.gate()
        work = lab.submit(lambda worker: gate.wait() or "done")
        lab.submit_step()
        gate.await_visitors()
        lab.driver.release()
        gate.open()
        lab.await_threads()
        check_equal((work.result, lab.number), ("done", 1), "what was scheduled before")
        lab.submit_step()
        lab.driver.join()
        check_equal(lab.number, 2, "the number of steps")


def stop_leaves_no_thread(make_cluster: MakeCluster) -> None:
    """Idle and busy workers end; who waits for cancelled work is told."""
    for _ in range(5):
        with Lab(make_cluster, workers=3) as lab:
            for _ in range(5):
                lab.submit_step()
            lab.driver.join()
        lab.await_threads()


def a_dropped_driver_leaves_no_thread(make_cluster: MakeCluster) -> None:
    """Idle workers keep nothing alive."""
    lab = Lab(make_cluster, workers=3)
    for _ in range(5):
        lab.submit_step()
    lab.driver.join()
    lab.driver = None
    lab.session = None  # pyright: ignore[reportAttributeAccessIssue]
    lab.await_threads()


def _divide(worker: Any) -> float:
    return 1 / 0


QUEUE = (
    every_item_ends_exactly_once,
    submit_returns_before_anything_has_run,
    one_worker_keeps_the_order,
    work_for_one_worker_runs_there_and_first,
    wait_gives_what_came_of_the_work,
    join_without_work_returns,
    a_full_queue_holds_up_submit,
    every_wait_has_a_deadline_and_says_what_for,
    a_wait_for_the_pace_has_a_deadline_too,
    the_end_of_data_is_an_error_of_its_own,
    work_may_wait_for_other_work,
    released_workers_end_and_others_begin,
    stop_leaves_no_thread,
    a_dropped_driver_leaves_no_thread,
)
