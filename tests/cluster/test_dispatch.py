"""The coordinator's queue: every item ends once, and the first error is raised once."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline import errors
from paceline.cluster.dispatch import Dispatch
from paceline.cluster.instructions import (
    Cancelled,
    Dropped,
    Failed,
    Instruction,
    Interrupt,
    Requeued,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = str | int


def submitted(*items: Item, **options: Any) -> Dispatch[Item]:
    dispatch: Dispatch[Item] = Dispatch(**options)
    for item in items:
        dispatch.submit(item)
    return dispatch


def take(dispatch: Dispatch[Item], worker: int, now: float = 0.0) -> Item | None:
    return dispatch.take(worker, dispatch.ledger.incarnation(worker), now)


def shape(instructions: Sequence[Instruction[Item]]) -> list[tuple[Any, ...]]:
    """The instructions without their texts."""
    short = {
        Cancelled: lambda x: ("cancelled", x.item, x.was_started),
        Interrupt: lambda x: ("interrupt", x.item, x.worker),
        Requeued: lambda x: ("requeued", x.item, x.worker),
        Failed: lambda x: ("failed", x.item, x.worker),
        Dropped: lambda x: ("dropped", x.item, x.worker),
    }
    return [short[type(x)](x) for x in instructions]


def assert_usable(dispatch: Dispatch[Item]) -> None:
    assert not dispatch.is_cancelling
    assert dispatch.take_error() is None
    dispatch.submit("next")
    assert take(dispatch, 9) == "next"
    assert dispatch.finished(9, 0, "next")
    assert dispatch.is_idle


def test_items_are_taken_in_order_and_finish() -> None:
    dispatch = submitted("a", "b", "c")
    assert (dispatch.queued, dispatch.in_flight, dispatch.is_idle) == (3, 0, False)
    assert [take(dispatch, worker) for worker in (1, 0, 1)] == ["a", "b", "c"]
    assert take(dispatch, 0) is None
    assert (dispatch.queued, dispatch.in_flight, dispatch.is_idle) == (0, 3, False)
    assert dispatch.finished(0, 0, "b")
    assert dispatch.finished(1, 0, "c")
    assert dispatch.finished(1, 0, "a")
    assert dispatch.is_idle
    assert_usable(dispatch)


def test_an_item_is_submitted_again_after_it_ended() -> None:
    dispatch = submitted("a")
    with pytest.raises(errors.InvalidArgument, match=r"again only after it has ended.*'a'"):
        dispatch.submit("a")
    assert take(dispatch, 0) == "a"
    assert dispatch.finished(0, 0, "a")
    assert not dispatch.finished(0, 0, "a")
    dispatch.submit("a")
    assert take(dispatch, 0) == "a"


def test_an_ended_item_is_let_go() -> None:
    class Work:
        pass

    dispatch: Dispatch[Work] = Dispatch()
    ended = []
    for end in (dispatch.finished, lambda *x: dispatch.failed(*x, ValueError())):
        item = Work()
        dispatch.submit(item, is_repeatable=False)
        assert dispatch.take(0, 0, 0.0) is item
        assert end(0, 0, item)
        ended.append(weakref.ref(item))
    del item, end
    dispatch.take_error()
    assert [reference() for reference in ended] == [None, None]


def test_capacity() -> None:
    dispatch = submitted("a", capacity=2)
    assert not dispatch.is_full
    dispatch.submit("b", worker=1)
    assert dispatch.is_full
    with pytest.raises(errors.QueueFull, match=r"at most 2 items. Received: 'c'"):
        dispatch.submit("c")
    take(dispatch, 0)
    dispatch.submit("c")
    # What comes back finds its place also in a full queue.
    assert shape(dispatch.lost(0)) == [("requeued", "a", 0)]
    assert dispatch.queued == 3


def test_items_of_one_worker_come_first_and_go_to_it_alone() -> None:
    dispatch = submitted("any")
    dispatch.submit("own", worker=1)
    assert take(dispatch, 1) == "own"
    assert shape(dispatch.lost(1)) == [("requeued", "own", 1)]
    assert take(dispatch, 0) == "any"
    assert take(dispatch, 0) is None
    assert take(dispatch, 1) == "own"


def test_the_items_of_a_lost_worker_run_elsewhere() -> None:
    dispatch = submitted("a", "b", "c")
    take(dispatch, 0), take(dispatch, 1)
    (requeued,) = dispatch.lost(0, reason="was killed")
    assert isinstance(requeued, Requeued)
    assert requeued.reason == "waits for a worker again after attempt 1: worker:0 was killed"
    assert not dispatch.finished(0, 0, "a")
    assert dispatch.failed(0, 0, "a", ValueError("late")) == []
    assert dispatch.dropped(0, 0, "a", "late") == []
    assert dispatch.take(0, 0, 0.0) is None
    assert dispatch.finished(1, 0, "b")
    assert [take(dispatch, 1), take(dispatch, 1)] == ["a", "c"]
    assert dispatch.lost(0, 0) == []  # noticed twice
    assert dispatch.finished(1, 0, "a")
    assert dispatch.finished(1, 0, "c")
    assert dispatch.is_idle
    assert dispatch.take_error() is None


def test_what_must_not_run_twice_fails_with_its_worker() -> None:
    dispatch = submitted("a", "b")
    dispatch.submit("once", worker=0, is_repeatable=False)
    assert [take(dispatch, 0), take(dispatch, 0)] == ["once", "a"]
    assert shape(dispatch.lost(0)) == [
        ("requeued", "a", 0),
        ("failed", "once", 0),
        ("cancelled", "a", True),
        ("cancelled", "b", False),
    ]
    error = dispatch.take_error()
    assert isinstance(error, errors.WorkerLost)
    assert isinstance(error, ConnectionError)
    assert "'once' on worker:0, which was lost" in str(error)
    assert_usable(dispatch)


def test_several_failures_at_once() -> None:
    dispatch: Dispatch[Item] = Dispatch()
    for item in "ab":
        dispatch.submit(item, is_repeatable=False)
        take(dispatch, 0)
    instructions = dispatch.lost(0)
    assert shape(instructions) == [("failed", "a", 0), ("failed", "b", 0)]
    assert dispatch.take_error() is instructions[0].error  # pyright: ignore[reportAttributeAccessIssue]
    assert_usable(dispatch)


def test_a_dropped_push_is_repeated() -> None:
    dispatch: Dispatch[Item] = Dispatch()
    dispatch.submit("a", examples=4)
    dispatch.submit("once", examples=2, is_repeatable=False)
    take(dispatch, 0), take(dispatch, 0)
    (requeued,) = dispatch.dropped(0, 0, "a", "9 versions old")
    assert isinstance(requeued, Requeued)
    assert requeued.reason.endswith("after attempt 1: worker:0 gave it back: 9 versions old")
    (dropped,) = dispatch.dropped(0, 0, "once", "9 versions old")
    assert dropped == Dropped("once", 0, "9 versions old")
    assert take(dispatch, 0) == "a"
    assert dispatch.finished(0, 0, "a")
    assert dispatch.is_idle
    assert (dispatch.ledger.counted_examples, dispatch.ledger.withdrawn_examples) == (4, 2)
    assert dispatch.take_error() is None


def test_a_held_push_outlives_its_worker() -> None:
    dispatch = submitted("a", "b")
    take(dispatch, 0), take(dispatch, 1)
    assert dispatch.pushed(0, 0, "a")
    assert not dispatch.pushed(0, 0, "b")
    assert dispatch.lost(0) == []
    assert dispatch.finished(0, 0, "a")
    assert dispatch.in_flight == 1


def test_the_first_error_calls_off_the_rest_and_is_raised_once() -> None:
    dispatch = submitted("a", "b", "c", "d")
    for worker in range(3):
        take(dispatch, worker)
    first = ValueError("bad batch")
    instructions = dispatch.failed(1, 0, "b", first)
    assert shape(instructions) == [
        ("failed", "b", 1),
        ("cancelled", "a", True),
        ("interrupt", "a", 0),
        ("cancelled", "c", True),
        ("interrupt", "c", 2),
        ("cancelled", "d", False),
    ]
    texts = {x.item: x.reason for x in instructions if isinstance(x, Cancelled)}
    assert "'b' failed on worker:1 with ValueError('bad batch')" in texts["a"]
    assert "may have taken effect in part" in texts["a"]
    assert texts["d"].endswith("It had not started; schedule it again.")
    # Both are still busy, so the error waits.
    assert (dispatch.queued, dispatch.in_flight) == (0, 2)
    assert dispatch.take_error() is None
    assert take(dispatch, 1) is None
    with pytest.raises(errors.Cancelled, match=r"'e' after this: 'b' failed on worker:1"):
        dispatch.submit("e")
    assert not dispatch.pushed(0, 0, "a")
    assert not dispatch.finished(0, 0, "a")
    assert dispatch.take_error() is None
    assert dispatch.failed(2, 0, "c", KeyError("second")) == []
    assert dispatch.is_idle
    assert dispatch.is_cancelling
    assert dispatch.take_error() is first
    assert dispatch.take_error() is None
    dispatch.cancel("It was stopped.")
    assert dispatch.take_error() is None
    assert_usable(dispatch)


@pytest.mark.parametrize(
    "end",
    [
        lambda d: d.finished(0, 0, "long"),
        lambda d: d.failed(0, 0, "long", KeyError()),
        lambda d: d.dropped(0, 0, "long", "old"),
        lambda d: d.lost(0),
        lambda d: d.abandon(0),
        lambda d: d.expire(5.0),
    ],
)
def test_an_interrupted_item_ends_once(end: Callable[[Dispatch[Item]], object]) -> None:
    dispatch = submitted("long", "bad", deadline_s=5.0)
    take(dispatch, 0), take(dispatch, 1)
    assert ("cancelled", "long", True) in shape(dispatch.failed(1, 0, "bad", ValueError()))
    assert not end(dispatch)
    assert isinstance(dispatch.take_error(), ValueError)
    assert_usable(dispatch)


def test_an_error_does_not_wait_for_pushes_that_wait_for_their_group() -> None:
    dispatch = submitted("held", "bad")
    take(dispatch, 0), take(dispatch, 1)
    dispatch.pushed(0, 0, "held")
    assert shape(dispatch.failed(1, 0, "bad", ValueError())) == [
        ("failed", "bad", 1),
        ("cancelled", "held", True),
    ]
    assert isinstance(dispatch.take_error(), ValueError)
    assert not dispatch.finished(0, 0, "held")
    assert_usable(dispatch)


def test_a_worker_that_does_not_react_is_given_up() -> None:
    dispatch = submitted("endless", "bad")
    take(dispatch, 0), take(dispatch, 1)
    dispatch.failed(1, 0, "bad", ValueError())
    assert dispatch.abandon(0, 0) == []
    assert isinstance(dispatch.take_error(), ValueError)
    dispatch.submit("endless")
    assert dispatch.take(0, 0, 0.0) is None
    assert dispatch.take(0, 1, 0.0) == "endless"
    # The old one comes round at last; its successor's work is not touched by it.
    assert not dispatch.finished(0, 0, "endless")
    assert dispatch.abandon(0, 0) == []
    assert dispatch.finished(0, 1, "endless")


def test_a_worker_given_up_without_an_error() -> None:
    dispatch = submitted("a", "b")
    take(dispatch, 0)
    (cancelled,) = dispatch.abandon(0, reason="makes no progress")
    assert isinstance(cancelled, Cancelled)
    assert cancelled.was_started
    assert "worker:0 makes no progress" in cancelled.reason
    assert take(dispatch, 0) == "b"
    assert dispatch.finished(0, 1, "b")
    assert_usable(dispatch)


def test_deadlines() -> None:
    dispatch = submitted("slow", "fast", deadline_s=10.0)
    take(dispatch, 0, 0.0), take(dispatch, 1, 5.0)
    instructions = dispatch.expire(10.0)
    assert shape(instructions) == [("interrupt", "slow", 0), ("requeued", "slow", 0)]
    assert all("worker:0 had it for 10 s" in x.reason for x in instructions)  # pyright: ignore[reportAttributeAccessIssue]
    assert not dispatch.finished(0, 0, "slow")
    assert take(dispatch, 1, 10.0) == "slow"
    assert dispatch.finished(1, 0, "slow")


def test_the_deadline_of_what_must_not_run_twice() -> None:
    dispatch: Dispatch[Item] = Dispatch(deadline_s=2.5)
    dispatch.submit("once", is_repeatable=False)
    take(dispatch, 0)
    assert shape(dispatch.expire(2.5)) == [("interrupt", "once", 0), ("failed", "once", 0)]
    with pytest.raises(TimeoutError, match=r"within 2.5 s. Received: 'once' still on worker:0"):
        raise dispatch.take_error() or AssertionError
    assert_usable(dispatch)


def test_calling_off_without_an_error() -> None:
    dispatch = submitted("a", "b")
    take(dispatch, 0)
    instructions = dispatch.cancel("Training was stopped.")
    assert shape(instructions) == [
        ("cancelled", "a", True),
        ("interrupt", "a", 0),
        ("cancelled", "b", False),
    ]
    assert dispatch.cancel("Again.") == []
    assert dispatch.failed(0, 0, "a", ValueError("interrupted")) == []
    assert dispatch.is_cancelling
    assert dispatch.take_error() is None
    assert_usable(dispatch)


def test_a_wait_can_say_what_it_waits_for() -> None:
    dispatch = submitted("a", "b", "c")
    assert dispatch.explain(0.0) == "queued for any worker: 3"
    take(dispatch, 0, 1.0), take(dispatch, 1, 2.0)
    dispatch.submit("own", worker=1)
    dispatch.pushed(1, 0, "b")
    assert dispatch.explain(4.25) == (
        "worker:0 has had 'a' for 3.2 s; pushed and not yet applied: 1; queued for any worker: 1; "
        "queued for worker:1: 1"
    )
    assert Dispatch().explain(0.0) == "nothing is queued or in flight"


@pytest.mark.parametrize("make", [lambda: Dispatch(capacity=0), lambda: Dispatch().submit(None)])
def test_mistakes_are_named(make: Callable[[], Any]) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"Received: (capacity=0|None)\."):
        make()


class AnyInterleaving(RuleBasedStateMachine):
    """A dispatch under any order of events, old reports included."""

    DEADLINE_S = 3.0
    NUM_WORKERS = 3
    WORKERS = st.integers(0, NUM_WORKERS - 1)
    ONLY = st.none() | WORKERS
    REPEATABLE = st.sampled_from([True, True, False])

    def __init__(self) -> None:
        super().__init__()
        self.dispatch: Dispatch[Item] = Dispatch(capacity=6, deadline_s=self.DEADLINE_S)
        self.now = 0.0
        self.only: dict[int, int | None] = {}
        self.once: set[int] = set()
        self.starts: dict[int, int] = {}
        self.ends: dict[int, str] = {}
        self.holder: dict[int, tuple[int, int]] = {}  # also of cancelled items that keep it busy
        self.is_pushed: set[int] = set()
        self.grants: list[tuple[int, int, int]] = []
        self.first_error: BaseException | None = None
        self.is_called_off = False
        self.finished_examples = 0

    def end(self, item: Item, how: str) -> None:
        assert isinstance(item, int)
        assert item not in self.ends, f"{item} ended as {self.ends[item]} and {how}"
        self.ends[item] = how

    def follow(self, instructions: Sequence[Instruction[Item]]) -> None:
        """Carries out instructions, and checks that each one is possible."""
        for x in instructions:
            match x:
                case Cancelled(item, was_started, _):
                    self.end(item, "cancelled")
                    assert was_started == (self.starts[item] > 0)
                case Failed(item, _, error):
                    self.end(item, "failed")
                    if not self.is_called_off:
                        self.first_error = self.first_error or error
                case Dropped(item, _, _):
                    assert item in self.once
                    self.end(item, "finished")
                case Requeued(item, _, _):
                    assert item not in self.once
                    assert item not in self.ends
                case Interrupt(worker, item, _):
                    held = self.holder.get(item)
                    assert held is None or held[0] == worker
        if self.first_error is not None:
            self.is_called_off = True
        if self.is_called_off:
            # What is not running has nobody to report it.
            for item in [x for x in self.holder if x in self.is_pushed]:
                self.release(item)

    def release(self, item: int) -> None:
        del self.holder[item]
        self.is_pushed.discard(item)

    @initialize(data=st.data())
    def submit_some(self, data: st.DataObject) -> None:
        for _ in range(4):
            self.submit(data.draw(self.ONLY), data.draw(self.REPEATABLE))

    @rule(only=ONLY, is_repeatable=REPEATABLE)
    def submit(self, only: int | None, is_repeatable: bool) -> None:
        item = len(self.only)
        arguments: dict[str, Any] = {
            "examples": item % 4,
            "worker": only,
            "is_repeatable": is_repeatable,
        }
        if self.is_called_off:
            with pytest.raises(errors.Cancelled):
                self.dispatch.submit(item, **arguments)
        elif self.dispatch.is_full:
            with pytest.raises(errors.QueueFull):
                self.dispatch.submit(item, **arguments)
        else:
            self.dispatch.submit(item, **arguments)
            self.only[item], self.starts[item] = only, 0
            if not is_repeatable:
                self.once.add(item)

    @rule(worker=WORKERS)
    def take(self, worker: int) -> None:
        incarnation = self.dispatch.ledger.incarnation(worker)
        item = self.dispatch.take(worker, incarnation, self.now)
        open_items = [x for x in self.only if x not in self.ends and x not in self.holder]
        if item is None:
            assert self.is_called_off or not [
                x for x in open_items if self.only[x] in (None, worker)
            ]
            return
        assert not self.is_called_off
        assert item in open_items
        assert isinstance(item, int)
        assert self.only[item] in (None, worker)
        self.starts[item] += 1
        assert item not in self.once or self.starts[item] == 1
        self.holder[item] = (worker, incarnation)
        self.grants.append((item, worker, incarnation))

    def reported(self, data: st.DataObject) -> tuple[int, int, int, bool]:
        """Any item that anybody ever had, who had it, and whether a report of it has an effect."""
        present = [(item, *holder) for item, holder in self.holder.items()]
        grants = st.sampled_from(self.grants)
        grant = data.draw(st.sampled_from(present) | grants if present else grants)
        return (*grant, self.holder.get(grant[0]) == grant[1:])

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def pushed(self, data: st.DataObject) -> None:
        item, worker, incarnation, has_it = self.reported(data)
        counts = has_it and not self.is_called_off
        assert self.dispatch.pushed(worker, incarnation, item) == counts
        if counts:
            self.is_pushed.add(item)

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def finished(self, data: st.DataObject) -> None:
        item, worker, incarnation, has_it = self.reported(data)
        self.finish(item, worker, incarnation, has_it)

    def finish(self, item: int, worker: int, incarnation: int, has_it: bool) -> None:
        counts = has_it and not self.is_called_off
        assert self.dispatch.finished(worker, incarnation, item) == counts
        if has_it:
            self.release(item)
        if counts:
            self.end(item, "finished")
            self.finished_examples += item % 4

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), kind=st.sampled_from(["failed", "dropped"]))
    def failed_or_dropped(self, data: st.DataObject, kind: str) -> None:
        item, worker, incarnation, has_it = self.reported(data)
        counts = has_it and not self.is_called_off
        if has_it:
            self.release(item)
        if kind == "failed":
            instructions = self.dispatch.failed(worker, incarnation, item, ValueError(item))
        else:
            instructions = self.dispatch.dropped(worker, incarnation, item, "old")
        assert bool(instructions) == counts
        self.follow(instructions)

    @precondition(lambda self: self.holder)
    @rule(worker=WORKERS, is_abandoned=st.booleans())
    def lose(self, worker: int, is_abandoned: bool) -> None:
        incarnation = self.dispatch.ledger.incarnation(worker)
        event = self.dispatch.abandon if is_abandoned else self.dispatch.lost
        for item in [x for x, (w, _) in self.holder.items() if w == worker]:
            if item not in self.is_pushed:
                self.release(item)
        self.follow(event(worker, incarnation))
        assert event(worker, incarnation) == []
        assert self.dispatch.take(worker, incarnation, self.now) is None

    @precondition(lambda self: self.holder)
    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0]))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        before = self.dispatch.ledger.holders()
        instructions = self.dispatch.expire(self.now)
        late = len(before) - sum(x in self.dispatch.ledger.holders() for x in before)
        held = [x for x in self.holder if x not in self.is_pushed]
        # Leases are in the order of the items that are held.
        gone = [
            x
            for x, (_, since) in zip(held, before.values(), strict=True)
            if self.now - since >= self.DEADLINE_S
        ]
        assert len(gone) == late
        for item in gone:
            self.release(item)
        self.follow(instructions)

    @precondition(lambda self: self.holder and not self.is_called_off)
    @rule()
    def cancel(self) -> None:
        instructions = self.dispatch.cancel("It was stopped.")
        self.is_called_off = True
        self.follow(instructions)

    @precondition(lambda self: self.is_called_off)
    @rule()
    def take_error(self) -> None:
        error = self.dispatch.take_error()
        if self.holder:
            assert error is None
            return
        assert error is self.first_error
        self.first_error, self.is_called_off = None, False
        assert self.dispatch.take_error() is None
        assert self.dispatch.is_idle

    @invariant()
    def the_books_agree(self) -> None:
        dispatch, ledger = self.dispatch, self.dispatch.ledger
        queued = [x for x in self.only if x not in self.ends and x not in self.holder]
        assert (dispatch.queued, dispatch.in_flight) == (len(queued), len(self.holder))
        assert dispatch.is_idle == (not queued and not self.holder)
        assert dispatch.is_cancelling == self.is_called_off
        assert not (self.is_called_off and queued)
        assert ledger.counted_examples == self.finished_examples
        assert dispatch.explain(self.now)
        if not self.is_called_off:
            assert dispatch.take_error() is None

    def teardown(self) -> None:
        """However it went: after a drain every item has ended once, and all books are closed."""
        for item, (worker, incarnation) in list(self.holder.items()):
            self.finish(item, worker, incarnation, has_it=True)
        if self.is_called_off:
            self.take_error()
        for worker in range(self.NUM_WORKERS):
            while (item := take(self.dispatch, worker)) is not None:
                incarnation = self.dispatch.ledger.incarnation(worker)
                assert self.dispatch.finished(worker, incarnation, item)
                self.end(item, "finished")
                self.finished_examples += int(item) % 4
        assert self.dispatch.is_idle
        assert sorted(self.ends) == sorted(self.only)
        ledger = self.dispatch.ledger
        assert ledger.counted_examples == self.finished_examples
        assert ledger.counted_examples + ledger.withdrawn_examples == ledger.offered_examples
        assert_usable(self.dispatch)


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
