"""Workers that are lost: what they had is done again, and what they kept is made again."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import pytest

import paceline as tf
from paceline.errors import Cancelled, Unavailable, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable


class Training:
    """A step that adds 1 to a weight, by an optimizer with rate 1."""

    def __init__(self, coordinator: Any) -> None:
        with coordinator.strategy.scope():
            self.weight = tf.Variable(0.0)
            self.optimizer = tf.keras.optimizers.SGD(1.0)

        @tf.function
        def step() -> None:
            self.optimizer.apply_gradients([(jnp.float32(-1.0), self.weight)])

        self.step = step

    @property
    def iterations(self) -> int:
        return int(self.optimizer.iterations.numpy())


class FirstRunHangs:
    """Calls a function; the first call hangs before it until it is released."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn = fn
        self._count = itertools.count()
        self.hangs_on: int | None = None
        self.has_begun, self.may_go_on, self.is_over = (threading.Event() for _ in range(3))

    def __call__(self) -> Any:
        if next(self._count):
            return self._fn()
        self.hangs_on = int(tf.distribute.coordinator.experimental_get_current_worker_index())
        self.has_begun.set()
        self.may_go_on.wait()
        try:
            return self._fn()
        finally:
            self.is_over.set()


@pytest.mark.contract(95)
def test_workers_lost_between_functions(coordinator: Any) -> None:
    training = Training(coordinator)
    for _ in range(2):
        coordinator.schedule(training.step)
    coordinator.join()
    for worker in range(2):
        coordinator.strategy.driver.lose(worker)
    for _ in range(2):
        coordinator.schedule(training.step)
    coordinator.join()
    assert training.iterations == 4
    assert training.weight.numpy() == 4.0


@pytest.mark.contract(95)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_lost_in_a_function(coordinate: Callable[..., Any], workers: int) -> None:
    coordinator = coordinate(workers)
    training = Training(coordinator)
    hanging = FirstRunHangs(training.step)
    values = [coordinator.schedule(fn) for fn in (hanging, *[training.step] * 3)]
    hanging.has_begun.wait()
    coordinator.strategy.driver.lose(hanging.hangs_on)
    coordinator.join()
    assert all(value.has_ended for value in values)
    assert training.iterations >= 4
    before = training.weight.numpy()
    hanging.may_go_on.set()  # the lost worker goes on, and nothing of it counts
    hanging.is_over.wait()
    coordinator.join()
    assert training.weight.numpy() == before == training.iterations


@pytest.mark.contract(95)
def test_a_worker_lost_after_all_others_had_nothing_to_do(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(3)
    coordinator.strategy.pace = tf.pace.Synchronous()
    training = Training(coordinator)
    hanging = FirstRunHangs(training.step)
    value = coordinator.schedule(hanging)
    hanging.has_begun.wait()
    waiting = threading.Thread(target=coordinator.join)
    waiting.start()
    coordinator.strategy.driver.lose(hanging.hangs_on)
    waiting.join()
    assert value.has_ended
    assert training.iterations == 1
    hanging.may_go_on.set()


@pytest.mark.contract(95)
def test_two_workers_lost_in_functions(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(2)
    training = Training(coordinator)
    hanging = [FirstRunHangs(training.step) for _ in range(2)]
    for fn in (*hanging, *[training.step] * 8):
        coordinator.schedule(fn)
    for fn in hanging:
        fn.has_begun.wait()
    for worker in range(2):
        coordinator.strategy.driver.lose(worker)
    coordinator.join()
    assert training.iterations >= 10
    for fn in hanging:
        fn.may_go_on.set()


@pytest.mark.contract(95)
def test_workers_lost_again_and_again(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(2)
    training = Training(coordinator)
    for i in range(10):
        coordinator.schedule(training.step)
        coordinator.strategy.driver.lose(i % 2)
    coordinator.join()
    assert training.iterations >= 10
    assert training.weight.numpy() == training.iterations


@pytest.mark.contract(95)
def test_a_value_outlives_its_worker(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(1)
    value = coordinator.schedule(lambda: (jnp.int32(1), jnp.int32(-1)))
    coordinator.join()
    coordinator.strategy.driver.lose(0)
    assert value.fetch() == (1, -1)


@pytest.mark.contract(95)
def test_the_iterators_of_a_lost_worker_start_over(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(1)
    made: list[int] = []

    def dataset_fn() -> Any:
        made.append(1)
        return range(10)

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))

    def take() -> Any:
        return coordinator.schedule(tf.function(next), args=(iterator,)).fetch()

    assert [take(), take()] == [0, 1]
    coordinator.strategy.driver.lose(0)
    assert [take(), take()] == [0, 1]
    assert len(made) == 2


@pytest.mark.contract(95)
def test_a_function_that_reports_its_worker_lost_is_done_again(coordinator: Any) -> None:
    attempts = itertools.count()

    def fn() -> str:
        if next(attempts) < 2:
            raise WorkerLost("the machine is gone")
        return "done"

    assert coordinator.schedule(fn).fetch() == "done"
    coordinator.join()


@pytest.mark.contract(96)
def test_variables_can_be_read_while_a_worker_is_down(coordinator: Any) -> None:
    training = Training(coordinator)
    coordinator.schedule(training.step)
    coordinator.join()
    hanging = FirstRunHangs(training.step)
    coordinator.schedule(hanging)
    hanging.has_begun.wait()
    assert training.weight.numpy() == 1.0
    coordinator.strategy.driver.lose(hanging.hangs_on)
    assert training.weight.numpy() >= 1.0
    hanging.may_go_on.set()
    coordinator.join()
    assert training.weight.numpy() == 2.0


@pytest.mark.contract(96)
@pytest.mark.parametrize("surface", ["join", "schedule", "done"])
def test_a_lost_server_ends_the_training(coordinator: Any, surface: str) -> None:
    training = Training(coordinator)
    hanging = FirstRunHangs(training.step)
    value = coordinator.schedule(hanging)
    hanging.has_begun.wait()
    coordinator.strategy.driver.lose_server(0)
    hanging.may_go_on.set()
    call = {"schedule": lambda: coordinator.schedule(int)}.get(
        surface, getattr(coordinator, surface)
    )
    for _ in range(2):  # it does not come back
        with pytest.raises(Unavailable, match=r"ps:0 was lost.*restore a checkpoint"):
            call()
    with pytest.raises(Cancelled, match="ps:0 was lost"):
        value.fetch()
