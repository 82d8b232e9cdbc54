"""Training in virtual time: real gradients of real models, the same bits for the same seed."""

from __future__ import annotations

import collections
import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.experimental import buffer_callback

import paceline as tf
from keras_oracle import classifier, examples, linear
from message_models import BATCH, compiled, evaluated, history_of
from paceline.errors import InvalidArgument, WaitTimeout
from paceline.program.worker_half import WorkerHalf
from paceline.store.step_update import StepUpdate
from paceline.testing import (
    EXACT,
    GOLDEN,
    REFERENCE,
    assert_close,
    assert_counted_once,
    assert_same_pushes,
    assert_staleness,
    pushes_of,
)
from paceline.virtual import LogNormal, Loss, Network, Pareto, Preemptions, Slow
from virtual_runs import Descent, simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from paceline.monitor import PushRecord

X, Y = examples(64)
# A fit waits for its first batch, which so goes to one worker while the others are idle.
PACES: dict[str, Callable[[], Any]] = {
    "asynchronous": tf.pace.Asynchronous,
    "bounded": lambda: tf.pace.BoundedStaleness(1),
    "softsync": lambda: tf.pace.Softsync(2),
    "lockstep": tf.pace.Synchronous,
    "backups": lambda: tf.pace.Synchronous(backups=1),
}


def with_statistics(k: Any) -> Any:
    return classifier(k, k.layers.BatchNormalization(), k.layers.Dropout(0.3))


def sgd(k: Any) -> dict[str, Any]:
    loss = "sparse_categorical_crossentropy"
    return {"optimizer": k.optimizers.SGD(0.05), "loss": loss, "metrics": ["accuracy"]}


def fitted(strategy: Any, build: Any = with_statistics, **fit: Any) -> tuple[Any, list[PushRecord]]:
    """A model that was trained, and the pushes."""
    model = compiled(strategy, build, sgd)
    with pushes_of(strategy) as pushes:
        history_of(model, X, Y, **({"epochs": 1} | fit))
    return model, pushes


# Numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pace", "build"), [("asynchronous", classifier), ("backups", with_statistics)]
)
def test_the_same_seed_gives_the_same_bits(pace: str, build: Any) -> None:
    """With noise, a network and workers that are lost; dropout and batch normalization, too."""

    def run(seed: int) -> tuple[list[Any], list[PushRecord], float]:
        strategy = simulated(
            3,
            2,
            pace=PACES[pace](),
            compute=Pareto(),
            network=Network(latency=0.01, bandwidth=1e4),
            faults=[Loss(task="worker:1", step=1, back_after=1.0)],
            seed=seed,
        )
        model, pushes = fitted(strategy, build)
        return model.get_weights(), pushes, strategy.driver.clock.now

    weights, pushes, seconds = run(0)
    again = run(0)
    assert_same_pushes(again[1], pushes)
    assert_close(again[0], weights, EXACT)
    assert again[2] == seconds
    if pace == "asynchronous":
        assert run(1)[1] != pushes


def test_lockstep_of_four_equals_one_device_with_their_batches() -> None:
    model, pushes = fitted(simulated(4, pace=tf.pace.Synchronous()), classifier)
    plain = compiled(None, classifier, sgd)
    history_of(plain, X, Y, epochs=1, batch_size=4 * BATCH)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)
    assert_staleness(pushes, most=0)


def test_a_bound_of_0_equals_lockstep() -> None:
    one, other = (
        Descent(simulated(3, pace=pace, compute=Pareto()), 0.1)
        for pace in (tf.pace.BoundedStaleness(0), tf.pace.Synchronous())
    )
    assert_same_pushes(one.run(31), other.run(31))
    assert_close(one.w, other.w, EXACT)
    assert_close(one.w, np.float32(0.9**11), GOLDEN)


@pytest.mark.parametrize("bound", [1, 3])
def test_gradients_are_those_of_the_version_that_was_read(bound: int) -> None:
    """Each one is computed again by NumPy, on the weights of that version."""
    strategy = simulated(4, pace=tf.pace.BoundedStaleness(bound), compute=Pareto(scale=0.5))
    descent = Descent(strategy, 0.1)
    versions = [1.0]
    for push in descent.run(60):
        assert push.apply_version == len(versions) - 1
        versions.append(versions[-1] - 0.1 * versions[push.read_version])
    assert_close(descent.w, np.float32(versions[-1]), REFERENCE)


