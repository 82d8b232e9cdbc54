"""An update takes over the memory of gradients that nobody else has, and of no others."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.cluster import Local, Simulated
from paceline.testing.tolerances import assert_close
from store_rig import Rig, f32

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.steps import Step
    from store_rig import Computed

BATCH = np.arange(6, dtype=np.float32).reshape(2, 3)


def given(step: Step, *args: Any) -> int:
    """How many of its push's arrays a step gives away."""
    arrays = [leaf for leaf in jax.tree.leaves(args) if hasattr(leaf, "shape")]
    residuals = step.worker_half.shapes([], arrays)
    return len(step.given(residuals, [], arrays))


def with_given(computed: Computed, step: Step, *args: Any) -> Computed:
    """The push, as a worker at the store's device makes it."""
    residuals = computed.push.update.residuals  # pyright: ignore[reportAttributeAccessIssue]
    update: Any = computed.push.update
    update = dataclasses.replace(update, given=step.given(residuals, [], list(args)))
    return dataclasses.replace(computed, push=dataclasses.replace(computed.push, update=update))


@pytest.mark.parametrize("make", [tf.keras.optimizers.SGD, tf.keras.optimizers.Adam])
def test_gradients_are_gone_after_their_update(make: Callable[..., Any]) -> None:
    rig, optimizer = Rig(), make(0.5)
    weights = tf.Variable(np.ones(3), dtype="float32")

    def train(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.sum(batch @ weights)
        optimizer.apply([tape.gradient(loss, weights)], [weights])

    step = rig.step(train, BATCH)
    push = with_given(rig.compute(step, BATCH), step, BATCH)
    kept = rig.compute(step, BATCH, worker=1)
    plain = getattr(keras.optimizers, make.__name__)(0.5)
    expected = keras.Variable(np.ones(3, np.float32))
    for one, is_given in ((push, True), (kept, False)):
        (gradient,) = one.push.update.residuals  # pyright: ignore[reportAttributeAccessIssue]
        rig.apply(one)
        plain.apply([jnp.asarray(BATCH.sum(0))], [expected])
        assert_close(weights, expected)
        assert gradient.is_deleted() is is_given


def test_what_others_have_is_not_given_away() -> None:
    rig, sgd = Rig(), tf.keras.optimizers.SGD(1.0)
    one, two = (tf.Variable(np.zeros(3), dtype="float32", name=name) for name in ("one", "two"))
    half = tf.Variable(np.zeros(3), dtype="float32")

    def argument(gradient: Any) -> None:
        sgd.apply([gradient], [one])

    def result(batch: Any) -> Any:
        gradient = 2.0 * batch
        sgd.apply([gradient], [one])
        return gradient

    def twice(batch: Any) -> None:
        gradient = 2.0 * batch
        sgd.apply([gradient, gradient], [one, two])

    def snapshot(batch: Any) -> None:
        sgd.apply([half.value, 2.0 * batch], [one, two])

    sgd.build([one, two])
    vector = f32(1, 2, 3)
    found = [given(rig.step(f, vector), vector) for f in (argument, result, twice, snapshot)]
    assert found == [0, 0, 0, 1]


def test_variables_on_several_servers_keep_the_gradients() -> None:
    rig, sgd = Rig(servers=2), tf.keras.optimizers.SGD(1.0)
    one, two = (tf.Variable(np.zeros(3), dtype="float32", name=name) for name in ("one", "two"))
    sgd.build([one, two])
    step = rig.step(lambda x: sgd.apply([2 * x, 3 * x], [one, two]), f32(1, 2, 3))
    assert len(step.store_halves.parts) == 2
    assert given(step, f32(1, 2, 3)) == 0


@pytest.mark.parametrize("cluster", [Local(2), Simulated(2)], ids=["local", "simulated"])
def test_arguments_and_results_of_steps_stay_readable(cluster: Any) -> None:
    """Arrays of the program that are gradients, too; over the pushes that are watched."""
    strategy = tf.distribute.ParameterServerStrategy(cluster=cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = tf.Variable(np.zeros(3), dtype="float32")
        sgd = tf.keras.optimizers.SGD(1.0)
        sgd.build([weights])

    @tf.function
    def returned(x: Any) -> Any:
        gradient = 2.0 * x
        sgd.apply([gradient], [weights])
        return gradient

    @tf.function
    def passed(gradient: Any) -> None:
        sgd.apply([gradient], [weights])

    array = jnp.asarray(f32(1, 2, 3))
    results = []
    for _ in range(20):
        results.append(coordinator.schedule(returned, args=(array,)))
        coordinator.schedule(passed, args=(array,))
    coordinator.join()
    for result in results:
        assert_close(result.fetch(), f32(2, 4, 6))
    assert_close(array, f32(1, 2, 3))
