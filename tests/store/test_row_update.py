"""Updates by rows: equal to the arithmetic on the rows in use, and none on the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.store.rules import DelayCompensated, GapAware, Plain, StalenessScaled
from paceline.testing.tolerances import EXACT, GOLDEN, assert_close
from store_rig import Rig, cut_of, f32

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.steps import Step
    from paceline.store.rules import UpdateRule

NUM_ROWS, WIDTH = 7, 2
START = np.arange(NUM_ROWS * WIDTH, dtype=np.float32).reshape(NUM_ROWS, WIDTH) / 10


def slices_step(rig: Rig, optimizer: Any, start: np.ndarray = START) -> tuple[Any, Step]:
    """A table, and a step whose arguments are the slices of its gradient."""
    table = tf.Variable(start)

    def train(indices: Any, values: Any) -> None:
        slices = tf.IndexedSlices(values, indices, start.shape)
        optimizer.apply_gradients([(slices, table)])

    return table, rig.step(train, *slices(0))


def slices(seed: int, rows: Any = range(NUM_ROWS)) -> tuple[np.ndarray, np.ndarray]:
    """Three slices, some of them for one row."""
    rng = np.random.default_rng(seed)
    return rng.choice(list(rows), 3).astype("int32"), rng.normal(size=(3, WIDTH)).astype("float32")


def slots_of(optimizer: Any, shape: tuple[int, ...] = START.shape) -> list[Any]:
    return [v for v in optimizer.variables if tuple(v.shape) == shape]


# By hand: what a lazy optimizer is ---------------------------------------------------------------


def _sgd(w: Any, g: Any, m: Any, v: Any, t: int) -> None:
    m[:] = 0.9 * m - 0.1 * g
    w += m


def _adagrad(w: Any, g: Any, m: Any, v: Any, t: int) -> None:
    m += g**2
    w -= 0.1 * g / np.sqrt(m + 1e-7)


def _adam(w: Any, g: Any, m: Any, v: Any, t: int) -> None:
    m[:] = 0.9 * m + 0.1 * g
    v[:] = 0.999 * v + 0.001 * g**2
    w -= 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-7)


BY_HAND: dict[str, tuple[Callable[[], Any], Callable[..., None], float]] = {
    "momentum": (lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9), _sgd, 0.0),
    "Adagrad": (lambda: tf.keras.optimizers.Adagrad(0.1), _adagrad, 0.1),
    "Adam": (lambda: tf.keras.optimizers.Adam(0.1), _adam, 0.0),
}


@pytest.mark.parametrize(("make", "rule", "first"), BY_HAND.values(), ids=BY_HAND.keys())
def test_rows_in_use_follow_the_arithmetic_and_others_keep_all_they_have(
    make: Callable[[], Any], rule: Callable[..., None], first: float
) -> None:
    rig, optimizer = Rig(), make()
    table, step = slices_step(rig, optimizer)
    assert len(cut_of(step).rows) == 1
    w = START.astype(np.float64)
    m, v = np.full_like(w, first), np.zeros_like(w)
    for t in range(1, 6):
        indices, values = slices(t, rows=[[0, 3], [3, 6], [0, 6], [5, 3], [3, 3]][t - 1])
        before = [np.array(x) for x in (table, *slots_of(optimizer))]
        rig.run(step, indices, values)
        used = np.unique(indices)
        gradient = np.zeros_like(w)
        np.add.at(gradient, indices, values)
        rows = [x[used] for x in (w, m, v)]  # copies
        rule(rows[0], gradient[used], rows[1], rows[2], t)
        w[used], m[used], v[used] = rows
        others = np.setdiff1d(np.arange(NUM_ROWS), used)
        for old, new in zip(before, (table, *slots_of(optimizer)), strict=True):
            assert_close(np.array(new)[others], old[others], EXACT)
        assert_close(table, w, GOLDEN)
    assert [np.array(slot)[[1, 2, 4]].tolist() for slot in slots_of(optimizer)] == [
        np.full((3, WIDTH), first, np.float32).tolist() for _ in slots_of(optimizer)
    ]
    assert_close(slots_of(optimizer)[0], m, GOLDEN)
    assert int(optimizer.iterations.numpy()) == 5


@pytest.mark.parametrize("make", [case[0] for case in BY_HAND.values()], ids=BY_HAND.keys())
def test_overlapping_pushes_give_a_serial_order(make: Callable[[], Any]) -> None:
    pushes = [slices(seed) for seed in range(4)]
    states = []
    for run in (Rig.overlap, lambda rig, step, *calls: [rig.run(step, *call) for call in calls]):
        rig, optimizer = Rig(), make()
        table, step = slices_step(rig, optimizer)
        run(rig, step, *pushes)
        states.append([np.array(v) for v in (table, *optimizer.variables)])
    assert_close(states[0], states[1], EXACT)


def test_indices_out_of_range_touch_nothing() -> None:
    rig, adam = Rig(), tf.keras.optimizers.Adam(0.1)
    table, step = slices_step(rig, adam)
    rig.run(step, np.array([NUM_ROWS, -1, 2**30], np.int32), np.ones((3, WIDTH), np.float32))
    assert_close(table, START, EXACT)
    assert_close(slots_of(adam), [np.zeros_like(START)] * 2, EXACT)
    rig.run(step, np.array([NUM_ROWS - 1, NUM_ROWS, -1], np.int32), np.ones((3, WIDTH), "float32"))
    assert np.flatnonzero(np.any(table.numpy() != START, axis=1)).tolist() == [NUM_ROWS - 1]


# Sharded tables --------------------------------------------------------------------------------


@pytest.mark.case("R97")
def test_rows_of_a_sharded_table_are_updated_where_they_are() -> None:
    rig = Rig()
    rig.strategy = tf.distribute.ParameterServerStrategy(
        variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
        cluster=tf.cluster.Local(workers=2, servers=2),
    )
    start = np.arange(15, dtype=np.float32).reshape(5, 3)
    with rig.strategy.scope():
        table = tf.Variable(start)
    assert [tuple(v.shape) for v in table.variables] == [(3, 3), (2, 3)]
    adagrad = tf.keras.optimizers.Adagrad(0.1)

    def train(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = jnp.sum(table.embedding_lookup(ids))
        adagrad.apply_gradients(zip(tape.gradient(loss, table), table.variables, strict=True))
        return table.embedding_lookup(jnp.array([0, 4]))

    ids = np.array([0, 4, 4], np.int32)
    step = rig.step(train, ids)
    parts = step.store_halves.parts
    assert [[v.path for v in part.homes] for part in parts] == [[v.path] for v in table.variables]
    push = rig.compute(step, ids)
    first, second = push.push.update.residuals
    assert [i for i in first.indices.tolist() if i < 3] == [0]
    assert [i for i in second.indices.tolist() if i < 2] == [1]
    rig.apply(push)
    expected = start.copy()
    expected[0] -= 0.1 * 1 / np.sqrt(0.1 + 1)
    expected[4] -= 0.1 * 2 / np.sqrt(0.1 + 4)
    assert_close(table.numpy(), expected)
    assert_close(table.numpy()[1:4], start[1:4], EXACT)
    slots = [v for v in adagrad.variables if v.shape in ((3, 3), (2, 3))]
    assert_close([s.numpy()[:, 0] for s in slots], [f32(1.1, 0.1, 0.1), f32(0.1, 4.1)])
    assert [rig.strategy.server_of(v) for v in table.variables] == [0, 1]


# Rules and groups ------------------------------------------------------------------------------


RULES = {
    "plain": Plain(),
    "scaled": StalenessScaled(),
    "compensated": DelayCompensated(strength=0.5),
    "adaptive": DelayCompensated.adaptive(),
    "gap_aware": GapAware(window=3),
}
USED = [1, 2, 5]


def dense_step(rig: Rig, optimizer: Any) -> tuple[Any, Step]:
    """A weight of the rows in use alone, and a step whose argument is its gradient."""
    weight = tf.Variable(START[USED])
    step = rig.step(lambda g: optimizer.apply([g], [weight]), START[USED])
    return weight, step


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_rules_act_on_rows_as_on_whole_weights(rule: UpdateRule) -> None:
    rig, other = Rig(rule), Rig(rule)
    adam, reference = (tf.keras.optimizers.Adam(0.1) for _ in range(2))
    table, step = slices_step(rig, adam)
    weight, whole = dense_step(other, reference)
    rng = np.random.default_rng(0)
    for _ in range(3):
        gradients = rng.normal(size=(2, 3, WIDTH)).astype("float32")
        rig.overlap(step, *[(np.array(USED, np.int32), g) for g in gradients])
        other.overlap(whole, *[(g,) for g in gradients])
    assert_close(table.numpy()[USED], weight.numpy(), GOLDEN)
    assert_close([s.numpy()[USED] for s in slots_of(adam)],
                 [s.numpy() for s in slots_of(reference, (3, WIDTH))], GOLDEN)  # fmt: skip
    assert_close(table.numpy()[[0, 3, 4, 6]], START[[0, 3, 4, 6]], EXACT)
    known = zip(*[jax.tree.leaves(remembered(*pair)) for pair in ((rig, step), (other, whole))],
                strict=True)  # fmt: skip
    for state, expected in known:
        assert_close(state[jnp.array(USED)] if state.shape else state, expected, GOLDEN)
        assert not state.shape or not np.any(np.array(state)[[0, 3, 4, 6]])


def remembered(rig: Rig, step: Step) -> Any:
    """What the rule knows of the second worker, and of all."""
    (half,) = step.store_halves.parts
    return rig.states.of(half, 1, half.of({id(v): v.value for v in half.variables}))


@pytest.mark.parametrize("merge", ["mean", "sum"])
def test_a_group_is_one_update_of_the_rows_of_all(merge: Any) -> None:
    rig, adam = Rig(), tf.keras.optimizers.Adam(0.1)
    table, step = slices_step(rig, adam)
    pushes = [(np.array(i, np.int32), slices(k)[1]) for k, i in enumerate(([1, 1, 2], [2, 5, 9]))]
    rig.apply_group(*[rig.compute(step, *p, worker=k) for k, p in enumerate(pushes)], merge=merge)
    gradient = np.zeros((10, WIDTH), np.float32)
    for indices, values in pushes:
        np.add.at(gradient, indices, values / (2 if merge == "mean" else 1))
    w, m, v = START[USED].astype(np.float64), np.zeros((3, WIDTH)), np.zeros((3, WIDTH))
    _adam(w, gradient[USED], m, v, 1)
    assert_close(table.numpy()[USED], w, GOLDEN)
    assert_close(table.numpy()[[0, 3, 4, 6]], START[[0, 3, 4, 6]], EXACT)
    assert int(adam.iterations.numpy()) == 1


def test_pushes_with_rows_and_whole_gradients_are_merged_whole() -> None:
    rig, sgd = Rig(), tf.keras.optimizers.SGD(1.0)
    table, by_rows = slices_step(rig, sgd)
    whole = rig.step(lambda g: sgd.apply([g], [table]), START)
    indices, values = slices(3)
    for order in (0, 1):
        start = table.numpy()
        pushes = [rig.compute(by_rows, indices, values), rig.compute(whole, START, worker=1)]
        rig.apply_group(*(pushes if order else reversed(pushes)), merge="sum")
        expected = start - START
        np.subtract.at(expected, indices, values)
        assert_close(table, expected)
    assert int(sgd.iterations.numpy()) == 2


# Slices given to optimizers ----------------------------------------------------------------------


def test_slices_are_gradients_everywhere() -> None:
    indices, values = np.array([1, 1, 4], np.int32), np.ones((3, WIDTH), np.float32)
    expected = START.copy()
    np.subtract.at(expected, indices, values)

    def train(table: Any, sgd: Any, scale: float = 1.0) -> None:
        rows = tf.IndexedSlices(values * scale, indices, START.shape)
        sgd.apply_gradients([(rows, table)])

    plain = tf.Variable(START)
    train(plain, tf.keras.optimizers.SGD(1.0))
    assert_close(plain, expected)
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    for wrap in (tf.function, lambda fn: fn):
        with strategy.scope():
            table, sgd = tf.Variable(START), tf.keras.optimizers.SGD(1.0)
        strategy.run(wrap(lambda table=table, sgd=sgd: train(table, sgd, 0.5)))
        assert_close(table, expected)


def test_slices_that_do_not_fit_are_refused() -> None:
    table, sgd = tf.Variable(START, name="table"), tf.keras.optimizers.SGD(1.0)
    with pytest.raises(tf.errors.InvalidArgument, match=r"between 0 and .*indices=\[7\]"):
        sgd.apply([tf.IndexedSlices(np.ones((1, WIDTH)), np.array([7]))], [table])
    with pytest.raises(tf.errors.InvalidArgument, match=r"one slice .*shape \(1, 3\)"):
        sgd.apply([tf.IndexedSlices(np.ones((1, 3)), np.array([0]))], [table])
    assert_close(table, START, EXACT)


# Whole strategies --------------------------------------------------------------------------------


def classified() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 40, (256, 3)).astype("int32")
    return words, (words % 2 == 0).sum(axis=1, keepdims=True).astype("float32")


def embedding_model() -> Any:
    return tf.keras.Sequential(
        [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    )


def test_an_embedding_trains_in_fit() -> None:
    cluster = tf.cluster.Local(workers=2, servers=2)
    strategy = tf.distribute.ParameterServerStrategy(cluster=cluster)
    with strategy.scope():
        model = embedding_model()
        model.compile(tf.keras.optimizers.Adam(0.05), "mse")
        model.build((None, 3))
    start = model.layers[0].embeddings.numpy()
    words, labels = classified()
    losses = model.fit(words, labels, epochs=5, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    slots = slots_of(model.optimizer, (50, 4))
    for values, before in zip(
        [model.layers[0].embeddings, *slots], [start, *[np.zeros((50, 4))] * 2], strict=True
    ):
        assert_close(values.numpy()[40:], before[40:], EXACT)  # words that never occur
    assert np.all(np.any(model.layers[0].embeddings.numpy()[:40] != start[:40], axis=1))


def test_an_embedding_trains_in_an_own_loop() -> None:
    cluster = tf.cluster.Local(workers=2, servers=1)
    strategy = tf.distribute.ParameterServerStrategy(cluster=cluster)
    with strategy.scope():
        model, adagrad = embedding_model(), tf.keras.optimizers.Adagrad(0.5)
        model.build((None, 3))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    words, labels = classified()

    @tf.function
    def train(x: Any, y: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = jnp.mean((model(x, training=True) - y) ** 2)
            weights = model.trainable_variables
            adagrad.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        return strategy.run(replica, args=(x, y))

    losses = []
    for _ in range(6):
        batches = [(words[i : i + 32], labels[i : i + 32]) for i in range(0, 256, 32)]
        values = [coordinator.schedule(train, args=batch) for batch in batches]
        coordinator.join()
        losses.append(np.mean([value.fetch() for value in values]))
    assert losses[-1] < 0.3 * losses[0]
    assert int(adagrad.iterations.numpy()) == 6 * 8
