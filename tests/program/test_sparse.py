"""Gradients of tables: which travel as rows, what travels, and when the whole array has to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline as tf
from paceline.program.sparse import Rows, merged_rows, replaced, taken
from paceline.testing.tolerances import EXACT, GOLDEN, assert_close
from store_rig import Rig, cut_of, f32, num_bytes, primitives

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.steps import Step

NUM_ROWS, WIDTH = 1000, 4
IDS = np.array([[3, 7], [3, 999], [0, 3]], np.int32)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def table(num_rows: int = NUM_ROWS, width: int = WIDTH, **options: Any) -> Any:
    start = np.random.default_rng(0).normal(size=(num_rows, width)).astype("float32")
    return tf.Variable(start, **options)


def lookup_step(
    rig: Rig,
    variable: Any,
    optimizer: Any,
    loss: Callable[[Any, Any], Any] | None = None,
    ids: np.ndarray = IDS,
) -> Step:
    """A step whose argument are ids like these; the loss is that of looked-up rows."""

    def train(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = jnp.take(variable.value, ids, axis=0)
            value = jnp.sum(rows**2) if loss is None else loss(variable.value, ids)
        optimizer.apply([tape.gradient(value, variable)], [variable])
        return value

    return rig.step(train, ids)


def travelling(rig: Rig, step: Step, ids: np.ndarray = IDS) -> list[Any]:
    """What one push carries."""
    return list(rig.compute(step, ids).push.update.residuals)  # pyright: ignore


# Rows ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)  # every new size is compiled
@given(st.data())
def test_rows_are_distinct_ascending_and_summed(data: st.DataObject) -> None:
    num_rows, num_ids, dtype = data.draw(
        st.sampled_from([(2, 0, "int32"), (5, 3, "int8"), (4, 9, "uint16")])
    )
    low = 0 if dtype.startswith("u") else -3
    ids = data.draw(st.lists(st.integers(low, 9), min_size=num_ids, max_size=num_ids))
    values = np.arange(1, 2 * len(ids) + 1, dtype=np.float32).reshape(-1, 2)
    rows = merged_rows(jnp.asarray(ids, dtype), jnp.asarray(values), num_rows)
    indices = np.asarray(rows.indices)
    assert len(indices) == min(len(ids), num_rows)
    assert np.all(np.diff(indices) > 0)
    inside = [i for i in ids if 0 <= i < num_rows]
    assert indices[indices < num_rows].tolist() == sorted(set(inside))
    expected = np.zeros((num_rows, 2), np.float32)
    for i, value in zip(ids, values, strict=True):
        if 0 <= i < num_rows:
            expected[i] += value
    assert_close(rows.dense(), expected, EXACT)


def test_padding_is_read_from_some_row_and_written_to_none() -> None:
    array = jnp.arange(6.0).reshape(3, 2)
    rows = Rows(jnp.array([1, 3, 4]), jnp.full((3, 2), 9.0), 3)
    assert_close(taken(array, rows.indices), [[2, 3], [4, 5], [4, 5]], EXACT)
    assert_close(replaced(array, rows.indices, rows.values), [[0, 1], [9, 9], [4, 5]], EXACT)


# What travels ----------------------------------------------------------------------------------


def test_duplicates_travel_once(rig: Rig) -> None:
    variable = table()
    start = variable.numpy()
    step = lookup_step(rig, variable, tf.keras.optimizers.SGD(0.1))
    (rows,) = travelling(rig, step)
    assert rows.indices.tolist() == [0, 3, 7, 999, 1000 + 4, 1000 + 5]
    assert_close(rows.values[:4], np.array([[2], [6], [2], [2]]) * start[[0, 3, 7, 999]])
    assert num_bytes(rows) == IDS.size * (4 + 4 * WIDTH)
    assert "scatter-add" not in primitives(cut_of(step).at_worker)


def test_no_more_rows_travel_than_there_are(rig: Rig) -> None:
    ids = np.array([0, 1, 2, 3, 4, 4, 4, 9], np.int32)
    (rows,) = travelling(
        rig, lookup_step(rig, table(5), tf.keras.optimizers.SGD(0.1), ids=ids), ids
    )
    assert rows.indices.tolist() == [0, 1, 2, 3, 4]


def _multi(k: Any) -> Any:
    matrices, vectors = k.optimizers.Adam(0.1), k.optimizers.SGD(0.1)
    return k.optimizers.MultiOptimizer(lambda v: matrices if len(v.shape) == 2 else vectors)


ROW_WISE: dict[str, Any] = {
    name: (lambda k, name=name: getattr(k.optimizers, name)(0.1))
    for name in (
        "SGD", "Adagrad", "Adam", "AdamW", "Adamax", "Nadam", "RMSprop", "Adadelta", "Ftrl", "Lion",
        "Muon",
    )
} | {
    "momentum": lambda k: k.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "amsgrad": lambda k: k.optimizers.Adam(0.1, amsgrad=True),
    "centered": lambda k: k.optimizers.RMSprop(0.1, momentum=0.9, centered=True),
    "decay": lambda k: k.optimizers.SGD(0.1, weight_decay=0.1),
    "clipvalue": lambda k: k.optimizers.SGD(0.1, clipvalue=0.01),
    "schedule": lambda k: k.optimizers.Adam(
        k.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    ),
    "several": _multi,
}  # fmt: skip


@pytest.mark.parametrize("make", ROW_WISE.values(), ids=ROW_WISE.keys())
def test_the_rows_of_an_embedding_travel(rig: Rig, make: Callable[[Any], Any]) -> None:
    with rig.strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(NUM_ROWS, WIDTH),
                keras.layers.Flatten(),
                keras.layers.Dense(1, use_bias=False),
            ]
        )
        model.build((None, 2))
    weights, optimizer = model.trainable_variables, make(tf.keras)
    start = [w.numpy() for w in weights]

    def train(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = jnp.mean(model(ids, training=True) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    # As if the table had the rows in use alone.
    used = np.unique(IDS)
    plain = [keras.Variable(start[0][used], name="embeddings"), keras.Variable(start[1])]
    reference = make(keras)

    def loss(values: Any, ids: Any) -> Any:
        return jnp.mean((values[0][ids].reshape(3, -1) @ values[1]) ** 2)

    step = rig.step(train, IDS)
    assert num_bytes(travelling(rig, step)) == IDS.size * (4 + 4 * WIDTH) + num_bytes(weights[1:])
    for _ in range(3):
        rig.run(step, IDS)
        grads = jax.grad(loss)([w.value for w in plain], np.searchsorted(used, IDS))
        reference.apply(grads, plain)
    assert_close(weights[0].numpy()[used], plain[0].value, GOLDEN)
    assert_close(weights[1], plain[1].value, GOLDEN)
    others = np.setdiff1d(np.arange(NUM_ROWS), used)
    assert_close(weights[0].numpy()[others], start[0][others], EXACT)


WHOLE: dict[str, Any] = {
    "clipnorm": lambda k: k.optimizers.Adam(0.1, clipnorm=0.01),
    "global_clipnorm": lambda k: k.optimizers.SGD(0.1, global_clipnorm=0.1),
    "accumulation": lambda k: k.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "ema": lambda k: k.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "overwriting": lambda k: k.optimizers.Adam(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "ema_of_several": lambda k: k.optimizers.MultiOptimizer(
        k.optimizers.OptimizerMap(k.optimizers.SGD(0.1, use_ema=True))
    ),
    "scaling": lambda k: k.optimizers.LossScaleOptimizer(k.optimizers.Adam(0.1)),
    "Lamb": lambda k: k.optimizers.Lamb(0.1),
    "Adafactor": lambda k: k.optimizers.Adafactor(0.1),
    "ScheduleFreeAdamW": lambda k: k.optimizers.ScheduleFreeAdamW(0.1),
}


@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE.keys())
def test_updates_that_need_other_rows_get_the_whole_gradient(
    rig: Rig, make: Callable[[Any], Any]
) -> None:
    variable, optimizer = table(12), make(tf.keras)
    plain, reference = keras.Variable(variable.numpy()), make(keras)
    reference.build([plain])
    step = lookup_step(rig, variable, optimizer)
    assert not cut_of(step).rows
    for seed in range(3):
        ids = np.random.default_rng(seed).integers(0, 8, IDS.shape).astype("int32")
        (residual,) = travelling(rig, step, ids)
        assert residual.shape == (12, WIDTH)
        rig.run(step, ids)
        grads = [jax.grad(lambda w, ids: jnp.sum(w[ids] ** 2))(plain.value, ids)]
        own = reference.variables
        new = reference.stateless_apply([v.value for v in own], grads, [plain.value])
        for v, value in zip((plain, *own), (*new[0], *new[1]), strict=True):
            v.assign(value)
    assert_close(variable, plain.value, GOLDEN)


# How the gradient is made ----------------------------------------------------------------------


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "twice": lambda w, ids: jnp.sum(w[ids] ** 2) + jnp.sum(jnp.sin(w[ids[:, 0]])),
    "three_dims": lambda w, ids: jnp.sum(w[ids[None, :, :, None]] ** 2),
    "negative": lambda w, ids: jnp.sum(w[-1 - ids] ** 2),
    "clipped": lambda w, ids: jnp.sum(jnp.take(w, ids + 995, axis=0, mode="clip") ** 2),
    "filled": lambda w, ids: jnp.sum(jnp.take(w, ids + 5, axis=0, mode="fill", fill_value=0) ** 2),
    "wrapped": lambda w, ids: jnp.sum(jnp.take(w, 3 * ids, axis=0, mode="wrap") ** 2),
    "scaled": lambda w, ids: jnp.sum((0.5 * w / 3)[ids] ** 2),
    "cast": lambda w, ids: jnp.sum(w.astype("bfloat16")[ids].astype("float32") ** 2),
    "scaled_by_the_batch": lambda w, ids: jnp.sum((w * jnp.mean(ids * 0.1))[ids] ** 2),
    "jit": lambda w, ids: jnp.sum(jax.jit(lambda w: w[ids] * 2)(w)),
    "none_in_range": lambda w, ids: jnp.sum(
        jnp.take(w, ids + 1000, axis=0, mode="fill", fill_value=0) ** 2
    ),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_rows_add_up_to_the_gradient(rig: Rig, loss: Callable[[Any, Any], Any]) -> None:
    variable = table()
    start = variable.numpy()
    step = lookup_step(rig, variable, tf.keras.optimizers.SGD(1.0), loss)
    (rows,) = travelling(rig, step)
    gradient = jax.grad(loss)(jnp.asarray(start), IDS)
    assert_close(rows.dense(), gradient)
    rig.run(step, IDS)
    assert_close(variable, start - gradient)


UNLIKE: dict[str, Callable[[Any, Any], Any]] = {
    "columns": lambda w, ids: jnp.sum(w[:, ids[:, 0] % WIDTH] ** 2),
    "elements": lambda w, ids: jnp.sum(w[ids, ids % WIDTH] ** 2),
    "regularized": lambda w, ids: jnp.sum(w[ids] ** 2) + 0.01 * jnp.sum(w**2),
    "tied": lambda w, ids: jnp.sum(jnp.tanh(w[ids] @ w.T)),
    "one_id": lambda w, ids: jnp.sum(w[ids[0, 0]] ** 2),
    "sliced": lambda w, ids: jnp.sum(w[2:5] ** 2) * ids[0, 0],
    "masked": lambda w, ids: jnp.sum((w * jnp.arange(NUM_ROWS)[:, None])[ids]),
    "turned": lambda w, ids: jnp.sum(w.T[ids % WIDTH] ** 2),
}


@pytest.mark.parametrize("loss", UNLIKE.values(), ids=UNLIKE.keys())
def test_other_gradients_travel_whole(rig: Rig, loss: Callable[[Any, Any], Any]) -> None:
    variable = table()
    start = variable.numpy()
    step = lookup_step(rig, variable, tf.keras.optimizers.SGD(1.0), loss)
    assert not cut_of(step).rows
    rig.run(step, IDS)
    assert_close(variable, start - jax.grad(loss)(jnp.asarray(start), IDS))


def test_a_table_may_be_a_vector(rig: Rig) -> None:
    variable = tf.Variable(np.zeros(10, np.float32))
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(ids: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.sum(variable.value[ids])
        sgd.apply([tape.gradient(loss, variable)], [variable])

    step = rig.step(train, IDS[0])
    (rows,) = travelling(rig, step, np.array([4, 4], np.int32))
    assert num_bytes(rows) == 2 * (4 + 4)
    rig.run(step, np.array([4, 4], np.int32))
    assert_close(variable, [0, 0, 0, 0, -2, 0, 0, 0, 0, 0], EXACT)


# What a step does besides ----------------------------------------------------------------------


def test_what_a_step_makes_of_updated_weights_is_for_all_rows(rig: Rig) -> None:
    variable, average = table(5, 1), tf.Variable(np.zeros((5, 1), np.float32), trainable=False)
    clipped = table(5, 1)
    start, other = variable.numpy(), clipped.numpy()
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(ids: Any) -> None:
        sgd.apply([jnp.zeros((5, 1)).at[ids].add(1.0), jnp.zeros((5, 1)).at[ids].add(1.0)],
                  [variable, clipped])  # fmt: skip
        average.assign(0.5 * average + 0.5 * variable)
        clipped.assign(jnp.clip(clipped.value, -0.1, 0.1))

    step = rig.step(train, np.array([1]))
    assert not cut_of(step).rows
    rig.run(step, np.array([1]))
    moved = start - np.eye(5, dtype=np.float32)[:, [1]]
    assert_close(average, 0.5 * moved)
    assert_close(clipped, np.clip(other - np.eye(5, dtype=np.float32)[:, [1]], -0.1, 0.1))


def test_what_a_step_makes_of_the_gradient_is_made_by_the_worker(rig: Rig) -> None:
    variable, norm = table(), tf.Variable(0.0, trainable=False)
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = jnp.sum(variable.value[ids] ** 2)
        gradient = tape.gradient(loss, variable)
        norm.assign_add(jnp.sum(gradient**2))
        sgd.apply([gradient], [variable])
        return gradient

    start = variable.numpy()
    step = rig.step(train, IDS)
    result = rig.run(step, IDS)
    expected = jax.grad(lambda w: jnp.sum(w[IDS] ** 2))(jnp.asarray(start))
    assert_close(result, expected)
    assert_close(norm, jnp.sum(expected**2))
    assert len(cut_of(step).rows) == 1
    assert_close(variable, start - expected)


def test_two_updates_of_one_table_in_a_step_are_whole(rig: Rig) -> None:
    variable = table(6, 1)
    start = variable.numpy()
    first, second = tf.keras.optimizers.SGD(1.0), tf.keras.optimizers.SGD(1.0)

    def train(ids: Any) -> None:
        first.apply([jnp.zeros((6, 1)).at[ids].add(1.0)], [variable])
        second.apply([jnp.ones((6, 1))], [variable])

    rig.run(rig.step(train, np.array([2])), np.array([2]))
    assert_close(variable, start - 1 - np.eye(6, dtype=np.float32)[:, [2]])


def test_the_constraint_of_a_table_may_be_row_wise(rig: Rig) -> None:
    elementwise = table(6, 1, constraint=keras.constraints.NonNeg())
    by_columns = table(6, 1, constraint=keras.constraints.MaxNorm(0.5, axis=0))
    start = elementwise.numpy()
    for variable, is_row_wise in ((elementwise, True), (by_columns, False)):
        step = lookup_step(rig, variable, tf.keras.optimizers.SGD(1.0), lambda w, ids: w[ids].sum())
        assert bool(cut_of(step).rows) is is_row_wise
        rig.run(step, np.full(IDS.shape, 4, np.int32))
    rest = [0, 1, 2, 3, 5]
    assert_close(elementwise.numpy()[rest], start[rest], EXACT)
    assert_close(elementwise.numpy()[4], [0.0], EXACT)
    assert np.linalg.norm(by_columns.numpy()) < 0.51


def test_tables_and_other_weights_in_one_step(rig: Rig) -> None:
    """Two tables of one shape, whose rows must not be mixed up, and a matrix."""
    users, items, matrix = table(), table(), tf.Variable(np.eye(WIDTH, dtype=np.float32))
    adam = tf.keras.optimizers.Adam(0.1)
    weights = [users, matrix, items]
    start = [w.numpy() for w in weights]

    def loss(values: Any, ids: Any) -> Any:
        rows = values[0][ids[:, 0]] @ values[1]
        return jnp.sum((rows - values[2][ids[:, 1]] - 1) ** 2)

    def train(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss([w.value for w in weights], ids)
        adam.apply(tape.gradient(value, weights), weights)
        return value

    step = rig.step(train, IDS)
    assert num_bytes(travelling(rig, step)) == 2 * 3 * (4 + 4 * WIDTH) + 4 * WIDTH**2
    first = rig.run(step, IDS)
    for _ in range(20):
        last = rig.run(step, IDS)
    assert last < 0.2 * first
    for variable, before, ids in ((users, start[0], IDS[:, 0]), (items, start[2], IDS[:, 1])):
        moved = np.any(variable.numpy() != before, axis=1)
        assert np.flatnonzero(moved).tolist() == np.unique(ids).tolist()


def test_mixed_precision(rig: Rig) -> None:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        with rig.strategy.scope():
            layer = keras.layers.Embedding(NUM_ROWS, WIDTH)
            layer.build()
    finally:
        keras.mixed_precision.set_global_policy("float32")
    sgd = tf.keras.optimizers.SGD(1.0)
    start = layer.embeddings.numpy()

    def train(ids: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.sum(layer(ids).astype("float32") * 3)
        sgd.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    step = rig.step(train, IDS)
    (rows,) = travelling(rig, step)
    assert rows.dtype == jnp.float32
    rig.run(step, IDS)
    expected = start.copy()
    np.subtract.at(expected, IDS.reshape(-1), 3)
    assert_close(layer.embeddings, expected)


def test_a_number_per_row_from_the_worker_makes_the_update_whole(rig: Rig) -> None:
    variable = tf.Variable(f32(1, 2, 3))
    rates = tf.Variable(f32(1, 1, 1), trainable=False)
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(ids: Any, x: Any) -> None:
        rates.assign(rates * x)
        sgd.apply([jnp.zeros(3).at[ids].add(1.0)], [variable])

    step = rig.step(train, np.array([1]), f32(2))
    rig.run(step, np.array([1]), f32(2))
    assert_close(variable, [1, 1, 3])
    assert_close(rates, [2, 2, 2])
