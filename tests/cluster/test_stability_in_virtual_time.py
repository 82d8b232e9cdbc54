"""Delayed descent through the whole path to the servers is stable up to the rate of the formula.

Equal workers that free-run push in turn, and so each gradient is one of n - 1 updates ago. Descent
with delay d on curvature c is stable exactly for rate * c < 2 sin(pi / (2 (2 d + 1))) (Levin, May).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.store.stability import last_stable_rate
from paceline.testing import assert_staleness, pushes_of
from virtual_runs import simulated

SHARES = np.array([0.9, 0.98, 0.99, 1.01, 1.02, 1.1])


@pytest.mark.filterwarnings("ignore:.*(unstable|instability)")
@pytest.mark.parametrize(
    ("delay", "limit"), [(0, 2.0), (1, 1.0), (3, 0.4450), (7, 0.2091), (31, 0.0499)]
)
def test_the_last_stable_rate_within_1_percent(delay: int, limit: float) -> None:
    assert round(last_stable_rate(delay), 4) == limit
    strategy = simulated(delay + 1)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    curvatures = jnp.asarray(SHARES * last_stable_rate(delay), "float32")
    with strategy.scope():
        w = tf.Variable(jnp.ones(len(SHARES)))
        optimizer = tf.keras.optimizers.SGD(1.0)
        optimizer.build([w])

    @tf.function
    def step() -> object:
        read = jnp.asarray(w.value)
        optimizer.apply_gradients([(curvatures * read, w)])
        return read

    num_steps = 96 * (delay + 1)
    with pushes_of(strategy) as pushes:
        values = [coordinator.schedule(step) for _ in range(num_steps)]
        reads = np.abs(np.stack(coordinator.fetch(values)))
    assert_staleness(pushes[delay:], mean=delay, most=delay)
    assert strategy.driver.clock.now == 96.0
    third = num_steps // 3
    earlier, later = reads[third : 2 * third].max(0), reads[2 * third :].max(0)
    assert (later < earlier).tolist() == (SHARES < 1).tolist()
