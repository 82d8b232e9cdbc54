"""ON_READ variables where workers push: every worker writes its own copy, reads combine them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import paceline as tf
from paceline.cluster.local import Local
from paceline.program import context
from paceline.program.context import Frame
from paceline.strategies.central_storage import CentralStorageStrategy
from paceline.strategies.parameter_server import ParameterServerStrategy

if TYPE_CHECKING:
    from collections.abc import Callable


def parameter_servers() -> Any:
    return ParameterServerStrategy(cluster=Local(workers=2))


def central_storage() -> Any:
    return CentralStorageStrategy(["cpu:0", "cpu:1"])


def by_each_worker(strategy: Any, fn: Callable[[Any], Any]) -> None:
    """Calls `fn(worker index)` once on each of two workers, at the same time."""
    both = threading.Barrier(2)

    def call(worker: Any) -> None:
        both.wait(30)
        with context.entered(Frame(strategy)):
            fn(np.float32(worker.index))

    for _ in range(2):
        strategy.driver.submit(call, "a step")
    strategy.driver.join()


@pytest.fixture(params=[parameter_servers, central_storage])
def strategy(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(params=["eager", "function"])
def as_written(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return tf.function if request.param == "function" else lambda fn: fn


def on_read(strategy: Any, aggregation: str) -> Any:
    with strategy.scope():
        return tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation[aggregation],
        )


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("SUM", 7), ("MEAN", 3.5), ("ONLY_FIRST_REPLICA", 3)]
)
def test_assigned_copies_are_combined(
    strategy: Any, as_written: Any, aggregation: str, expected: float
) -> None:
    v = on_read(strategy, aggregation)
    by_each_worker(strategy, as_written(lambda index: v.assign(3 + index)))
    assert v.numpy() == expected


def test_a_worker_reads_its_own_copy(strategy: Any, as_written: Any) -> None:
    v = on_read(strategy, "SUM")
    seen: dict[float, float] = {}

    def add(index: Any) -> Any:
        v.assign_add(index + 1)
        return v.value

    step = as_written(add)
    for _ in range(2):
        by_each_worker(strategy, lambda index: seen.update({float(index): float(step(index))}))
    assert seen == {0: 2, 1: 4}
    assert v.numpy() == 6


def test_assigning_across_workers_shares_the_sum(strategy: Any) -> None:
    v = on_read(strategy, "SUM")
    v.assign(6.0)
    assert [float(part) for part in v.values] == [3, 3]
    assert v.numpy() == 6
