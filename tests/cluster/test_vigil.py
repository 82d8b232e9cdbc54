"""The watch on stability: which pushes it pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

import paceline as tf
from paceline.cluster.vigil import Probe, Vigil
from paceline.testing import assert_close


def probe(form: str, weight: float, gradient: float) -> Probe:
    return Probe(form, [np.float32([weight])], [np.float32([gradient])])


def test_the_second_of_a_pair_is_wanted_where_there_is_a_first_one() -> None:
    vigil = Vigil()
    assert [n for n in range(1, 40) if vigil.wants(0, n)] == [16, 32]
    vigil.observe(0, 16, probe("a", 1.0, 1.0))
    assert vigil.wants_steps(0, 17)
    assert not vigil.wants_steps(1, 17)
    vigil.forget()
    assert not vigil.wants_steps(0, 17)


def test_nothing_is_kept_of_a_second_one_whose_first_was_forgotten() -> None:
    vigil = Vigil()
    vigil.observe(0, 16, probe("a", 1.0, 1.0))
    second = probe("a", 0.5, 0.5)
    second.note([np.float32([0.5])], [np.float32([0.25])], 0)
    vigil.forget()
    vigil.observe(0, 17, second)
    assert not vigil.wants_steps(0, 17)


def test_pushes_for_other_weights_make_no_pair() -> None:
    """Steps take turns, each with as many gradients as the other, of other shapes."""
    strategy = tf.distribute.ParameterServerStrategy(cluster=tf.cluster.Local(1))
    with strategy.scope():
        variables = [tf.Variable(np.ones(shape, np.float32)) for shape in ((3, 4), (4, 5))]
        optimizers = [tf.keras.optimizers.SGD(0.1) for _ in variables]
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def step_of(variable: Any, optimizer: Any) -> Any:
        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.keras.ops.sum(variable * variable)
            gradients = tape.gradient(loss, [variable])
            optimizer.apply_gradients(zip(gradients, [variable], strict=True))

        return step

    steps = list(map(step_of, variables, optimizers))
    for number in range(40):
        coordinator.schedule(steps[number % 2])
    coordinator.join()
    for variable in variables:
        assert_close(variable, np.full(variable.shape, 0.8**20, np.float32))
