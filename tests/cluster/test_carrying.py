"""Arrays between the devices of a process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import paceline as tf
from paceline.cluster.carrying import carried

HERE, THERE = jax.devices()[:2]


def test_on_one_device_nothing_moves() -> None:
    arrays = [jnp.ones(3)]
    assert carried(arrays, HERE, HERE) is arrays


def test_a_call_elsewhere_takes_what_is_carried() -> None:
    arrays = {"kernel": jax.device_put(jnp.arange(6.0).reshape(2, 3), HERE), "rows": (1,)}
    arrays["rows"] = (jax.device_put(jnp.asarray([1, 2], jnp.bfloat16), HERE),)
    moved = carried(arrays, HERE, THERE)
    with jax.default_device(THERE):
        doubled = jax.jit(lambda nest: jax.tree.map(lambda x: x * 2, nest))(moved)
    assert doubled["kernel"].devices() == {THERE}
    np.testing.assert_array_equal(doubled["kernel"], [[0, 2, 4], [6, 8, 10]])
    assert doubled["rows"][0].dtype == jnp.bfloat16


def test_it_lasts_as_long_as_it_is_needed() -> None:
    array = jax.device_put(jnp.arange(1000.0), HERE)
    moved = carried([array], HERE, THERE)
    del array
    np.testing.assert_array_equal(moved[0], np.arange(1000.0))


def test_typed_keys_are_moved_as_they_are() -> None:
    key = jax.device_put(jax.random.key(7), HERE)
    (moved,) = carried([key], HERE, THERE)
    assert moved.devices() == {THERE}
    np.testing.assert_array_equal(jax.random.key_data(moved), jax.random.key_data(key))


def test_what_workers_assign_lies_where_the_variables_are() -> None:
    """Also where an update reads no variable, which would say where that is."""
    cluster = tf.cluster.Local(2, devices=[HERE, THERE])
    strategy = tf.distribute.ParameterServerStrategy(cluster=cluster)
    with strategy.scope():
        variable = tf.Variable(np.zeros(3, np.float32))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step(x: Any) -> None:
        variable.assign(x)

    seen = set()
    for number in range(20):
        coordinator.schedule(step, args=(np.full(3, number, np.float32),))
        coordinator.join()
        seen |= variable.value.devices()
    assert seen == {HERE}
    assert {worker.index for worker in strategy.monitor.report().workers if worker.applied} == {
        0,
        1,
    }
