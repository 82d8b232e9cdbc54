"""What asynchronous training must show: nothing lost, staleness as expected, limits as computed."""

from __future__ import annotations

import dataclasses
import heapq
import random
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.cluster.exchange import Exchange
from paceline.cluster.local import Local
from paceline.pace import Asynchronous, BoundedStaleness, Pace, Softsync, Synchronous
from paceline.store.rules import Plain
from paceline.store.stability import last_stable_rate
from paceline.store.step_update import GroupUpdate
from paceline.store.store import AssignAdd, Push, Store
from paceline.strategies.central_storage import CentralStorageStrategy
from paceline.strategies.parameter_server import ParameterServerStrategy
from paceline.testing.tolerances import EXACT, GOLDEN, assert_close
from store_rig import Rig, f32

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.cluster.records import PushRecord


def parameter_servers(workers: int, **options: Any) -> ParameterServerStrategy:
    return ParameterServerStrategy(cluster=Local(workers=workers), **options)


def central_storage(workers: int, **options: Any) -> CentralStorageStrategy:
    return CentralStorageStrategy([f"cpu:{index}" for index in range(workers)], **options)


STRATEGIES = {"ps": parameter_servers, "central": central_storage}


# Nothing is lost -------------------------------------------------------------------------------


@pytest.mark.contract(118)
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_five_asynchronous_steps_are_five(make: Callable[..., Any]) -> None:
    strategy = make(2, update_rule=Plain())
    with strategy.scope():
        weight = tf.Variable(0.0)
        sgd = tf.keras.optimizers.SGD(0.5)
        mean = tf.keras.metrics.Mean()
        norm = keras.layers.BatchNormalization(momentum=0.5)
        norm.build((None, 1))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = weight * x
        sgd.apply_gradients([(tape.gradient(loss, weight), weight)])
        mean.update_state(x)
        norm(jnp.full((4, 1), 2.0), training=True)
        return x

    values = [strategy.submit(step, (f32(x),)) for x in range(5)]
    assert [float(value.fetch()) for value in values] == [0, 1, 2, 3, 4]
    strategy.driver.join()
    assert int(sgd.iterations.numpy()) == 5
    assert float(mean.count.numpy()) == 5
    assert_close(mean.result(), 2.0, EXACT)
    assert_close(weight, -0.5 * 10, EXACT)
    assert_close(norm.moving_mean, [2 * (1 - 0.5**5)])


@pytest.mark.contract(118)
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_fit_loses_no_batch(make: Callable[..., Any]) -> None:
    strategy = make(2, update_rule=Plain())
    with strategy.scope():
        dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = tf.keras.Sequential([dense])
    # The loss is linear in the weight, so that its gradient is the same at every version.
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.5),
        loss=lambda y, outputs: outputs * y,
        metrics=[tf.keras.metrics.MeanMetricWrapper(lambda y, outputs: y, name="labels")],
    )
    x, y = np.ones((40, 1), np.float32), np.arange(40, dtype=np.float32)[:, None]
    history = model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0).history
    assert int(model.optimizer.iterations.numpy()) == 5
    assert_close(dense.kernel, [[1 - 0.5 * np.mean(y) * 5]])
    assert_close(history["labels"], [np.mean(y)])


class ChangesPace(keras.callbacks.Callback):
    """Gives the strategy another pace in the middle of an epoch."""

    def __init__(self, strategy: Any, pace: Pace | None) -> None:
        super().__init__()
        self.strategy, self.pace = strategy, pace

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 7 and self.pace is not None:
            self.strategy.pace = self.pace


@pytest.mark.parametrize(
    ("pace", "later"),
    [
        (Asynchronous(max_staleness=0), None),
        (Synchronous(), None),
        (Synchronous(backups=1), None),
        (BoundedStaleness(1), None),
        (Softsync(3), None),
        (Softsync(4), Synchronous()),
        (Asynchronous(), Synchronous(backups=1)),
        (Synchronous(), Asynchronous(max_staleness=1)),
    ],
    ids=repr,
)
def test_every_example_counts_once_at_every_pace(pace: Pace, later: Pace | None) -> None:
    strategy = parameter_servers(3, pace=pace, update_rule=Plain(), merge="sum")
    with strategy.scope():
        dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = tf.keras.Sequential([dense])
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.5),
        loss=lambda y, outputs: outputs * y,
        metrics=[tf.keras.metrics.MeanMetricWrapper(lambda y, outputs: y, name="labels")],
    )
    x, y = np.ones((160, 1), np.float32), np.arange(160, dtype=np.float32)[:, None] / 64
    changes = ChangesPace(strategy, later)
    history = model.fit(x, y, batch_size=8, verbose=0, callbacks=[changes]).history
    # The gradient is the mean of the labels, at every version.
    assert_close(dense.kernel, [[1 - 0.5 * np.mean(y) * 20]])
    assert_close(history["labels"], [np.mean(y)])
    report = strategy.monitor.report()
    assert (report.applied, report.examples) == (20, 160)
    assert int(model.optimizer.iterations.numpy()) <= 20


