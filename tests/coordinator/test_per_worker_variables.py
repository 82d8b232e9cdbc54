"""Variables with a copy per worker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.errors import ContextError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

WRAPS = pytest.mark.parametrize("wrap", [lambda fn: fn, tf.function], ids=["plain", "function"])


def per_worker(coordinator: Any, value: Any = 0.0, **options: Any) -> Any:
    with coordinator.strategy.scope():
        return tf.Variable(value, per_worker_variable=True, **options)


def on_every_worker(coordinator: Any, fn: Callable[[], Any]) -> list[Any]:
    together = threading.Barrier(coordinator.strategy.cluster.workers)

    def call() -> Any:
        together.wait()
        return fn()

    return coordinator.fetch([coordinator.schedule(call) for _ in range(together.parties)])


@pytest.mark.contract(98)
@WRAPS
def test_all_additions_are_on_one_copy_or_another(
    coordinator: Any, wrap: Callable[..., Any]
) -> None:
    v = per_worker(coordinator)

    @wrap
    def add() -> None:
        v.assign_add(1.0)

    for _ in range(10):
        coordinator.schedule(add)
    coordinator.join()
    assert len(v.read_all()) == 2
    assert sum(v.read_all()) == 10.0


@pytest.mark.contract(98)
@WRAPS
def test_every_worker_sees_its_own_copy(
    coordinate: Callable[..., Any], wrap: Callable[..., Any]
) -> None:
    coordinator = coordinate(2)
    v = per_worker(coordinator, [1.0, 2.0], name="own")
    worker_index = tf.distribute.coordinator.experimental_get_current_worker_index

    @wrap
    def change() -> Any:
        factor = jnp.asarray(worker_index(), jnp.float32) + 1.0
        v.assign(v.value * factor)
        v.assign_add([10.0, 10.0])
        return v.assign_sub([1.0, 0.0]) + v * 0.0

    expected = [[1 * f + 9, 2 * f + 10] for f in (1, 2)]
    assert sorted(r.tolist() for r in on_every_worker(coordinator, change)) == expected
    assert [copy.tolist() for copy in v.read_all()] == expected


@pytest.mark.contract(98)
def test_the_copies_outlive_the_workers(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(1)
    v = per_worker(coordinator)
    for _ in range(2):
        coordinator.schedule(lambda: v.assign_add(1.0))
        coordinator.join()
        coordinator.strategy.driver.lose(0)
    assert v.read_all() == [2.0]


def test_outside_of_functions_there_is_no_one_value(coordinator: Any) -> None:
    v = per_worker(coordinator, 1.0, name="own", dtype="float32")
    assert (v.name, v.shape, v.dtype, v.trainable) == ("own", (), "float32", False)
    assert v.distribute_strategy is coordinator.strategy
    assert "name=own" in repr(v)
    for use in (lambda: v.value, v.read_value, v.numpy, lambda: v + 1, lambda: np.asarray(v)):
        with pytest.raises(ContextError, match=r"read of 'own'\. Use read_all\(\)"):
            use()
    with pytest.raises(ContextError, match=r"change of 'own'.*assign\(value\) to set all"):
        v.assign_add(1.0)
    v.assign(5.0)
    assert v.read_all() == [5.0, 5.0]


def test_what_a_per_worker_variable_cannot_be(coordinator: Any) -> None:
    with pytest.raises(InvalidArgument, match="Only a ParameterServerStrategy"):
        tf.Variable(0.0, per_worker_variable=True)
    with pytest.raises(InvalidArgument, match="cannot be trained"):
        per_worker(coordinator, trainable=True)
    with pytest.raises(InvalidArgument, match="has an initial value"):
        per_worker(coordinator, None)
    v = per_worker(coordinator, [1.0])
    with pytest.raises(InvalidArgument, match=r"shape \(2,\)"):
        v.assign([1.0, 2.0])
