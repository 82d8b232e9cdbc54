"""Contract 2.2 and 2.3: whose a variable is, and what other strategies make of it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import paceline as tf
from replica_values import components, mirrored_strategy, per_replica, replica_number

Aggregation = tf.VariableAggregation
every_number_of_replicas = pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])


def variable(strategy: Any, initial_value: Any, aggregation: str, **options: Any) -> Any:
    with strategy.scope():
        return tf.Variable(initial_value, aggregation=Aggregation[aggregation], **options)


@pytest.mark.contract(30)
@every_number_of_replicas
def test_a_variable_made_outside_is_one_that_replicas_share(
    mirrored: Any, num_replicas: int, run: Any
) -> None:
    v = tf.Variable(0.0)
    run(mirrored, lambda: v.assign_add(1 + replica_number()))
    total = num_replicas * (num_replicas + 1) / 2
    assert float(v.value) == total
    run(mirrored, lambda: v.assign_sub(1 + replica_number()))
    assert float(v.value) == 0.0
    run(mirrored, lambda: v.assign_add(1.0))
    assert float(v.value) == num_replicas


@pytest.mark.contract(34)
@pytest.mark.parametrize("in_run", [False, True])
@pytest.mark.parametrize("kind", ["mirrored", "one_device"])
def test_use_under_another_strategy_is_refused(mirrored: Any, in_run: bool, kind: str) -> None:
    v = variable(mirrored, 1.0, "MEAN", name="owned")
    other = mirrored_strategy(3) if kind == "mirrored" else tf.distribute.OneDeviceStrategy("cpu:0")
    for use in (
        lambda: v.value,
        lambda: v + 1,
        lambda: v.assign(2.0),
        lambda: v.assign_add(jnp.asarray(2.0)),
    ):
        text = r"(?s)[Mm]ixing strategies.*'owned'"
        with pytest.raises(RuntimeError, match=text), other.scope():
            other.run(use) if in_run else use()
    assert components(v) == [1.0, 1.0]
    assert not tf.distribute.has_strategy()


@pytest.mark.contract(34)
@pytest.mark.parametrize("call", ["in_scope", "run_of_function", "run_in_function"])
def test_compiled_use_under_another_strategy_is_refused(mirrored: Any, call: str) -> None:
    v = variable(mirrored, 1.0, "MEAN", name="owned")
    other = mirrored_strategy(3)
    use = tf.function(lambda: v.assign_add(1.0))
    step = tf.function(lambda: other.run(use))
    calls = {"in_scope": use, "run_of_function": lambda: other.run(use), "run_in_function": step}
    with pytest.raises(RuntimeError, match=r"(?s)[Mm]ixing strategies.*'owned'"), other.scope():
        calls[call]()
    assert components(v) == [1.0, 1.0]


@pytest.mark.contract(40)
@pytest.mark.parametrize("kind", ["default", "one_device", 1, 2, 3, 4])
def test_a_global_step_counts_steps(run: Any, kind: Any) -> None:
    strategies = {
        "default": tf.distribute.get_strategy,
        "one_device": lambda: tf.distribute.OneDeviceStrategy("cpu:0"),
    }
    strategy = strategies.get(kind, lambda: mirrored_strategy(kind))()
    with strategy.scope():
        step = tf.Variable(
            0, dtype="int64", trainable=False, aggregation=Aggregation.ONLY_FIRST_REPLICA
        )

    def replica_fn() -> Any:
        step.assign_add(1)
        return step.read_value()

    count = strategy.num_replicas_in_sync
    assert per_replica(strategy, run(strategy, replica_fn)) == [1] * count
    assert per_replica(strategy, run(strategy, replica_fn)) == [2] * count
    assert components(step) == [2] * count
