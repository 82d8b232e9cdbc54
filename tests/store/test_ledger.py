"""The ledger: every lease is counted once, whatever happens to the workers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.errors import CheckpointError, ContextError, InvalidArgument
from paceline.store.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

Grant = tuple[int, int, int]  # lease id, worker, incarnation


def granted(ledger: Ledger, worker: int, now: float = 0.0) -> int:
    lease_id = ledger.lease(worker, ledger.incarnation(worker), now)
    assert lease_id is not None
    return lease_id


def drained(ledger: Ledger, worker: int = 0) -> list[int]:
    """Lets one worker do all that waits for it, and returns what it got."""
    done = []
    while (lease_id := ledger.lease(worker, ledger.incarnation(worker), 0.0)) is not None:
        assert ledger.complete(lease_id, worker, ledger.incarnation(worker))
        done.append(lease_id)
    return done


def test_leases_are_given_in_order_and_counted() -> None:
    ledger = Ledger()
    assert ledger.is_done
    assert [ledger.offer(examples=n) for n in (3, 4, 5)] == [0, 1, 2]
    assert (granted(ledger, 0), granted(ledger, 1), granted(ledger, 0)) == (0, 1, 2)
    assert ledger.lease(1, 0, 0.0) is None
    assert (ledger.waiting, ledger.outstanding, ledger.is_done) == (0, 3, False)
    # A worker may have several, and report them in any order.
    assert all(
        ledger.complete(lease_id, worker, 0) for lease_id, worker in ((2, 0), (1, 1), (0, 0))
    )
    assert ledger.is_done
    assert ledger.counted_examples == ledger.offered_examples == 12
    counts = ledger.counts()
    assert (counts[0].leased, counts[0].completed, counts[0].examples) == (2, 2, 8)
    assert (counts[1].leased, counts[1].completed, counts[1].examples) == (1, 1, 4)


def test_a_report_counts_once() -> None:
    ledger = Ledger()
    ledger.offer(7, examples=4)
    assert granted(ledger, 0) == 7
    assert not ledger.complete(7, 1, 0)
    assert not ledger.complete(8, 0, 0)
    assert ledger.complete(7, 0, 0)
    assert not ledger.complete(7, 0, 0)
    assert not ledger.give_back(7, 0, 0, "again")
    assert not ledger.pushed(7, 0, 0)
    assert not ledger.withdraw(7)
    assert ledger.counted_examples == 4
    assert ledger.counts()[0].ignored == 4
    assert ledger.counts()[1].ignored == 1


def test_the_leases_of_a_lost_worker_go_to_the_front_in_their_order() -> None:
    ledger = Ledger()
    for _ in range(4):
        ledger.offer(examples=1)
    granted(ledger, 0), granted(ledger, 1), granted(ledger, 0)
    assert ledger.lose(0, reason="was killed") == [0, 2]
    assert ledger.explain(0) == "waits for a worker again after attempt 1: worker:0 was killed"
    assert not ledger.complete(0, 0, 0)
    assert ledger.complete(1, 1, 0)
    assert drained(ledger, 1) == [0, 2, 3]
    assert ledger.counted_examples == 4
    assert ledger.counts()[0].lost == 2


def test_a_lost_incarnation_gets_nothing_and_its_successor_does() -> None:
    ledger = Ledger()
    ledger.offer()
    ledger.offer()
    granted(ledger, 0)
    assert ledger.lose(0, 0) == [0]
    assert ledger.incarnation(0) == 1
    assert ledger.lease(0, 0, 0.0) is None
    assert ledger.lease(0, 1, 0.0) == 0
    # The same loss, noticed a second time by somebody else.
    assert ledger.lose(0, 0) == []
    assert not ledger.complete(0, 0, 0)
    assert ledger.complete(0, 0, 1)


def test_a_successor_waits_for_the_report_of_the_loss() -> None:
    ledger = Ledger()
    ledger.offer()
    ledger.offer()
    granted(ledger, 0)
    with pytest.raises(ContextError, match=r"incarnation=1 while incarnation 0 .* Call lose\(0\)"):
        ledger.lease(0, 1, 0.0)
    ledger.complete(0, 0, 0)
    # A worker that has nothing may come with any higher number, as in a new run.
    assert ledger.lease(0, 5, 0.0) == 1
    assert ledger.incarnation(0) == 5


def test_deadlines() -> None:
    ledger = Ledger(deadline_s=10.0)
    for _ in range(3):
        ledger.offer(examples=1)
    assert ledger.next_deadline() is None
    granted(ledger, 0, now=0.0), granted(ledger, 1, now=2.0), granted(ledger, 2, now=5.0)
    assert ledger.next_deadline() == 10.0
    assert ledger.expire(9.9) == []
    assert ledger.expire(12.0) == [(0, 0), (1, 1)]
    assert ledger.next_deadline() == 15.0
    assert ledger.explain(1) == "waits for a worker again after attempt 1: worker:1 had it for 10 s"
    # The slow worker is still a member: it gets its lease again, and one report of it counts.
    assert not ledger.complete(0, 0, 0)
    assert granted(ledger, 0, now=12.0) == 0
    assert ledger.attempts(0) == 2
    assert ledger.complete(0, 0, 0)
    assert not ledger.complete(0, 0, 0)
    assert ledger.counted_examples == 1
    assert ledger.counts()[0].expired == 1


def test_without_a_deadline_nothing_expires() -> None:
    ledger = Ledger()
    ledger.offer()
    granted(ledger, 0)
    assert ledger.expire(1e9) == []
    assert ledger.next_deadline() is None


def test_a_lease_given_back_is_the_next_one() -> None:
    ledger = Ledger()
    ledger.offer()
    ledger.offer()
    granted(ledger, 0)
    assert ledger.explain(1) == "waits for a worker"
    assert ledger.give_back(0, 0, 0, "its push was 9 versions old")
    assert ledger.explain(0).endswith("worker:0 gave it back: its push was 9 versions old")
    assert drained(ledger, 1) == [0, 1]
    assert ledger.counts()[0].given_back == 1


def test_who_gave_a_lease_back_leaves_it_to_the_next() -> None:
    ledger = Ledger.over(3, 1)
    granted(ledger, 0)
    assert ledger.give_back(0, 0, 0, "its push came late")
    assert granted(ledger, 0) == 1
    assert granted(ledger, 1) == 0
    assert ledger.give_back(0, 1, 0, "its push came late")
    assert drained(ledger, 1) == [2, 0]  # when there is no other


def test_leases_for_one_worker() -> None:
    ledger = Ledger()
    ledger.offer()
    ledger.offer(worker=1)
    ledger.offer(worker=1)
    assert ledger.explain(1) == "waits for worker:1"
    assert ledger.waiting_for() == {None: 1, 1: 2}
    assert (granted(ledger, 1), granted(ledger, 1)) == (1, 2)
    # They wait for its next incarnation, in their order.
    ledger.lose(1)
    assert drained(ledger, 0) == [0]
    assert ledger.waiting_for() == {1: 2}
    assert drained(ledger, 1) == [1, 2]


def test_a_push_that_waits_for_its_group_outlives_its_worker() -> None:
    ledger = Ledger(deadline_s=1.0)
    for _ in range(2):
        ledger.offer(examples=1)
    granted(ledger, 0), granted(ledger, 0)
    assert ledger.pushed(0, 0, 0)
    assert ledger.explain(0) == "attempt 1 on worker:0: pushed, and it waits to be applied"
    assert ledger.explain(1) == "attempt 1 on worker:0: in work"
    assert list(ledger.holders()) == [1]
    assert ledger.expire(5.0) == [(1, 0)]
    assert ledger.next_deadline() is None
    assert ledger.lose(0) == []
    assert ledger.outstanding == 1
    # Dropped after all: it goes back, and is an ordinary lease again.
    assert ledger.give_back(0, 0, 0, "the round was closed")
    assert granted(ledger, 1, now=5.0) == 0
    assert ledger.lose(1) == [0]


def test_a_held_push_is_counted_when_it_is_applied() -> None:
    ledger = Ledger()
    ledger.offer(examples=2)
    granted(ledger, 0)
    assert ledger.pushed(0, 0, 0)
    ledger.lose(0)
    assert ledger.counted_examples == 0
    assert ledger.complete(0, 0, 0)
    assert ledger.counted_examples == 2


def test_withdrawn_leases() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.offer(examples=1)
    granted(ledger, 0)
    assert not ledger.withdraw(0, (1, 0))
    assert not ledger.withdraw(1, (0, 0))
    assert ledger.withdraw(0, (0, 0))
    assert ledger.withdraw(1)
    assert not ledger.complete(0, 0, 0)
    assert drained(ledger) == [2]
    assert (ledger.counted_examples, ledger.withdrawn_examples) == (1, 2)


def test_ranges_of_a_dataset() -> None:
    ledger = Ledger.over(10, 4)
    assert ledger.waiting == 3
    ranges = [ledger.range_of(granted(ledger, worker)) for worker in (0, 1, 0)]
    assert ranges == [range(4), range(4, 8), range(8, 10)]
    assert Ledger.over(0, 4).is_done


@given(st.integers(0, 200), st.integers(1, 50))
def test_ranges_cover_every_example_once(num_examples: int, batch: int) -> None:
    ledger = Ledger.over(num_examples, batch)
    seen: list[int] = []
    while (lease_id := ledger.lease(0, 0, 0.0)) is not None:
        seen += ledger.range_of(lease_id)
        ledger.complete(lease_id, 0, 0)
    assert seen == list(range(num_examples))
    assert ledger.counted_examples == num_examples


def test_a_slow_worker_takes_fewer_leases() -> None:
    ledger = Ledger.over(40, 1)
    for now in range(1, 50):
        for worker, period in ((0, 1), (1, 10)):
            if now % period == 0 and (lease_id := ledger.lease(worker, 0, now)) is not None:
                ledger.complete(lease_id, worker, 0)
    counts = ledger.counts()
    assert ledger.is_done
    assert counts[0].completed + counts[1].completed == 40
    assert 3 <= counts[1].completed <= 4


def test_a_long_run_does_not_grow() -> None:
    ledger = Ledger()
    sizes = set()
    for step in range(1000):
        ledger.offer(examples=1)
        ledger.complete(granted(ledger, 0), 0, 0)
        sizes.add(len(ledger.state()["waiting"]))
        assert step == ledger.counted_examples - 1
    assert sizes == {0}


def saved(ledger: Ledger) -> Ledger:
    return Ledger.from_state(json.loads(json.dumps(ledger.state())), deadline_s=ledger.deadline_s)


def test_a_restored_ledger_continues() -> None:
    ledger = Ledger.over(12, 3)
    ledger.offer(examples=1, worker=1)
    granted(ledger, 0), granted(ledger, 0), granted(ledger, 0)
    ledger.complete(0, 0, 0)
    ledger.pushed(1, 0, 0)  # in no weights yet, so it is done again
    restored = saved(ledger)
    assert restored.counts() == ledger.counts()
    assert (restored.waiting, restored.outstanding) == (4, 0)
    assert restored.attempts(1) == 1
    assert restored.explain(1).endswith("after attempt 1: the run was restored")
    assert restored.range_of(1) == range(3, 6)
    assert drained(restored, 1) == [4, 1, 2, 3]
    assert restored.counted_examples == restored.offered_examples == 13
    # Numbers of leases go on where they were.
    assert restored.offer() == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("next_id"),
        lambda state: state.update(waiting=[[1, 2]]),
        lambda state: state.update(waiting=None),
        lambda state: state.update(counted_examples=99),
        lambda state: state.update(workers=[[0, {"pushed": 3}]]),
    ],
)
def test_a_damaged_state_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    state = Ledger.over(10, 4).state()
    damage(state)
    with pytest.raises(CheckpointError, match=r"Take the ledger of another checkpoint"):
        Ledger.from_state(state)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Ledger(deadline_s=0), "deadline_s=0"),
        (lambda: Ledger(deadline_s=float("nan")), "deadline_s=nan"),
        (lambda: Ledger.over(-1, 4), "num_examples=-1, batch=4"),
        (lambda: Ledger.over(4, 0), "num_examples=4, batch=0"),
        (lambda: Ledger.over(8, 4).offer(1), "lease_id=1 where the next is 2 or higher"),
        (lambda: Ledger().offer(examples=-1), "examples=-1"),
        (lambda: Ledger().attempts(3), "lease_id=3, which has ended or was never offered"),
        (lambda: Ledger().range_of(3), "lease_id=3"),
        (lambda: Ledger().explain(3), "lease_id=3"),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        make()


class AnyInterleaving(RuleBasedStateMachine):
    """A ledger beside a model of lists, under any order of events, old reports included."""

    DEADLINE_S = 3.0
    WORKERS = st.integers(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(deadline_s=self.DEADLINE_S)
        self.now = 0.0
        self.examples: dict[int, int] = {}
        self.only: dict[int, int | None] = {}
        self.queue: list[int] = []
        self.holder: dict[int, tuple[int, int]] = {}  # in the order of the leases
        self.since: dict[int, float] = {}
        self.is_pushed: set[int] = set()
        self.given_back_by: dict[int, int] = {}
        self.counted: list[int] = []
        self.withdrawn: list[int] = []
        self.attempts: dict[int, int] = {}
        self.incarnations = dict.fromkeys(range(3), 0)
        self.grants: list[Grant] = []

    def take_back(self, leases: list[int]) -> None:
        for lease_id in leases:
            del self.holder[lease_id]
            self.is_pushed.discard(lease_id)
        self.queue[:0] = leases

    @initialize(sizes=st.lists(st.integers(0, 5), min_size=4, max_size=4))
    def offer_some(self, sizes: list[int]) -> None:
        for examples in sizes:
            self.offer(examples, only=None, gap=0)

    @rule(examples=st.integers(0, 5), only=st.none() | WORKERS, gap=st.sampled_from([0, 0, 3]))
    def offer(self, examples: int, only: int | None, gap: int) -> None:
        lease_id = len(self.examples) and max(self.examples) + 1 + gap
        assert self.ledger.offer(lease_id, examples, worker=only) == lease_id
        self.examples[lease_id], self.only[lease_id] = examples, only
        self.attempts[lease_id] = 0
        self.queue.append(lease_id)

    @rule(worker=WORKERS)
    def lease(self, worker: int) -> None:
        queue = [x for x in self.queue if self.only[x] == worker]
        queue = queue or [x for x in self.queue if self.only[x] is None]
        if len(queue) > 1 and self.given_back_by.get(queue[0]) == worker:
            queue.pop(0)
        expected = queue[0] if queue else None
        incarnation = self.incarnations[worker]
        assert self.ledger.lease(worker, incarnation, self.now) == expected
        if expected is not None:
            self.queue.remove(expected)
            self.holder[expected] = (worker, incarnation)
            self.since[expected] = self.now
            self.attempts[expected] += 1
            self.grants.append((expected, worker, incarnation))

    def reported(self, data: st.DataObject) -> tuple[Grant, bool]:
        """Any lease that anybody ever had, and whether a report of it has an effect."""
        present = [(lease_id, *holder) for lease_id, holder in self.holder.items()]
        grants = st.sampled_from(self.grants)
        grant = data.draw(st.sampled_from(present) | grants if present else grants)
        return grant, self.holder.get(grant[0]) == grant[1:]

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        grant, has_it = self.reported(data)
        assert self.ledger.complete(*grant) == has_it
        if has_it:
            del self.holder[grant[0]]
            self.counted.append(grant[0])

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        grant, has_it = self.reported(data)
        assert self.ledger.withdraw(grant[0], grant[1:]) == has_it
        if has_it:
            del self.holder[grant[0]]
            self.withdrawn.append(grant[0])

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        grant, has_it = self.reported(data)
        assert self.ledger.give_back(*grant, "so") == has_it
        if has_it:
            self.given_back_by[grant[0]] = grant[1]
            self.take_back([grant[0]])

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def pushed(self, data: st.DataObject) -> None:
        grant, has_it = self.reported(data)
        assert self.ledger.pushed(*grant) == has_it
        if has_it:
            self.is_pushed.add(grant[0])

    @precondition(lambda self: self.holder)
    @rule(worker=WORKERS, is_repeated=st.booleans())
    def lose(self, worker: int, is_repeated: bool) -> None:
        lost = [x for x, (w, _) in self.holder.items() if w == worker and x not in self.is_pushed]
        assert self.ledger.lose(worker, self.incarnations[worker]) == lost
        if is_repeated:
            assert self.ledger.lose(worker, self.incarnations[worker]) == []
        assert self.ledger.lease(worker, self.incarnations[worker], self.now) is None
        self.incarnations[worker] += 1
        self.take_back(lost)

    @precondition(lambda self: self.holder)
    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0]))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        late = [
            (x, worker)
            for x, (worker, _) in self.holder.items()
            if self.now - self.since[x] >= self.DEADLINE_S and x not in self.is_pushed
        ]
        assert self.ledger.expire(self.now) == late
        self.take_back([x for x, _ in late])
        deadline = self.ledger.next_deadline()
        assert deadline is None or deadline > self.now

    @precondition(lambda self: self.holder)
    @rule()
    def save_and_restore(self) -> None:
        self.ledger = saved(self.ledger)
        self.take_back(list(self.holder))
        # Kept in the saved order: what any worker may have, then what one worker waits for.
        shared = [x for x in self.queue if self.only[x] is None]
        self.queue = shared + [x for x in self.queue if self.only[x] is not None]
        # The old processes are gone with their reports.
        self.given_back_by.clear()
        self.incarnations = dict.fromkeys(self.incarnations, 0)
        self.grants.clear()

    @invariant()
    def the_books_agree(self) -> None:
        ledger = self.ledger
        assert (ledger.waiting, ledger.outstanding) == (len(self.queue), len(self.holder))
        assert ledger.counted_examples == sum(self.examples[x] for x in self.counted)
        assert ledger.withdrawn_examples == sum(self.examples[x] for x in self.withdrawn)
        assert ledger.offered_examples == sum(self.examples.values())
        assert ledger.is_done == (not self.queue and not self.holder)
        assert ledger.holders() == {
            x: (worker, self.since[x])
            for x, (worker, _) in self.holder.items()
            if x not in self.is_pushed
        }
        for x in [*self.queue, *self.holder]:
            assert ledger.attempts(x) == self.attempts[x]
            assert len(ledger.range_of(x)) == self.examples[x]

    def teardown(self) -> None:
        """However it went, a run that drains counts exactly what was not withdrawn."""
        for x, (worker, incarnation) in list(self.holder.items()):
            if x in self.is_pushed:
                assert self.ledger.complete(x, worker, incarnation)
                self.counted.append(x)
        for worker in self.incarnations:
            self.ledger.lose(worker)
            self.counted += drained(self.ledger, worker)
        assert self.ledger.is_done
        assert sorted(self.counted + self.withdrawn) == sorted(self.examples)
        assert (
            self.ledger.counted_examples + self.ledger.withdrawn_examples
            == self.ledger.offered_examples
        )
        if not self.withdrawn:
            assert self.ledger.counted_examples == self.ledger.offered_examples
        counts = self.ledger.counts().values()
        assert sum(x.completed for x in counts) == len(self.counted)
        assert sum(x.examples for x in counts) == self.ledger.counted_examples


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
