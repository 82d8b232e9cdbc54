"""Steps on distributed batches: uneven, short and empty ones give the single-device result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.data import ArrayBatches
from paceline.testing.tolerances import EXACT, assert_close

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., Any]


def _run_in_a_function(strategy: Any, fn: Callable[..., Any], *args: Any) -> Any:
    return tf.function(lambda *own: strategy.run(fn, args=own))(*args)


@pytest.fixture(
    params=[
        lambda strategy, fn, *args: strategy.run(fn, args=args),
        lambda strategy, fn, *args: strategy.run(tf.function(fn), args=args),
        _run_in_a_function,
    ],
    ids=["eager", "run_of_function", "run_in_function"],
)
def run(request: pytest.FixtureRequest) -> Run:
    """`strategy.run` in each of its spellings."""
    return request.param


def parts(strategy: Any, value: Any) -> list[Any]:
    return [np.asarray(part).tolist() for part in strategy.experimental_local_results(value)]


def floats(values: list[float], size: int) -> ArrayBatches:
    return ArrayBatches(np.array(values, np.float32), batch_size=size)


@pytest.mark.contract(70)
def test_each_replica_works_on_its_part(two: Any, run: Run) -> None:
    dataset = two.experimental_distribute_dataset(floats([5, 6, 7, 8], 2))
    got = [parts(two, run(two, lambda x: x * x, batch)) for batch in dataset]
    assert got == [[[25], [36]], [[49], [64]]]


@pytest.mark.contract(70)
def test_each_replica_differentiates_its_part(two: Any, run: Run) -> None:
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    dataset = two.experimental_distribute_dataset(floats([5, 6, 7, 8], 2))
    got = [parts(two, run(two, gradient, batch)) for batch in dataset]
    assert got == [[[10], [12]], [[14], [16]]]


@pytest.mark.contract(71)
def test_means_of_an_uneven_batch(two: Any, run: Run) -> None:
    batch = next(iter(two.experimental_distribute_dataset(floats([5, 6, 7], 4))))
    mean, size, same = run(two, lambda x: (jnp.mean(x), jnp.asarray(x.shape[0]), x), batch)
    assert parts(two, mean) == [5.5, 7.0]
    assert parts(two, size) == [2, 1]
    assert_close(two.reduce("MEAN", same, axis=0), 6.0, EXACT)


@pytest.mark.contract(72)
def test_an_empty_replica_runs_too(two: Any, run: Run) -> None:
    batch = next(iter(two.experimental_distribute_dataset(floats([5], 2))))
    square, zeros = run(two, lambda x: (x * x, jnp.zeros(3)), batch)
    assert parts(two, square) == [[25.0], []]
    assert parts(two, zeros) == [[0.0] * 3] * 2


@pytest.mark.contract(75)
@pytest.mark.parametrize("wrap", [lambda fn: fn, tf.function], ids=["plain", "function"])
def test_one_function_iterates_twice(two: Any, wrap: Callable[[Any], Any]) -> None:
    with two.scope():
        counter = tf.Variable(
            1.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="counter"
        )
    dataset = two.experimental_distribute_dataset(floats([5, 6, 7, 8], 2))

    def step(x: Any) -> Any:
        counter.assign_add(jnp.ones(()))
        return jnp.mean(x)

    @wrap
    def passes() -> Any:
        products = []
        for _ in range(2):
            product = jnp.ones(())
            for x in dataset:
                product = product * two.reduce("MEAN", two.run(step, args=(x,)), axis=None)
            products.append(product)
        return sum(products)

    assert_close(passes(), 82.5)
    assert_close(counter, 5.0)


@pytest.mark.contract(76)
def test_side_effects_up_to_the_end_stay(two: Any, run: Run) -> None:
    with two.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM, name="total")
    iterator = iter(two.experimental_distribute_dataset(floats([5, 6, 7, 8], 2)))

    def step(x: Any) -> None:
        total.assign_add(jnp.sum(x))

    def train_to_the_end() -> None:
        while True:
            run(two, step, iterator.get_next())

    with pytest.raises(tf.errors.EndOfData):
        train_to_the_end()
    assert_close(total, 26.0)


@pytest.mark.case("R34")
@pytest.mark.case("R40")
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_batch_size_gives_the_single_device_loss_and_gradient(
    mirrored: Callable[[int], Any], run: Run, count: int
) -> None:
    strategy = mirrored(count)
    x = np.arange(1, 6, dtype=np.float32)
    weight = jnp.float32(1.0)

    def loss(weight: Any, x: Any, size: int) -> Any:
        return jnp.sum((weight * x) ** 2) / size

    for batch in strategy.experimental_distribute_dataset(ArrayBatches(x, batch_size=4)):
        own = strategy.experimental_local_results(batch)
        whole = np.concatenate(own)

        def step(x: Any, size: int = len(whole)) -> Any:
            return jax.value_and_grad(loss)(weight, x, size)

        value, gradient = run(strategy, step, batch)
        expected = jax.value_and_grad(loss)(weight, jnp.asarray(whole), len(whole))
        assert_close(strategy.reduce("SUM", value, axis=None), expected[0])
        assert_close(strategy.reduce("SUM", gradient, axis=None), expected[1])


@pytest.mark.case("R47")
def test_unequal_shares_count_by_example(two: Any, run: Run) -> None:
    shares = [np.ones(3, np.float32), np.full(1, 5, np.float32)]
    batch = next(iter(two.distribute_datasets_from_function(lambda _: shares)))
    assert_close(two.reduce("MEAN", run(two, lambda losses: losses, batch), axis=0), 2.0)


@pytest.mark.case("R44")
def test_a_loop_over_no_data_runs_nothing(two: Any) -> None:
    assert list(two.experimental_distribute_dataset([])) == []


@pytest.mark.case("R46")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_replica_that_runs_out_first_neither_hangs_nor_counts(compiled: bool) -> None:
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    batches = {0: [[2.0, 4.0], [6.0, 8.0]], 1: [[1.0, 3.0], [5.0, 7.0], [9.0, 11.0]]}

    def pipeline(context: tf.distribute.InputContext) -> Any:
        return [np.float32(batch) for batch in batches[context.input_pipeline_id]]

    dataset = strategy.distribute_datasets_from_function(
        pipeline,
        tf.distribute.InputOptions(
            experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA
        ),
    )
    loss = tf.keras.losses.MeanAbsoluteError()

    def replica(x: Any) -> Any:
        return loss(jnp.zeros_like(x), x)

    step = tf.function(replica) if compiled else replica
    losses = [strategy.reduce("sum", strategy.run(step, args=(x,)), axis=None) for x in dataset]
    # The third step is the mean of the two examples that are left.
    assert_close(losses, [(2 + 4 + 1 + 3) / 4, (6 + 8 + 5 + 7) / 4, (9 + 11) / 2])
