"""The limit on steps under way."""

from __future__ import annotations

import jax.numpy as jnp

import paceline as tf
from paceline.program.backpressure import Backpressure


class Token:
    """Stands for an output of a step; writes down that it was waited for."""

    def __init__(self, number: int, waited: list[int]) -> None:
        self.number = number
        self.waited = waited

    def block_until_ready(self) -> None:
        self.waited.append(self.number)


def test_the_oldest_step_is_waited_for_when_sixteen_are_under_way() -> None:
    waited: list[int] = []
    backpressure = Backpressure()
    for number in range(16):
        backpressure.admit(Token(number, waited))
    assert waited == []
    for number in range(16, 19):
        backpressure.admit(Token(number, waited))
    assert waited == [0, 1, 2]


def test_a_long_loop_that_reads_nothing_ends() -> None:
    # Without the limit, JAX locks up within a few hundred steps: docs/limits/cpu_collectives.py.
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def step() -> None:
        total.assign_add(jnp.float32(1))

    for _ in range(1000):
        strategy.run(step)
    assert total.numpy() == 2000