@pytest.mark.contract(118)
def test_four_workers_with_a_thousand_pushes_each() -> None:
    rig = Rig()
    weight, other = tf.Variable(f32(0, 0)), tf.Variable(f32(0, 0))
    sgd, adam = tf.keras.optimizers.SGD(0.25), tf.keras.optimizers.Adam(0.01)

    def train(x: Any) -> None:
        sgd.apply([x], [weight])
        with tf.GradientTape() as tape:
            loss = jnp.sum((other - x) ** 2)
        adam.apply([tape.gradient(loss, other)], [other])

    step = rig.step(train, f32(0, 0))
    rng = np.random.default_rng(0)
    batches = rng.integers(-3, 4, (4000, 2)).astype("float32")
    left, computing, staleness, total = [1000] * 4, {}, [], np.zeros(2)
    for batch in batches:
        workers = [k for k in range(4) if left[k]]
        for worker in workers:  # all that are idle pull, then one of them pushes
            if worker not in computing:
                computing[worker] = (rig.compute(step, batch, worker=worker), batch)
        worker = int(rng.choice(workers))
        pushed, its_batch = computing.pop(worker)
        total += its_batch
        staleness.append(rig.store.version - pushed.push.read_version)
        rig.apply(pushed)
        left[worker] -= 1
    assert rig.store.version == 4000
    assert_close(weight, -0.25 * total, EXACT)
    assert np.mean(staleness) > 2.5
    assert [int(optimizer.iterations.numpy()) for optimizer in (sgd, adam)] == [4000, 4000]
    assert all(np.isfinite(slot.numpy()).all() for slot in adam.variables)
    assert np.abs(other.numpy()).max() < 3


def test_threads_lose_nothing() -> None:
    strategy = parameter_servers(4, update_rule=Plain())
    with strategy.scope():
        weight = tf.Variable(f32(0, 0))
        sgd = tf.keras.optimizers.SGD(0.25, momentum=0.0)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.sum(weight * x)
        sgd.apply_gradients([(tape.gradient(loss, weight), weight)])

    batches = np.random.default_rng(0).integers(-3, 4, (200, 2)).astype("float32")
    for batch in batches:
        strategy.submit(step, (batch,))
    strategy.driver.join()
    assert_close(weight, -0.25 * batches.sum(axis=0), EXACT)
    assert int(sgd.iterations.numpy()) == 200
    assert strategy.monitor.report().applied == 200


# The stability oracle --------------------------------------------------------------------------


def _grows(amplitudes: list[Any]) -> Any:
    """Which columns are larger at the end than in the middle, [rate]."""
    third = len(amplitudes) // 3
    middle, end = amplitudes[third : 2 * third], amplitudes[2 * third :]
    return np.max(np.abs(end), axis=0) > np.max(np.abs(middle), axis=0)


def _last_stable(rates: Any, grows: Any) -> float:
    """The last rate before the first one that grows; all after it must grow, too."""
    first = int(np.argmax(grows))
    assert grows[first:].all()
    assert first > 0
    return (rates[first - 1] + rates[first]) / 2


