"""The compiled assembly against one device: equal, uneven and empty replica batches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.data.placing import per_replica
from paceline.errors import ReplicaMismatch, Unsupported
from paceline.testing import REFERENCE, assert_close


def strategy(num_replicas: int) -> tf.distribute.MirroredStrategy:
    return tf.distribute.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])


def context() -> Any:
    return tf.distribute.get_replica_context()


@pytest.mark.parametrize("num_examples", [9, 8, 7, 5, 3, 2, 1])
@pytest.mark.parametrize("num_replicas", [2, 3, 4])
def test_a_step_with_a_synchronised_statistic_equals_one_device(
    num_examples: int, num_replicas: int
) -> None:
    rng = np.random.default_rng(num_examples)
    x = rng.standard_normal((num_examples, 4)).astype("float32")
    y = rng.standard_normal(num_examples).astype("float32")

    def expected_loss(w: jax.Array) -> jax.Array:
        return (((x - x.mean(0)) @ w - y) ** 2).mean()

    expected, gradient = jax.value_and_grad(expected_loss)(jnp.ones(4))
    replicas = strategy(num_replicas)
    w = tf.Variable(np.ones(4, "float32"), aggregation=tf.VariableAggregation.MEAN)

    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        count = context().all_reduce("sum", jnp.float32(x.shape[0]))
        mean = context().all_reduce("sum", x.sum(0)) / count
        with tf.GradientTape() as tape:
            loss = (((x - mean) @ w.value - y) ** 2).sum() / count
        w.assign(w.value - 0.1 * context().all_reduce("sum", tape.gradient(loss, w)))
        return loss

    batch = per_replica((x, y), replicas)
    losses = replicas.run(tf.function(step), args=batch)
    assert_close(replicas.reduce("sum", losses, axis=None), expected, REFERENCE)
    assert_close(w.numpy(), 1 - 0.1 * gradient, REFERENCE)


def test_uneven_results_come_back_with_their_own_shapes() -> None:
    replicas = strategy(3)
    squares = replicas.run(
        tf.function(lambda x: x**2), args=(per_replica(np.arange(7.0), replicas),)
    )
    assert [part.tolist() for part in squares.values] == [[0, 1, 4], [9, 16], [25, 36]]
    assert replicas.gather(squares, axis=0).tolist() == [0, 1, 4, 9, 16, 25, 36]


def test_all_gather_of_uneven_batches_gives_every_replica_all_rows() -> None:
    replicas = strategy(3)

    def gather(x: jax.Array) -> jax.Array:
        return context().all_gather(x, axis=0)

    everywhere = replicas.run(tf.function(gather), args=(per_replica(np.arange(5.0), replicas),))
    assert [part.tolist() for part in everywhere.values] == [[0, 1, 2, 3, 4]] * 3


def test_collectives_inside_scan_and_cond_meet() -> None:
    replicas = strategy(2)

    def step() -> jax.Array:
        one = jnp.float32(1)

        def body(total: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return context().all_reduce("sum", total), None

        scanned, _ = jax.lax.scan(body, one, None, length=3)
        chosen = jax.lax.cond(
            scanned > 0, lambda: context().all_reduce("sum", one), lambda: jnp.float32(0)
        )
        return scanned + chosen

    total = replicas.run(tf.function(step))
    assert [float(part) for part in total.values] == [8 + 2] * 2


def test_a_collective_in_a_loop_of_uneven_replicas_is_refused() -> None:
    replicas = strategy(2)

    def step(x: jax.Array) -> jax.Array:
        def body(total: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return context().all_reduce("sum", total), None

        return jax.lax.scan(body, x.sum(), None, length=2)[0]

    with pytest.raises(Unsupported, match=r"inside `scan`.*multiple of the number of replicas"):
        replicas.run(tf.function(step), args=(per_replica(np.arange(3.0), replicas),))


def test_a_collective_that_only_some_batch_sizes_reach_is_refused() -> None:
    replicas = strategy(2)

    def step(x: jax.Array) -> jax.Array:
        return context().all_reduce("sum", x.sum()) if x.shape[0] > 1 else x.sum()

    with pytest.raises(ReplicaMismatch, match="same number of meeting points"):
        replicas.run(tf.function(step), args=(per_replica(np.arange(3.0), replicas),))


def test_a_structure_that_depends_on_the_batch_size_is_refused() -> None:
    replicas = strategy(2)

    def step(x: jax.Array) -> Any:
        return (x, x) if x.shape[0] > 1 else x

    with pytest.raises(ReplicaMismatch, match="same structure"):
        replicas.run(tf.function(step), args=(per_replica(np.arange(3.0), replicas),))


def test_an_odd_batch_costs_one_more_trace_and_keeps_the_full_one() -> None:
    replicas = strategy(2)
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def step(x: Any) -> None:
        replicas.run(lambda x: total.assign_add(x.sum()), args=(x,))

    for size in (4, 4, 3, 4, 3):
        step(per_replica(np.ones(size, "float32"), replicas))
    assert total.numpy() == 18
    assert step.num_traces == 2


def test_a_number_made_from_the_batch_size_may_be_returned() -> None:
    replicas = strategy(2)
    counts = replicas.run(
        tf.function(lambda x: jnp.asarray(x.shape[0])),
        args=(per_replica(np.arange(3.0), replicas),),
    )
    assert [int(count) for count in counts.values] == [2, 1]
