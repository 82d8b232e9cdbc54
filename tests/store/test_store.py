"""The store by event lists, and under any interleaving of pulls, pushes and repetitions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.store.store import Assign, AssignAdd, Push, Refusal, Store

if TYPE_CHECKING:
    from collections.abc import Sequence


def push(
    update: Any, worker: int = 0, incarnation: int = 0, sequence: int = 0, read_version: int = 0
) -> Push:
    return Push(worker, incarnation, sequence, read_version, update)


def test_a_snapshot_is_of_one_version_and_stays_as_it_is() -> None:
    store = Store({"a": np.zeros(2), "b": np.ones(2)})
    snapshot = store.pull(["b", "a"])
    store.apply(AssignAdd("a", np.ones(2)), 0)
    store.apply(Assign("b", np.full(2, 7.0)), 0)
    assert (snapshot.version, store.version) == (0, 2)
    np.testing.assert_array_equal(snapshot.values, [[1, 1], [0, 0]])
    np.testing.assert_array_equal(store.pull(["a", "b"]).values, [[1, 1], [7, 7]])


def test_the_staleness_counts_the_updates_since_the_read() -> None:
    store = Store({"a": 0})
    assert [store.apply(AssignAdd("a", 1), read) for read in (0, 0, 2, 1)] == [0, 1, 0, 2]


def test_an_update_is_told_how_stale_it_is() -> None:
    seen: list[int] = []

    class Seeing(AssignAdd):
        def __call__(self, current: Sequence[Any], staleness: int) -> tuple[Any]:
            seen.append(staleness)
            return super().__call__(current, staleness)

    store = Store({"a": 0})
    for read in (0, 0, 0):
        store.apply(Seeing("a", 1), read)
    assert seen == [0, 1, 2]


def test_additions_add_up_and_assignments_replace() -> None:
    store = Store({"a": 1})
    for update in (AssignAdd("a", 4), Assign("a", 10), AssignAdd("a", -3)):
        store.apply(update, 0)
    assert store.pull(["a"]).values == (7,)
    assert AssignAdd("a", 1).reads == AssignAdd("a", 1).writes == Assign("a", 1).writes == ("a",)
    assert Assign("a", 1).reads == ()


def test_a_push_that_comes_again_is_refused() -> None:
    store = Store({"a": 0})
    assert store.refusal(push(None, worker=1, sequence=3)) is None
    assert store.refusal(push(None, worker=1, sequence=3)) == Refusal(
        "push 3 of worker:1 was received before", is_repetition=True
    )
    assert store.refusal(push(None, worker=1, sequence=2)) is not None
    assert store.refusal(push(None, worker=2, sequence=3)) is None
    assert store.refusal(push(None, worker=1, sequence=4)) is None


def test_pushes_of_a_replaced_worker_are_refused() -> None:
    store = Store({"a": 0})
    assert store.refusal(push(None, sequence=5)) is None
    assert store.refusal(push(None, incarnation=1, sequence=0)) is None
    assert store.refusal(push(None, incarnation=0, sequence=6)) == Refusal(
        "worker:0 was replaced; this is its incarnation 0", is_repetition=False
    )
    assert store.refusal(push(None, incarnation=1, sequence=1)) is None


def test_pushes_of_a_replaced_worker_are_refused_before_the_new_one_pushes() -> None:
    store = Store({"a": 0})
    store.expect(0, 1)
    assert store.refusal(push(None, incarnation=0)) is not None
    store.expect(0, 0)  # old news
    assert store.refusal(push(None, incarnation=0, sequence=1)) is not None
    assert store.refusal(push(None, incarnation=1)) is None


@dataclasses.dataclass(frozen=True)
class Broken:
    """Writes two arrays, and fails in one of several ways."""

    how: str
    reads = writes = ("a", "b")

    def __call__(self, current: Sequence[Any], staleness: int) -> list[Any]:
        if self.how == "raises":
            raise ZeroDivisionError
        return [9] if self.how == "short" else [9, 9, 9]


@pytest.mark.parametrize("how", ["raises", "short", "long"])
def test_an_update_that_fails_changes_nothing(how: str) -> None:
    store = Store({"a": 1, "b": 2})
    with pytest.raises((ZeroDivisionError, ValueError)):
        store.apply(Broken(how), 0)
    assert store.version == 0
    assert store.pull(["a", "b"]).values == (1, 2)
    store.apply(AssignAdd("a", 1), 0)
    assert store.version == 1


# An update that does not commute: the result tells the order.
@dataclasses.dataclass(frozen=True)
class Digit:
    key: str
    digit: int

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.key,)

    writes = reads

    def __call__(self, current: Sequence[Any], staleness: int) -> tuple[int]:
        return (current[0] * 10 + self.digit,)


events = st.lists(
    st.tuples(
        st.sampled_from(["pull", "push", "repeat", "replace", "old", "fail"]),
        st.integers(0, 2),
        st.sampled_from("ab"),
        st.integers(1, 9),
    ),
    max_size=60,
)


@given(events)
def test_any_interleaving(events: list[tuple[str, int, str, int]]) -> None:
    arrays: dict[str, Any] = {"a": 0, "b": 0}
    store = Store(arrays)
    expected = {"a": 0, "b": 0}
    read = [0, 0, 0]
    incarnation = [0, 0, 0]
    sequence = [0, 0, 0]
    last: list[Push | None] = [None, None, None]
    version = 0

    def deliver(one: Push, *, counts: bool) -> None:
        nonlocal version
        assert (store.refusal(one) is None) == counts
        if not counts:
            return
        assert store.apply(one.update, one.read_version) == version - one.read_version
        update: Any = one.update
        expected[update.key] = expected[update.key] * 10 + update.digit
        version += 1

    for what, worker, key, digit in events:
        one = last[worker]
        if what == "pull":
            snapshot = store.pull(["a", "b"])
            assert snapshot.version == version
            assert snapshot.values == (expected["a"], expected["b"])
            read[worker] = version
        elif what == "push":
            sequence[worker] += 1
            update = Digit(key, digit)
            one = push(update, worker, incarnation[worker], sequence[worker], read[worker])
            deliver(one, counts=True)
            last[worker] = one
        elif what == "repeat" and one is not None:
            deliver(one, counts=False)
        elif what == "replace":
            incarnation[worker] += 1
            sequence[worker] = 0
            store.expect(worker, incarnation[worker])
        elif what == "old" and incarnation[worker]:
            late = push(Digit(key, digit), worker, incarnation[worker] - 1, 10_000, read[worker])
            deliver(late, counts=False)
        elif what == "fail":
            with pytest.raises(ZeroDivisionError):
                store.apply(Broken("raises"), read[worker])
        assert store.version == version
        assert arrays == expected
