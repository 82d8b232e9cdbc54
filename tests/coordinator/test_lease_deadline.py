"""Work that a worker has for too long: taken back, given to another, counted once and named.

The deadline is a microsecond, which has passed by the time that the worker stands at the gate.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import pytest

import paceline as tf
from paceline.errors import InvalidArgument, WaitTimeout
from paceline.testing import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

TINY = 1e-6


def own_index() -> int:
    return int(tf.distribute.coordinator.experimental_get_current_worker_index())


def held_first(gate: Gate) -> Callable[[], int]:
    """A function whose first run stands at the gate; tells which worker runs it."""

    def run() -> int:
        index = own_index()
        gate.wait(index)
        return index

    return run


def test_another_worker_gets_it(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(2, lease_deadline=TINY, grace=60.0)
    with Gate(holds=1) as gate:
        value = coordinator.schedule(held_first(gate))
        gate.await_visitors(1)
        coordinator.join()
        slow: Any = gate.visitors[0]
        assert value.fetch() == 1 - slow
    report = coordinator.strategy.monitor.report()
    by_name = {one.name: one.taken_back for one in report.workers}
    assert by_name[f"worker:{slow}"] == 1
    assert report.as_dict()["workers"][f"worker:{slow}"]["taken_back"] == 1
    assert f"worker:{slow} had 1 lease longer than allowed: taken back." in report.summary()


def test_a_late_result_does_not_count(coordinate: Callable[..., Any]) -> None:
    """The effect of a step happens once, whoever makes it, and the late worker goes on."""
    coordinator = coordinate(2, lease_deadline=TINY, grace=60.0)
    with coordinator.strategy.scope():
        weight = tf.Variable(0.0)
        optimizer = tf.keras.optimizers.SGD(1.0)
        optimizer.build([weight])
    ended = threading.Event()

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(jnp.float32(-1.0), weight)])

    with Gate(holds=1) as gate:

        def run() -> None:
            gate.wait(own_index())
            try:
                step()
            finally:
                ended.set()

        # As `fit` hands out its batches: what has pushed needs its worker no more.
        coordinator.strategy.submit(run, is_one_push=True)
        gate.await_visitors(1)
        coordinator.join()
        assert weight.numpy() == 1.0
        ended.clear()
        gate.open()
        assert ended.wait(60)  # the late one has come to its step
    assert weight.numpy() == 1.0
    values = [coordinator.schedule(own_index) for _ in range(4)]
    assert set(coordinator.fetch(values)) <= {0, 1}


def test_a_worker_that_does_not_react_is_replaced(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(1, lease_deadline=TINY, grace=0.001)
    with Gate(holds=1) as gate:
        value = coordinator.schedule(held_first(gate))
        gate.await_visitors(1)
        coordinator.join()
        assert value.fetch() == 0
        assert len(gate.visitors) >= 2


def test_nothing_else_need_happen(coordinate: Callable[..., Any]) -> None:
    """The program waits an hour for signs of life, and wakes when the lease is over."""
    coordinator = coordinate(2, lease_deadline=0.5, deadline=3600.0, grace=3600.0)
    with Gate(holds=1) as gate:
        value = coordinator.schedule(held_first(gate))
        gate.await_visitors(1)
        coordinator.join()
        slow: Any = gate.visitors[0]
        assert value.fetch() == 1 - slow


def test_what_may_not_run_twice_fails(coordinate: Callable[..., Any]) -> None:
    strategy = coordinate(2, lease_deadline=TINY, grace=0.001).strategy
    with Gate(holds=1) as gate:
        strategy.submit(held_first(gate), name="once", is_repeatable=False)
        gate.await_visitors(1)
        with pytest.raises(WaitTimeout, match=r"within 1e-06 s\. Received: once still on worker:"):
            strategy.driver.join()


def test_without_a_deadline_nothing_is_taken_back(coordinator: Any) -> None:
    with Gate(holds=1) as gate:
        held = coordinator.schedule(held_first(gate))
        gate.await_visitors(1)
        others = [coordinator.schedule(own_index) for _ in range(8)]
        coordinator.fetch(others)
        gate.open()
        assert held.fetch() == gate.visitors[0]
    assert gate.visitors == [gate.visitors[0]]
    assert coordinator.strategy.monitor.report().taken_back == 0


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan")])
def test_the_deadline_is_checked(wrong: float) -> None:
    with pytest.raises(InvalidArgument, match=r"positive number of seconds.*lease_deadline="):
        tf.cluster.Local(lease_deadline=wrong)