def test_gradients_are_under_way_from_the_pull_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that read one version, before the first of them comes in; nobody keeps the version."""
    log: list[tuple[str, int]] = []
    versions: list[Any] = []
    began, updated = WorkerHalf.__call__, StepUpdate.__call__

    def begin(half: Any, snapshot: Any, fed: Any, arrays: Any, index: int, device: Any) -> Any:
        log.append(("computes", index))
        versions.append(weakref.ref(snapshot[0]))
        return began(half, snapshot, fed, arrays, index, device)

    def update(pushed: Any, current: Any, staleness: int) -> Any:
        log.append(("pushes", pushed.worker))
        return updated(pushed, current, staleness)

    strategy = simulated(3, pace=tf.pace.Asynchronous())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight, sgd = tf.Variable(np.ones(3, "float32")), tf.keras.optimizers.SGD(0.1)
        sgd.build([weight])

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.sum((x * weight) ** 2)
        sgd.apply([tape.gradient(loss, weight)], [weight])

    monkeypatch.setattr(WorkerHalf, "__call__", begin)
    monkeypatch.setattr(StepUpdate, "__call__", update)
    works = [coordinator.schedule(step, args=(np.ones(3, "float32"),)) for _ in range(4)]
    works[0].fetch()
    pulled = [("computes", 0), ("computes", 1), ("computes", 2)]
    assert log == [*pulled, ("pushes", 0), ("computes", 0)]
    assert [version() for version in versions[:3]] == [None] * 3
    coordinator.join()
    assert log[5:] == [("pushes", worker) for worker in (1, 2, 0)]


def test_workers_have_copies_of_on_read_variables() -> None:
    """Each is read and written where its worker computes, and the worker's number is known."""
    strategy = simulated(2)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        copies = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    @tf.function
    def step(number: Any) -> Any:
        before = copies + 0
        copies.assign(number)
        return before

    results = [coordinator.schedule(step, args=(np.float32(k),)) for k in (3, 4, 5, 7)]
    coordinator.join()
    assert_close([result.fetch() for result in results], [np.float32(k) for k in (0, 0, 3, 4)])
    assert_close(copies, np.float32(5 + 7))


def test_steps_take_arrays_as_they_are_when_they_are_called() -> None:
    """A buffer that workers share is written to again while what the others compute goes on."""
    strategy = simulated(4, pace=tf.pace.Asynchronous())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)
    buffer, ones = np.zeros((512, 512), "float32"), np.full((512, 512), 1 / 512, "float32")

    @tf.function
    def step(x: Any) -> Any:
        largest = jnp.max(x @ ones @ ones)
        total.assign_add(largest)
        return largest

    def work(number: int) -> Any:
        buffer[...] = number
        return step(buffer)

    results = [coordinator.schedule(work, args=(number,)) for number in range(8)]
    coordinator.join()
    assert_close([result.fetch() for result in results], [np.float32(k) for k in range(8)])
    assert_close(total, np.float32(28))


def pure(note: Callable[[Any], Any], number: Any) -> Any:
    return jax.pure_callback(note, jax.ShapeDtypeStruct((), "float32"), number)


def by_buffers(note: Callable[[Any], Any], number: Any) -> Any:
    def call(context: Any, out: Any, value: Any) -> None:
        np.asarray(out)[...] = note(np.asarray(value))

    return buffer_callback.buffer_callback(call, jax.ShapeDtypeStruct((), "float32"))(number)


@pytest.mark.parametrize("has_writes", [True, False])
@pytest.mark.parametrize("call_back", [pure, by_buffers])
def test_callbacks_run_when_their_time_has_come(call_back: Any, has_writes: bool) -> None:
    """In the order of events, so that what they leave behind does not depend on the machine."""
    strategy = simulated(2, compute=Slow(2.0, {1: 1.25}), pace=tf.pace.Asynchronous())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable(0.0)
    calls: list[tuple[int, float]] = []

    def note(number: Any) -> Any:
        calls.append((int(number), strategy.driver.now()))
        return np.float32(number)

    @tf.function
    def step(number: Any) -> Any:
        value = call_back(note, number) + weight
        if has_writes:
            weight.assign_add(value)
        return value

    for number in range(4):
        coordinator.schedule(step, args=(np.float32(number),))
    coordinator.join()
    assert calls == [(0, 2.0), (1, 2.5), (2, 4.0), (3, 5.0)]


