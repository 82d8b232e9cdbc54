"""How a driver treats errors: raised once, everything else called off, then as new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import Cancelled, ContextError
from paceline.testing.conformance.lab import KEY, Lab, check, check_equal, raised_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.testing.conformance.lab import MakeCluster

SOON_S = 0.05  # a time that is meant to pass


class _Failure(Exception):
    """What work of these tests raises."""


def _fail(worker: Any) -> None:
    raise _Failure("on purpose")


def an_error_is_raised_once(make_cluster: MakeCluster) -> None:
    """By the next `submit`, `join` or `is_done`; then the driver is as new."""
    with Lab(make_cluster) as lab:
        callers: list[Callable[[], Any]] = [
            lab.driver.join,
            lab.driver.is_done,
            lambda: lab.submit_step("refused"),
        ]
        for number, call in enumerate(callers, start=1):
            failing = lab.submit(_fail)
            raised_by(lambda work=failing: lab.driver.wait(work), _Failure)
            raised_by(call, _Failure)
            check(lab.driver.is_done(), "it is raised once")
            lab.submit_step()
            lab.driver.join()
            check_equal(lab.number, number, "the number of steps")


def an_error_calls_off_everything_else(make_cluster: MakeCluster) -> None:
    """What is queued and what runs is cancelled; what was finished keeps its result."""
    with Lab(make_cluster, workers=3) as lab:
        done = lab.submit(lambda worker: "done")
        lab.driver.wait(done)
        running, failing = lab.gate("running"), lab.gate("failing")
        ends: list[Any] = []
        long = lab.submit(lambda worker: running.wait(), "long", on_end=ends.append)
        bad = lab.submit(lambda worker: failing.wait() or _fail(worker), "bad", on_end=ends.append)
        block = lab.submit(lambda worker: running.wait(), "block", on_end=ends.append)
        running.await_visitors(2)
        failing.await_visitors()
        queued = [lab.submit_step() for _ in range(5)]
        failing.open()
        raised_by(lambda: lab.driver.wait(bad), _Failure)
        for work in (long, block, *queued):
            error = raised_by(lambda work=work: lab.driver.wait(work), Cancelled)
            check("on purpose" in str(error), f"the message says why: {error}")
        check_equal(sorted(map(repr, ends)), ["bad", "block", "long"], "what was told its end")
        running.open()
        raised_by(lab.driver.join, _Failure)
        check_equal((lab.number, lab.driver.wait(done)), (0, "done"), "steps made, and the result")


def an_error_is_raised_when_nothing_runs_any_more(make_cluster: MakeCluster) -> None:
    """Who gets it may go on at once: nothing of before changes anything."""
    with Lab(make_cluster) as lab:
        gate, ended = lab.gate(), []

        def long(worker: Any) -> None:
            gate.wait()
            ended.append("long")

        lab.submit(long, "long", worker=1)
        gate.await_visitors()
        lab.submit(lambda worker: gate.open() or _fail(worker), "bad", worker=0)
        raised_by(lab.driver.join, _Failure)
        check_equal(ended, ["long"], "what had ended by then")


def the_first_error_wins(make_cluster: MakeCluster) -> None:
    """Later ones are not raised, not even afterwards."""
    with Lab(make_cluster) as lab:
        gate = lab.gate()
        second = lab.submit(lambda worker: gate.wait() or 1 / 0, "second", worker=1)
        gate.await_visitors()
        first = lab.submit(_fail, "first", worker=0)
        raised_by(lambda: lab.driver.wait(first), _Failure)
        gate.open()
        raised_by(lab.driver.join, _Failure)
        check(lab.driver.is_done(), "the second error is not raised")
        raised_by(lambda: lab.driver.wait(second), Cancelled)


def what_was_called_off_cannot_touch_the_store(make_cluster: MakeCluster) -> None:
    """Neither its pull nor its push comes through."""
    with Lab(make_cluster, workers=3) as lab:
        pulling, pushing = lab.gate("pulling"), lab.gate("pushing")
        lab.submit_step("before its pull", {"pull": pulling})
        pulling.await_visitors()
        lab.submit_step("before its push", {"push": pushing})
        pushing.await_visitors()
        failing = lab.submit(_fail)
        raised_by(lambda: lab.driver.wait(failing), _Failure)
        lab.open_gates()
        raised_by(lab.driver.join, _Failure)
        check_equal((lab.number, lab.records, lab.counted), (0, [], 0), "what reached the store")
        check_equal(lab.count("pull"), 1, "the number of pulls")


def who_does_not_react_is_replaced(make_cluster: MakeCluster) -> None:
    """After the grace period the error is raised; what the old worker still does is ignored."""
    callers: list[Callable[[Lab], Any]] = [
        lambda lab: lab.driver.join(),
        lambda lab: lab.driver.is_done(),
        lambda lab: lab.submit_step("refused"),
    ]
    for call in callers:
        refused: list[BaseException] = []
        with Lab(make_cluster, grace=SOON_S) as lab:
            gate = lab.gate()

            def stubborn(worker: Any, gate: Any = gate, refused: Any = refused) -> None:
                gate.wait()
                refused.append(
                    raised_by(lambda: worker.driver.pull(worker, [KEY], True), Cancelled)
                )
                raise _Failure("late")

            lab.submit(stubborn, "stubborn", worker=1)
            gate.await_visitors()
            failing = lab.submit(_fail, worker=0)
            raised_by(lambda lab=lab, work=failing: lab.driver.wait(work), _Failure)
            raised_by(lambda lab=lab, call=call: call(lab), _Failure)
            for _ in range(5):
                lab.submit_step()
            new = lab.submit(lambda worker: worker.incarnation, worker=1)
            check_equal(lab.driver.wait(new), 1, "the incarnation of worker:1")
            gate.open()
            lab.driver.join()
            check_equal(lab.number, 5, "the number of steps")
        lab.await_threads()
        check_equal(len(refused), 1, "the number of refused pulls")


def any_exception_is_an_error_of_the_work(make_cluster: MakeCluster) -> None:
    """Also those that would end a thread; the worker goes on."""
    with Lab(make_cluster, workers=1) as lab:
        for kind in (SystemExit, KeyboardInterrupt, GeneratorExit):

            def leave(worker: Any, kind: type[BaseException] = kind) -> None:
                raise kind

            lab.submit(leave)
            raised_by(lab.driver.join, kind)
            check_equal(lab.driver.wait(lab.submit(lambda worker: 1)), 1, "a result after that")


def stop_cancels_everything(make_cluster: MakeCluster) -> None:
    """Who waits is told; later work is refused instead of being forgotten."""
    with Lab(make_cluster) as lab:
        gate = lab.gate()
        works = [lab.submit(lambda worker: gate.wait()) for _ in range(5)]
        gate.await_visitors(2)
        lab.driver.stop()
        for work in works:
            error = raised_by(lambda work=work: lab.driver.wait(work), Cancelled)
            check("stopped" in str(error), f"the message says why: {error}")
        gate.open()
        lab.driver.join()
        error = raised_by(lambda: lab.submit_step("late"), ContextError)
        check("late" in str(error), f"the message names the work: {error}")
        lab.driver.stop()
    lab.await_threads()


ERRORS = (
    an_error_is_raised_once,
    an_error_calls_off_everything_else,
    an_error_is_raised_when_nothing_runs_any_more,
    the_first_error_wins,
    what_was_called_off_cannot_touch_the_store,
    who_does_not_react_is_replaced,
    any_exception_is_an_error_of_the_work,
    stop_cancels_everything,
)