@pytest.mark.parametrize("delay", [0, 1, 3, 7, 31])
def test_the_last_stable_rate_at_a_fixed_delay(delay: int) -> None:
    limit = last_stable_rate(delay)
    rates = limit * np.linspace(0.95, 1.05, 41)  # each element of w has its own
    store = Store({"w": np.ones(len(rates))})
    records: list[PushRecord] = []
    exchange = Exchange(store, Asynchronous(), _never, records.append)
    read = {}
    for worker in range(delay + 1):
        exchange.join(worker)
        read[worker] = exchange.pull(worker, ["w"], 0.0)
    amplitudes = []
    for turn in range(400 * (delay + 1)):
        worker = turn % (delay + 1)
        snapshot = read[worker]
        update = AssignAdd("w", -rates * snapshot.values[0])
        exchange.push(Push(worker, 0, turn, snapshot.version, update), float(turn))
        read[worker] = exchange.pull(worker, ["w"], float(turn))
        amplitudes.append(read[worker].values[0])
    assert {record.staleness for record in records[delay:]} == {delay}
    assert _last_stable(rates, _grows(amplitudes)) == pytest.approx(limit, rel=0.01)


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_the_last_stable_rate_of_a_keras_optimizer_at_the_store(delay: int) -> None:
    limit = last_stable_rate(delay)
    rates = np.asarray(limit * np.linspace(0.94, 1.06, 25), np.float32)
    rig = Rig(Plain())
    weight = tf.Variable(np.ones(len(rates), np.float32))
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(curvature: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.sum(curvature * weight**2) / 2
        sgd.apply([tape.gradient(loss, weight)], [weight])

    step = rig.step(train, rates)
    queue, amplitudes = [rig.compute(step, rates) for _ in range(delay)], []
    for _ in range(300 * (delay + 1)):
        queue.append(rig.compute(step, rates))
        rig.apply(queue.pop(0))
        amplitudes.append(weight.numpy())
    assert _last_stable(rates, _grows(amplitudes)) == pytest.approx(limit, rel=0.01)


def _never(group: Sequence[tuple[Push, int]]) -> Any:
    raise AssertionError(f"a free-running pace made a group: {group!r}")


# Staleness -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Nothing:
    """An update without effect."""

    reads = writes = ()

    def __call__(self, current: Sequence[Any], staleness: int) -> tuple[()]:
        return ()


class Simulation:
    """Workers in virtual time on one exchange.

    Args:
        pace: the pace.
        speeds: how long a step of each worker lasts, in the mean.
    """

    def __init__(self, pace: Pace, speeds: Sequence[float]) -> None:
        self.records: list[PushRecord] = []
        self.exchange = Exchange(Store({}), pace, lambda group: Nothing(), self.records.append)
        self.speeds = speeds
        self.finished = [0] * len(speeds)  # pushes of each worker
        self.leads: list[int] = []  # of every start, over the slowest worker
        for worker in range(len(speeds)):
            self.exchange.join(worker)

    def run(self, num_pushes: int) -> list[PushRecord]:
        seconds, now = random.Random(0), 0.0
        waiting, computing = set(range(len(self.speeds))), []
        for worker in waiting:
            self.exchange.ask(worker, now)
        for sequence in range(num_pushes):
            for worker in sorted(waiting):
                if self.exchange.may_pull(worker).is_granted:
                    waiting.remove(worker)
                    version = self.exchange.pull(worker, [], now).version
                    self.leads.append(self.finished[worker] - min(self.finished))
                    end = now + self.speeds[worker] * seconds.uniform(0.5, 1.5)
                    heapq.heappush(computing, (end, worker, version))
            now, worker, version = heapq.heappop(computing)
            self.exchange.push(Push(worker, 0, sequence, version, Nothing()), now)
            self.finished[worker] += 1
            self.exchange.ask(worker, now)
            waiting.add(worker)
        self.exchange.flush(now)
        return self.records


@pytest.mark.parametrize("num_workers", [1, 2, 8, 32])
def test_the_mean_staleness_of_equal_workers_is_one_less_than_their_number(
    num_workers: int,
) -> None:
    records = Simulation(Asynchronous(), [1.0] * num_workers).run(8000)
    staleness = [record.staleness for record in records]
    assert np.mean(staleness) == pytest.approx(num_workers - 1, rel=0.02)
    assert max(staleness) <= 2 * num_workers


def test_the_mean_staleness_does_not_depend_on_the_speeds() -> None:
    records = Simulation(Asynchronous(), list(np.linspace(1, 3, 16))).run(8000)
    assert np.mean([record.staleness for record in records]) == pytest.approx(15, rel=0.02)


@pytest.mark.parametrize("n", [1, 2, 5, 10, 30])
def test_softsync_gives_a_staleness_of_about_n(n: int) -> None:
    records = Simulation(Softsync(30 // n), [1.0] * 30).run(9000)
    staleness = [record.staleness for record in records]
    assert np.mean(staleness) == pytest.approx(n - (1 if n == 30 else 0), rel=0.05, abs=0.2)
    assert max(staleness) <= 2 * n


@pytest.mark.parametrize("bound", [0, 1, 3, 8])
def test_no_start_exceeds_the_bound(bound: int) -> None:
    simulation = Simulation(BoundedStaleness(bound), [1.0, 1.0, 1.5, 4.0])
    records = simulation.run(3000)
    assert max(simulation.leads) == bound
    assert all(record.outcome == "applied" for record in records)
    assert max(record.wait for record in records) > 1  # somebody waits for the slow one


def test_a_slow_worker_does_not_hold_up_free_running_ones() -> None:
    simulation = Simulation(Asynchronous(), [1.0, 1.0, 1.0, 10.0])
    records = simulation.run(3100)
    assert simulation.finished[3] == pytest.approx(100, rel=0.1)
    assert {record.wait for record in records} == {0.0}


# Lockstep --------------------------------------------------------------------------------------

SIZES = (5, 3)


def shards(seed: int) -> list[tuple[Any, Any]]:
    """What each of two workers gets of one global batch."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(size=(size, 4)).astype("float32"),
            rng.normal(size=(size, 3)).astype("float32"),
        )
        for size in SIZES
    ]


def dense(k: Any) -> Any:
    keras.utils.set_random_seed(5)
    layers = [k.layers.Dense(6, activation="tanh"), k.layers.Dense(3)]
    return k.Sequential([k.Input((4,)), *layers])


@pytest.mark.parametrize("pace", [Synchronous(), BoundedStaleness(0)], ids=repr)
def test_lockstep_equals_one_device_with_the_whole_batch(pace: Pace) -> None:
    rig = Rig()
    records: list[PushRecord] = []
    exchange = Exchange(rig.store, pace, lambda group: GroupUpdate(group, "mean"), records.append)
    with rig.strategy.scope():
        model, adam = dense(tf.keras), tf.keras.optimizers.Adam(0.01)

    def train(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.mean((model(x, training=True) - y) ** 2)
        weights = model.trainable_variables
        adam.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    steps = [rig.step(train, *shard) for shard in shards(0)]
    for worker in range(2):
        exchange.join(worker)
    for turn in range(4):
        pushes = []
        for worker, shard in enumerate(shards(turn)):
            assert exchange.may_pull(worker).is_granted
            exchange.pull(worker, [], 0.0)
            pushes.append(rig.compute(steps[worker], *shard, worker=worker).push)
        for k in np.random.default_rng(turn).permutation(2):
            exchange.push(pushes[k], 0.0)
    plain = dense(keras)
    plain.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    for turn in range(4):
        plain.train_on_batch(*[np.concatenate(parts) for parts in zip(*shards(turn), strict=True)])
    assert {record.staleness for record in records} == {0}
    assert int(adam.iterations.numpy()) == rig.store.version == 4
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)


@pytest.mark.parametrize("pace", [Synchronous(), BoundedStaleness(0)], ids=repr)
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_lockstep_threads_equal_mirrored_replicas(make: Callable[..., Any], pace: Pace) -> None:
    strategy = make(2, pace=pace)
    with strategy.scope():
        model = dense(tf.keras)
        model.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss="mse")
    with tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        mirrored = dense(tf.keras)
        mirrored.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss="mse")
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(48, width)).astype("float32") for width in (4, 3))
    common = {"epochs": 2, "shuffle": False, "verbose": 0}
    expected = mirrored.fit(x, y, batch_size=16, **common).history
    # Under CentralStorage in lockstep fit takes global batches, as under MirroredStrategy.
    is_global = strategy.num_replicas_in_sync == 2
    history = model.fit(x, y, batch_size=16 if is_global else 8, **common).history
    assert int(model.optimizer.iterations.numpy()) == 6
    assert_close(model.get_weights(), mirrored.get_weights(), GOLDEN)
    assert_close(history["loss"], expected["loss"], GOLDEN)


# Changes by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize(("aggregation", "times"), [("NONE", 2), ("MEAN", 1)])
def test_changes_by_hand_in_lockstep(aggregation: str, times: int) -> None:
    """Two workers move a weight by 0.1 * g, g = 1 and 3: by each, or by the mean of both."""
    strategy = parameter_servers(2, pace=tf.pace.Synchronous())
    with strategy.scope():
        weight = tf.Variable(0.0, aggregation=tf.VariableAggregation[aggregation])

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.mean(weight * x)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))

    for _ in range(3):  # rounds
        for x in (1.0, 3.0):
            strategy.submit(step, (f32(x, x),))
        strategy.driver.join()
    assert_close(weight, -3 * times * 0.1 * 2)
    assert strategy.monitor.report().applied == 6