def test_epochs_evaluation_and_prediction() -> None:
    """Metrics count every batch, and prediction keeps the order."""
    strategy = simulated(3, compute=LogNormal())
    model = compiled(strategy, classifier, sgd)
    history_of(model, X, Y, epochs=2, validation_data=(X, Y))
    plain = compiled(None, classifier, sgd)
    plain.set_weights(model.get_weights())
    assert_close(evaluated(model, X, Y), evaluated(plain, X, Y), REFERENCE)
    one, other = (m.predict(X, batch_size=BATCH, verbose=0) for m in (model, plain))
    assert_close(one, other, REFERENCE)
    assert strategy.driver.clock.now > 10


# Time -----------------------------------------------------------------------------------------


class Halves:
    """A step on two weights of 100 bytes each, which are pulled and pushed whole."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            weights = [tf.Variable(jnp.zeros(25)) for _ in range(2)]

        @tf.function
        def step() -> None:
            for weight in weights:
                weight.assign_add(weight + 1.0)

        self.step = step

    def ends(self, count: int) -> list[float]:
        """When each of so many pushes was applied."""
        with pushes_of(self.strategy) as pushes:
            for _ in range(count):
                self.coordinator.schedule(self.step)
            self.coordinator.join()
        return [push.finished_at for push in pushes]


def test_bandwidth_counts_the_bytes_of_a_step() -> None:
    """One link: 2 s for both weights, 1 s for the step, 2 s back."""
    strategy = simulated(1, 1, network=Network(bandwidth=100.0))
    assert Halves(strategy).ends(2) == [5.0, 10.0]
    assert strategy.driver.num_bytes == 2 * 400


def test_two_servers_have_two_links() -> None:
    """Each one sends and takes 100 bytes: 1 s, 1 s and 1 s."""
    strategy = simulated(1, 2, network=Network(bandwidth=100.0))
    assert Halves(strategy).ends(2) == [3.0, 6.0]


def test_workers_share_the_link_of_a_server() -> None:
    """By hand: pulls end at 2 and 4, steps at 3 and 5, pushes at 5 and 7; the next pulls at 7, 9.

    The link down is free when the first one pulls again, at 5, and used from then until 9.
    """
    strategy = simulated(2, 1, network=Network(bandwidth=100.0))
    assert Halves(strategy).ends(4) == [5.0, 7.0, 10.0, 12.0]


def test_reports_are_in_virtual_seconds() -> None:
    strategy = simulated(2, compute=5.0)
    _, pushes = fitted(strategy)
    report = strategy.monitor.report()
    assert report.seconds == strategy.driver.clock.now == pushes[-1].finished_at == 25.0
    assert report.wait_share == 0.0
    assert report.steps_per_second == 8 / 25
    assert_staleness(pushes, most=1)
    assert_counted_once(pushes, 64)


def test_eager_steps_take_the_time_of_a_step() -> None:
    """Also of several workers at the same time; the updates come one after the other."""
    strategy = simulated(2)
    model = compiled(
        strategy, linear, lambda k: {"optimizer": k.optimizers.SGD(0.1), "loss": "mse"}
    )
    model.run_eagerly = True
    x = np.ones((4, 1), "float32")
    with pushes_of(strategy) as pushes:
        model.fit(x, -x, batch_size=1, shuffle=False, verbose=0)
    # w <- w - 0.1 * 2 (w + 1), on what is there when its turn comes.
    assert_close(model.get_weights()[0], [[2 * 0.8**4 - 1]], GOLDEN)
    assert [push.finished_at for push in pushes] == [1.0, 2.0, 2.0, 3.0]


def test_plain_loops_of_scheduled_functions() -> None:
    """Several steps in one function, results that others wait for, and polling."""
    descent = Descent(simulated(2), 0.5)
    schedule = descent.coordinator.schedule

    def three() -> Any:
        for _ in range(3):
            descent.step()
        return jnp.float32(3.0)

    first = schedule(three)
    second = schedule(lambda value: value + 1.0, args=(first,))
    assert second.fetch() == 4.0
    assert descent.strategy.driver.clock.now == 4.0  # three steps, and one for what waited
    assert descent.w.numpy() == 0.125
    for _ in range(10):
        schedule(descent.step)
    polls = 0
    while not descent.coordinator.done():
        polls += 1
    assert polls > 1
    assert int(descent.strategy.driver.clock.now) == 9


def test_iterators_of_workers_that_are_lost_start_over() -> None:
    strategy = simulated(2, faults=Loss(task="worker:1", at=2.5, back_after=0.25))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: range(100)))
    take = tf.function(next)
    values = [coordinator.schedule(take, args=(iterator,)) for _ in range(9)]
    counts = collections.Counter(coordinator.fetch(values))
    assert counts[0] == 3  # of each worker once, and of the second one when it is back
    assert max(counts) == 4


# Faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", ["bounded", "softsync", "backups"])
def test_every_example_counts_once_whoever_is_lost(pace: str) -> None:
    strategy = simulated(
        4,
        pace=PACES[pace](),
        compute=LogNormal(),
        faults=[
            Preemptions(per_hour=400.0, back_after=1.0),
            Loss(task="worker:0", step=0, back_after=2.0),
            Loss(task="worker:3", at=1.25),
        ],
    )
    _, pushes = fitted(strategy, classifier, epochs=2)
    assert_counted_once(pushes, 128)
    assert strategy.session.dispatch.ledger.counted_examples == 128


def test_without_workers_a_fit_says_so() -> None:
    strategy = simulated(1, faults=Loss(task="worker:0", at=1.5))
    with pytest.raises(WaitTimeout, match=r"nothing more is to come, without worker:0"):
        fitted(strategy, classifier)


def test_tasks_that_the_cluster_does_not_have_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"'worker:2' of 2 workers and 1 servers"):
        simulated(2, faults=Loss(task="worker:2", at=1.0))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": 0}, "one or more workers"),
        ({"servers": True}, "one or more servers"),
        ({"compute": "1 s"}, "`compute` is a number of seconds"),
        ({"network": "fast"}, "`network` is"),
        ({"deadline": 0}, "positive number of seconds"),
        ({"faults": "worker:0"}, "A plan of faults holds"),
        ({"lease_deadline": -1.0}, "lease_deadline"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        tf.cluster.Simulated(**options)


# Lifetime -------------------------------------------------------------------------------------


def own_threads(before: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """Threads of simulated workers, but for those of earlier tests, which a failure may hold."""
    alive = [t for t in threading.enumerate() if t.name.startswith("paceline simulated")]
    return [thread for thread in alive if thread not in before]


def await_end(
    before: Collection[threading.Thread], dropped: weakref.ref[Any] | None = None
) -> None:
    """Threads of dropped strategies end soon, and not before the collector has run."""
    last = time.monotonic() + 60
    while own_threads(before) or (dropped is not None and dropped() is not None):
        assert time.monotonic() < last, (own_threads(before), dropped)
        gc.collect()


def test_a_dropped_strategy_leaves_no_thread() -> None:
    before = own_threads()
    descent = Descent(simulated(8), 0.1)
    descent.run(16)
    assert len(own_threads(before)) == 8
    dropped = weakref.ref(descent.strategy)
    del descent
    await_end(before, dropped)


def test_a_strategy_that_is_dropped_in_the_midst_leaves_no_thread() -> None:
    """Its workers stand still in their steps, which hold the strategy until it is stopped."""
    before = own_threads()
    descent = Descent(simulated(4, compute=Pareto(scale=1.0)), 0.1)
    values = [descent.coordinator.schedule(descent.step) for _ in range(16)]
    values[0].fetch()
    dropped = weakref.ref(descent.strategy)
    descent.strategy.driver.stop()
    del descent, values
    await_end(before, dropped)


def test_twenty_strategies_one_after_the_other() -> None:
    before = own_threads()
    keras.utils.clear_session()
    for _ in range(20):
        strategy = simulated(3)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        assert coordinator.schedule(lambda: 1).fetch() == 1
        strategy.driver.stop()
    await_end(before)
