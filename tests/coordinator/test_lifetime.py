"""Coordinators and their threads: one per strategy, gone when nobody needs them."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

import paceline as tf
from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

ClusterCoordinator = tf.distribute.coordinator.ClusterCoordinator


class _Global:
    """What a function of the module finds its variable in."""

    variable: Any = None


@tf.function
def step_of_the_module(iterator: Any) -> Any:
    _Global.variable.assign_add(next(iterator))
    return _Global.variable.value


@pytest.fixture
def new_threads() -> Callable[[], list[threading.Thread]]:
    """Lists the threads of workers that have started since the test began."""

    def of_workers() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name.startswith("paceline worker:")]

    old = of_workers()
    return lambda: [thread for thread in of_workers() if thread not in old]


def all_end(threads: list[threading.Thread]) -> bool:
    gc.collect()
    for thread in threads:
        thread.join(30)
    return not any(thread.is_alive() for thread in threads)


def strategy_of(workers: int = 2) -> Any:
    return tf.distribute.ParameterServerStrategy(cluster=tf.cluster.Local(workers))


def train(coordinator: Any, is_compiled: bool) -> None:
    """A little of everything."""
    with coordinator.strategy.scope():
        v = _Global.variable = tf.Variable(0.0)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: iter([1.0] * 10)))
    step = step_of_the_module if is_compiled else step_of_the_module.python_function
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(4)]
    coordinator.schedule(lambda x: x, args=(values[0],))
    coordinator.join()
    assert v.numpy() == 4.0
    _Global.variable = None


@pytest.mark.contract(99)
def test_a_strategy_has_one_coordinator() -> None:
    strategy, other = strategy_of(), strategy_of()
    coordinator = ClusterCoordinator(strategy)
    assert ClusterCoordinator(strategy) is coordinator
    assert ClusterCoordinator(other) is not coordinator
    assert coordinator.strategy is strategy


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.distribute.OneDeviceStrategy("cpu:0"),
        tf.distribute.experimental.CentralStorageStrategy,
        lambda: None,
    ],
)
def test_a_coordinator_needs_parameter_servers(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument, match="workers of a ParameterServerStrategy"):
        ClusterCoordinator(make())


@pytest.mark.contract(99)
def test_twenty_strategies_leave_no_thread(
    new_threads: Callable[[], list[threading.Thread]],
) -> None:
    started: list[threading.Thread] = []
    for i in range(20):
        train(ClusterCoordinator(strategy_of()), is_compiled=i % 5 == 0)
        started += new_threads()
    assert len({id(thread) for thread in started}) == 40
    assert all_end(started)
    assert new_threads() == []


@pytest.mark.contract(99)
def test_a_dropped_coordinator_takes_its_threads_and_a_new_one_starts_others(
    new_threads: Callable[[], list[threading.Thread]],
) -> None:
    strategy = strategy_of()
    with strategy.scope():
        v = tf.Variable(0.0)
    add = tf.function(lambda: v.assign_add(1.0))
    for count in (3, 6):
        coordinator = ClusterCoordinator(strategy)
        for _ in range(3):
            coordinator.schedule(add)
        coordinator.join()
        assert v.numpy() == count
        threads = new_threads()
        assert len(threads) == 2
        del coordinator
        assert all_end(threads)


@pytest.mark.contract(99)
def test_what_was_scheduled_is_done_after_the_coordinator_was_dropped(
    new_threads: Callable[[], list[threading.Thread]],
) -> None:
    strategy = strategy_of()
    may_end = threading.Event()
    value = ClusterCoordinator(strategy).schedule(may_end.wait)
    last = ClusterCoordinator(strategy).schedule(lambda: 3)
    threads = new_threads()
    gc.collect()
    may_end.set()
    assert value.fetch() is True
    assert last.fetch() == 3
    assert all_end(threads)


@pytest.mark.contract(99)
def test_an_iterator_keeps_its_coordinator(coordinate: Callable[..., Any]) -> None:
    strategy = coordinate(1).strategy
    iterator = iter(ClusterCoordinator(strategy).create_per_worker_dataset(range(3)))
    taken = []
    for _ in range(3):
        gc.collect()
        taken.append(ClusterCoordinator(strategy).schedule(next, args=(iterator,)).fetch())
    assert taken == [0, 1, 2]


@pytest.mark.contract(99)
def test_a_failed_function_holds_no_thread(
    new_threads: Callable[[], list[threading.Thread]],
) -> None:
    def fail() -> None:
        raise ValueError("the function's own")

    coordinator = ClusterCoordinator(strategy_of())
    coordinator.schedule(fail)
    with pytest.raises(ValueError, match="the function's own"):
        coordinator.join()
    threads = new_threads()
    del coordinator
    assert all_end(threads)


@pytest.mark.contract(100)
def test_run_outside_of_schedule_works_here_and_warns(coordinator: Any) -> None:
    strategy = coordinator.strategy
    with strategy.scope():
        v = tf.Variable(1.0)

    def replica_fn(x: Any) -> Any:
        return v.assign_add(x)

    with pytest.warns(UserWarning, match=r"outside of ClusterCoordinator\.schedule"):
        assert strategy.run(replica_fn, args=(2.0,)) == 3.0
    assert strategy.run(replica_fn, args=(2.0,)) == 5.0  # said once
    coordinator.schedule(lambda: strategy.run(replica_fn, args=(1.0,)))  # and not here
    coordinator.join()
    assert v.numpy() == 6.0
