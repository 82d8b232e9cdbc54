"""Functions that raise: the first error once, everything else called off, then as new."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import paceline as tf
from paceline.errors import Cancelled, ClosureInputError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable


def fail() -> None:
    raise ValueError("the function's own")


def ended(value: Any) -> Any:
    """`value`, when it has ended, however it did."""
    with pytest.raises((ValueError, Cancelled)):
        value.fetch()
    return value


class Endless:
    """A function that goes on until it is interrupted at a touch of a variable."""

    def __init__(self, strategy: Any) -> None:
        with strategy.scope():
            self._variable = tf.Variable(0.0)
        self.is_running = threading.Event()

    def __call__(self) -> None:
        try:
            while True:
                self._variable.assign_add(1.0)
                self.is_running.set()
        finally:
            self.is_running.clear()


@pytest.mark.contract(90)
@pytest.mark.case("R81")
def test_join_raises_the_error_once(coordinator: Any) -> None:
    may_begin = threading.Event()  # else a later `schedule` might raise the error
    for fn in (may_begin.wait, may_begin.wait, int, fail, int, int):
        coordinator.schedule(fn)
    may_begin.set()
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.join()
    coordinator.join()
    assert coordinator.done()
    assert coordinator.schedule(lambda: 4).fetch() == 4
    coordinator.join()


@pytest.mark.contract(90)
@pytest.mark.parametrize("surface", ["schedule", "done", "join"])
def test_whatever_comes_next_raises_the_error(coordinator: Any, surface: str) -> None:
    ended(coordinator.schedule(fail))
    calls = {"schedule": lambda: coordinator.schedule(int)}
    with pytest.raises(ValueError, match="the function's own"):
        calls.get(surface, getattr(coordinator, surface))()
    coordinator.join()
    assert coordinator.done()
    assert coordinator.schedule(lambda: 5).fetch() == 5


@pytest.mark.contract(90)
def test_a_function_whose_schedule_raised_does_not_run(coordinator: Any) -> None:
    ended(coordinator.schedule(fail))
    ran: list[int] = []
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.schedule(lambda: ran.append(1))
    coordinator.join()
    assert ran == []


@pytest.mark.contract(90)
def test_of_several_errors_the_first_is_raised(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(2)
    together, first_has_failed = threading.Barrier(2), threading.Event()

    def first() -> None:
        together.wait()
        raise ValueError("first")

    def second() -> None:
        together.wait()
        first_has_failed.wait()
        raise KeyError("second")

    failing, other = coordinator.schedule(first), coordinator.schedule(second)
    with pytest.raises(ValueError, match="first"):
        failing.fetch()
    first_has_failed.set()
    with pytest.raises(ValueError, match="first"):
        coordinator.join()
    with pytest.raises(Cancelled):
        other.fetch()
    coordinator.join()


@pytest.mark.contract(91)
@pytest.mark.case("R81")
def test_what_becomes_of_all_values(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(1)
    may_begin = threading.Event()
    coordinator.schedule(may_begin.wait)
    before = [coordinator.schedule(lambda i=i: i) for i in range(5)]
    failing = coordinator.schedule(fail)
    after = [coordinator.schedule(int) for _ in range(5)]
    may_begin.set()
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.join()
    assert coordinator.fetch(before) == [0, 1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(ValueError, match="the function's own"):
            failing.fetch()
    for value in after:
        with pytest.raises(Cancelled, match="It had not started; schedule it again"):
            value.fetch()
    assert coordinator.schedule(lambda: 1).fetch() == 1


@pytest.mark.contract(91)
def test_nothing_runs_any_more_when_the_error_is_raised(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(3)
    endless = [Endless(coordinator.strategy) for _ in range(2)]
    values = [coordinator.schedule(fn) for fn in endless]
    for fn in endless:
        fn.is_running.wait()
    coordinator.schedule(fail)
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.join()
    assert not any(fn.is_running.is_set() for fn in endless)
    for value in values:
        with pytest.raises(Cancelled, match="may have taken effect in part"):
            value.fetch()


@pytest.mark.contract(92)
def test_a_function_that_runs_a_compiled_step_is_interrupted(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(2)
    with coordinator.strategy.scope():
        v = tf.Variable(0.0)
    has_begun = threading.Event()

    @tf.function
    def step() -> None:
        v.assign_add(1.0)

    def train_on() -> None:
        while True:
            step()
            has_begun.set()

    value = coordinator.schedule(train_on)
    has_begun.wait()
    coordinator.schedule(fail)
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.join()
    with pytest.raises(Cancelled):
        value.fetch()


@pytest.mark.contract(92)
def test_a_function_that_cannot_be_interrupted_is_abandoned(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(2, grace=0.05)
    with coordinator.strategy.scope():
        v = tf.Variable(0.0)
    has_begun, may_end, has_ended = (threading.Event() for _ in range(3))
    errors: list[BaseException] = []

    def long() -> None:
        has_begun.set()
        may_end.wait()
        try:
            v.assign_add(1.0)
        except Cancelled as error:
            errors.append(error)
            raise
        finally:
            has_ended.set()

    value = coordinator.schedule(long)
    has_begun.wait()
    coordinator.schedule(fail)
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.join()  # while `long` still runs
    with pytest.raises(Cancelled):
        value.fetch()
    assert coordinator.fetch([coordinator.schedule(lambda: 1) for _ in range(3)]) == [1, 1, 1]
    may_end.set()
    has_ended.wait()
    coordinator.join()
    assert v.numpy() == 0.0  # what was given up has no effect any more
    assert "touches a variable after that" in str(errors[0])


@pytest.mark.contract(92)
def test_a_worker_that_waits_for_another_result_is_interrupted(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(3)
    endless = Endless(coordinator.strategy)
    value = coordinator.schedule(endless)
    waiting = coordinator.schedule(lambda x: x, args=(value,))
    endless.is_running.wait()
    coordinator.schedule(fail)
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.join()
    with pytest.raises(Cancelled):
        waiting.fetch()


@pytest.mark.contract(90)
def test_an_error_stops_no_worker(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(3)
    other = coordinate(2)
    for _ in range(4):
        coordinator.schedule(fail)
        unharmed = other.schedule(lambda: 7)
        with pytest.raises(ValueError, match="the function's own"):
            coordinator.join()
        together = threading.Barrier(3)
        for _ in range(3):
            coordinator.schedule(together.wait)
        coordinator.join()  # so there are three of them
        assert unharmed.fetch() == 7


def test_an_error_while_tracing_is_an_error_of_the_function(coordinator: Any) -> None:
    @tf.function
    def branches(x: Any) -> Any:
        return 1 if x > 0 else 2

    value = coordinator.schedule(branches, args=(tf.keras.ops.ones(()),))
    with pytest.raises(TraceError, match=r"jnp\.where"):
        coordinator.join()
    with pytest.raises(TraceError):
        value.fetch()


def test_a_value_that_failed_is_no_argument(coordinator: Any) -> None:
    failing = ended(coordinator.schedule(fail))
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.join()
    coordinator.schedule(lambda x: x, args=(failing,))
    with pytest.raises(ClosureInputError, match="the result of fail, which ended with") as caught:
        coordinator.join()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.contract(93)
def test_what_cannot_be_made_fails_the_functions_that_use_it(coordinator: Any) -> None:
    def no_dataset() -> Any:
        raise ValueError("no such file")

    failed = iter(coordinator.create_per_worker_dataset(no_dataset))
    good = iter(coordinator.create_per_worker_dataset([1.0, 2.0] * 5))
    for _ in range(2):
        value = coordinator.schedule(next, args=(failed,))
        with pytest.raises(ClosureInputError, match="no_dataset, whose making on worker") as caught:
            coordinator.join()
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(ClosureInputError):
            value.fetch()
        assert coordinator.schedule(next, args=(good,)).fetch() in (1.0, 2.0)
    coordinator.join()


@pytest.mark.contract(93)
def test_what_is_not_used_raises_nothing(coordinator: Any) -> None:
    iter(coordinator.create_per_worker_dataset(fail))
    coordinator.create_per_worker_resource(fail)
    assert coordinator.schedule(lambda: 1).fetch() == 1
    coordinator.join()


@pytest.mark.contract(93)
def test_iterators_go_on_after_the_error_of_another_function(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(1)
    iterator = iter(coordinator.create_per_worker_dataset(range(5)))
    assert coordinator.schedule(next, args=(iterator,)).fetch() == 0
    coordinator.schedule(fail)
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.join()
    assert coordinator.schedule(next, args=(iterator,)).fetch() == 1
