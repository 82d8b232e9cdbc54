"""Scheduling: what is accepted, what comes back, and what is waited for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.errors import Cancelled, ContextError, InvalidArgument, InvalidType, WaitTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    import keras


class Pair(NamedTuple):
    first: Any
    second: Any


def variable(coordinator: Any, value: float = 0.0) -> Any:
    with coordinator.strategy.scope():
        return tf.Variable(value)


@pytest.mark.contract(86)
def test_schedule_returns_before_the_function_does(coordinator: Any) -> None:
    may_end = threading.Event()
    value = coordinator.schedule(may_end.wait)
    assert not value.has_ended
    assert not coordinator.done()
    may_end.set()
    assert value.fetch() is True


@pytest.mark.contract(86)
@pytest.mark.parametrize("wrap", [lambda fn: fn, tf.function], ids=["plain", "function"])
def test_fetch_gives_numpy_in_the_structure_of_the_result(
    coordinator: Any, wrap: Callable[..., Any]
) -> None:
    @wrap
    def fn(x: Any) -> Any:
        return x + 1, (x + 2, x + 3), [x + 4], {"v": x}

    value = coordinator.schedule(fn, args=(jnp.int32(1),))
    fetched = value.fetch()
    assert fetched == (2, (3, 4), [5], {"v": 1})
    assert all(isinstance(leaf, np.generic) for leaf in jax.tree.leaves(fetched))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value.get()))


@pytest.mark.contract(86)
def test_fetch_gives_arrays_and_variables_as_numpy(coordinator: Any) -> None:
    v = variable(coordinator, 3.0)
    vector = coordinator.schedule(lambda: jnp.arange(3)).fetch()
    assert isinstance(vector, np.ndarray)
    assert vector.tolist() == [0, 1, 2]
    value = coordinator.schedule(lambda: {"v": v})
    coordinator.join()
    v.assign(4.0)
    assert value.fetch() == {"v": 3.0}  # what it was when the function returned
    assert coordinator.schedule(tf.function(lambda: v)).fetch() == 4.0
    assert coordinator.schedule(lambda: None).fetch() is None
    assert coordinator.schedule(tf.function(lambda: None)).fetch() is None


@pytest.mark.contract(86)
def test_the_coordinator_fetches_nests_and_passes_other_values_through(coordinator: Any) -> None:
    two, three = (coordinator.schedule(lambda x=x: jnp.float32(x)) for x in (2, 3))
    other = object()
    fetched = coordinator.fetch({"a": [two, 1], "b": Pair(three, other), "c": None, "d": "text"})
    assert fetched == {"a": [2.0, 1], "b": Pair(3.0, other), "c": None, "d": "text"}
    assert coordinator.fetch(other) is other
    assert coordinator.fetch(two) == 2.0


@pytest.mark.contract(87)
def test_every_function_takes_a_batch_and_joins_repeat(coordinator: Any) -> None:
    v = variable(coordinator)
    batches = tf.data.ArrayBatches(np.full(1, 2.0, np.float32), batch_size=1, repeat=None)
    iterator = iter(coordinator.create_per_worker_dataset(batches))

    @tf.function
    def worker_fn(iterator: Any) -> None:
        v.assign_add(next(iterator)[0])

    for total in (10.0, 20.0):
        for _ in range(5):
            coordinator.schedule(worker_fn, args=(iterator,))
        coordinator.join()
        assert v.numpy() == total
    for _ in range(3):
        coordinator.join()
    assert coordinator.done()


@pytest.mark.contract(87)
def test_join_without_work_returns(coordinator: Any) -> None:
    coordinator.join()
    assert coordinator.done()


@pytest.mark.contract(88)
@pytest.mark.case("R80")
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("wrap", [lambda fn: fn, tf.function], ids=["plain", "function"])
def test_no_addition_is_lost(
    coordinate: Callable[..., Any], workers: int, wrap: Callable[..., Any]
) -> None:
    coordinator = coordinate(workers)
    v = variable(coordinator)
    with coordinator.strategy.scope():
        counter = tf.Variable(0, dtype="int32", aggregation=tf.VariableAggregation.SUM)

    @wrap
    def add() -> None:
        v.assign_add(1.0)
        counter.assign_add(1)

    for _ in range(100):
        coordinator.schedule(add)
    coordinator.join()
    assert v.numpy() == 100.0
    assert counter.numpy() == 100


@pytest.mark.contract(89)
@pytest.mark.case("R82")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_remote_value_as_argument_is_waited_for_by_the_worker(
    coordinate: Callable[..., Any], workers: int
) -> None:
    coordinator = coordinate(workers)
    may_end = threading.Event()

    def first() -> int:
        may_end.wait()
        return 3

    value = coordinator.schedule(first)
    chained = coordinator.schedule(
        lambda nest, *, factor: nest["x"][0] * factor,
        args=({"x": [value]},),
        kwargs={"factor": value},
    )
    again = coordinator.schedule(tf.function(lambda x: x + 1), args=(chained,))
    assert not value.has_ended  # so both calls came back before it had
    may_end.set()
    assert again.fetch() == 10
    coordinator.join()


@pytest.mark.contract(89)
def test_a_worker_that_waits_for_a_value_holds_nobody_up(coordinate: Callable[..., Any]) -> None:
    # In lockstep the second step of `first` waits for all who take part: not for the one who waits.
    coordinator = coordinate(2)
    strategy = coordinator.strategy
    strategy.pace = tf.pace.Synchronous()
    with strategy.scope():
        w = tf.Variable(0.0)
        optimizer = tf.keras.optimizers.SGD(1.0)
    has_begun = threading.Event()

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(jnp.float32(-1.0), w)])

    def first() -> int:
        has_begun.wait()
        for _ in range(3):
            step()
        return 1

    def second(value: Any) -> Any:
        step()
        return value + 1

    class Announced(tf.distribute.coordinator.PerWorkerValues):
        def on_worker(self, worker: Any) -> None:
            has_begun.set()

    value = coordinator.schedule(first)
    chained = coordinator.schedule(
        lambda _, own: second(own), args=(Announced(lambda worker: None, "a flag"), value)
    )
    assert chained.fetch() == 2
    coordinator.join()
    assert w.numpy() == 4.0


@pytest.mark.contract(89)
def test_what_cannot_be_scheduled_is_refused(coordinator: Any) -> None:
    with pytest.raises(InvalidType, match=r"What is scheduled is a function\. Received: fn=3"):
        coordinator.schedule(3)
    with pytest.raises(InvalidType, match=r"args=\(iterator,\)"):
        coordinator.schedule(int, args=3)
    dataset = coordinator.create_per_worker_dataset(range(3))
    with pytest.raises(InvalidArgument, match=r"Pass iter\(dataset\)"):
        coordinator.schedule(lambda d: d, args=([dataset],))


@pytest.mark.case("R82")
def test_only_the_program_that_coordinates_schedules(coordinator: Any) -> None:
    for call in (coordinator.join, coordinator.done, lambda: coordinator.schedule(int)):
        coordinator.schedule(call)
        with pytest.raises(ContextError, match="in a function that runs on a worker"):
            coordinator.join()


def test_a_worker_may_fetch_a_value_that_its_function_knows(coordinator: Any) -> None:
    value = coordinator.schedule(lambda: 2)
    assert coordinator.schedule(lambda: value.fetch() + 1).fetch() == 3


def test_arrays_are_copied_when_they_are_scheduled(coordinator: Any) -> None:
    may_begin = threading.Event()
    for _ in range(2):  # keeps both workers from taking the next one
        coordinator.schedule(may_begin.wait)
    batch = np.ones(3)
    value = coordinator.schedule(lambda x: x.sum(), args=(batch,))
    batch[:] = 5.0
    may_begin.set()
    assert value.fetch() == 3.0


def test_a_keras_variable_as_argument_is_the_variable(coordinator: Any) -> None:
    v = variable(coordinator)

    def add(target: keras.Variable, amount: Any) -> bool:
        target.assign_add(amount)
        return target is v

    assert coordinator.schedule(add, args=[v], kwargs={"amount": 2.0}).fetch() is True
    assert v.numpy() == 2.0


def test_functions_run_under_the_strategy(coordinator: Any) -> None:
    strategy = coordinator.strategy

    def where() -> Any:
        return tf.distribute.get_strategy(), tf.distribute.in_cross_replica_context()

    assert coordinator.schedule(where).get() == (strategy, True)


@pytest.mark.parametrize("wrap", [lambda fn: fn, tf.function], ids=["plain", "function"])
def test_a_variable_made_in_a_function_joins_the_strategy(
    coordinator: Any, wrap: Callable[..., Any]
) -> None:
    made: list[Any] = []

    @wrap
    def add() -> None:
        if not made:
            made.append(tf.Variable(1.0))
        made[0].assign_add(1.0)

    for _ in range(3):
        coordinator.schedule(add)
        coordinator.join()
    assert made[0].distribute_strategy is coordinator.strategy
    assert made[0].numpy() == 4.0


def test_a_full_queue_is_waited_for(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(1, deadline=0.2)
    coordinator.strategy.session.dispatch.capacity = 1
    has_begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        has_begun.set()
        may_end.wait()

    coordinator.schedule(first)
    has_begun.wait()
    queued = coordinator.schedule(lambda: 1)
    with pytest.raises(WaitTimeout, match="room in the queue"):
        coordinator.schedule(lambda: 2)
    may_end.set()
    assert coordinator.schedule(lambda: 3).fetch() == 3
    assert queued.fetch() == 1


def test_a_strategy_that_was_stopped_takes_no_work(coordinator: Any) -> None:
    may_end = threading.Event()
    queued = [coordinator.schedule(may_end.wait) for _ in range(3)][-1]
    coordinator.strategy.driver.stop()
    with pytest.raises(Cancelled, match="The strategy was stopped"):
        queued.fetch()
    with pytest.raises(ContextError, match="Make a new strategy"):
        coordinator.schedule(int)
    may_end.set()


def test_a_function_is_traced_once_for_all_workers(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(3)
    v = variable(coordinator)
    traces: list[str] = []
    together = threading.Barrier(3)

    @tf.function
    def step(x: Any) -> None:
        traces.append("traced")
        v.assign_add(x)

    def on_all(x: Any) -> None:
        together.wait()
        step(x)

    for _ in range(6):
        coordinator.schedule(on_all, args=(jnp.float32(1.0),))
    coordinator.join()
    assert v.numpy() == 6.0
    assert traces == ["traced"]


@pytest.mark.case("R95")
def test_a_thousand_empty_functions(coordinate: Callable[..., Any]) -> None:
    coordinator = coordinate(4)
    values = [coordinator.schedule(int) for _ in range(1000)]
    coordinator.join()
    assert all(value.has_ended for value in values)
    assert coordinator.fetch(values) == [0] * 1000


@pytest.mark.case("R83")
def test_a_wait_has_a_deadline_and_names_what_it_waits_for(
    coordinate: Callable[..., Any],
) -> None:
    coordinator = coordinate(1, deadline=0.2)
    may_end = threading.Event()

    def slow_function() -> None:
        may_end.wait()

    value = coordinator.schedule(slow_function)
    coordinator.schedule(int)
    says = r"worker:0 has had .*slow_function.* queued for any worker: 1"
    with pytest.raises(WaitTimeout, match=rf"all scheduled work; {says}"):
        coordinator.join()
    with pytest.raises(WaitTimeout, match=says):
        value.fetch()
    may_end.set()
    coordinator.join()
