"""`paceline.function` where others have a hand in it: threads, copies, several strategies."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.errors import ContextError
from paceline.testing import EXACT, assert_close
from replica_values import mirrored_strategy

if TYPE_CHECKING:
    from collections.abc import Callable


class Scaler:
    """With a compiled method that uses and changes what the instance holds."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.total = tf.Variable(0.0)

    @tf.function
    def step(self, x: Any) -> Any:
        self.total.assign_add(x)
        return x * self.factor


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copied_instance_runs_its_own_method(copied: Callable[[Any], Any]) -> None:
    original = Scaler(2.0)
    original.step(jnp.asarray(1.0))
    other = copied(original)
    other.factor, other.total = 10.0, tf.Variable(5.0)
    assert_close(other.step(jnp.asarray(1.0)), 10.0)
    assert_close([original.total, other.total], [1.0, 6.0])
    assert_close(original.step(jnp.asarray(1.0)), 2.0)


class Doubler:
    @tf.function
    def step(self, x: Any) -> Any:
        return x * 2


def test_an_instance_pickles_after_its_method_ran() -> None:
    original = Doubler()
    original.step(jnp.asarray(1.0))
    loaded = pickle.loads(pickle.dumps(original))
    assert_close(loaded.step(jnp.asarray(3.0)), 6.0)


def test_threads_share_variables() -> None:
    strategy = mirrored_strategy(2)
    with strategy.scope():
        total = tf.Variable(jnp.zeros(100), aggregation="sum")

    @tf.function
    def step(x: Any) -> Any:
        strategy.run(lambda: total.assign_add(x))
        return total.value

    step(jnp.ones(100))
    errors: list[Exception] = []
    is_over = threading.Event()

    def work(use: Callable[[], Any]) -> None:
        try:
            use()
        except Exception as error:
            errors.append(error)

    def train() -> None:
        for _ in range(50):
            step(jnp.ones(100))

    def watch() -> None:
        while not is_over.is_set():
            np.asarray(total.value)
            np.asarray(total.values[1])

    trainers = [threading.Thread(target=work, args=(train,)) for _ in range(2)]
    watcher = threading.Thread(target=work, args=(watch,))
    for thread in (*trainers, watcher):
        thread.start()
    for thread in trainers:
        thread.join()
    is_over.set()
    watcher.join()
    assert errors == []
    for part in total.values:
        assert_close(part, np.full(100, 202.0), EXACT)


def strategies_and_variables() -> tuple[Any, Any, Any, Any]:
    strategies = mirrored_strategy(2), tf.distribute.MirroredStrategy(["cpu:2", "cpu:3"])
    variables = []
    for number, strategy in enumerate(strategies):
        with strategy.scope():
            variables.append(tf.Variable(1.0, name=f"v{number}", aggregation="sum"))
    return *strategies, *variables


def count() -> Any:
    return tf.distribute.get_replica_context().all_reduce("sum", jnp.asarray(1.0))


def test_variables_of_two_strategies_need_two_functions() -> None:
    first, second, v, w = strategies_and_variables()
    before = [variable.value.sharding for variable in (v, w)]
    with pytest.raises(ContextError, match="Mixing strategies") as raised:
        tf.function(lambda: v.assign_add(w.value))()
    for part in (repr(first), repr(second), "'v0'", "'v1'"):
        assert part in str(raised.value)
    assert_close([v, w], [1.0, 1.0])
    assert [variable.value.sharding for variable in (v, w)] == before
    with pytest.raises(ContextError, match="Mixing strategies"):
        tf.function(lambda: (v.value, second.run(count)))()


def test_runs_of_two_strategies_need_two_functions() -> None:
    first, second, *_ = strategies_and_variables()
    with pytest.raises(ContextError, match="Mixing strategies") as raised:
        tf.function(lambda: (first.run(count), second.run(count)))()
    for part in (repr(first), repr(second), "strategy.run"):
        assert part in str(raised.value)


def test_variables_of_no_strategy_may_stand_beside_those_of_one() -> None:
    _, _, v, _ = strategies_and_variables()
    plain = tf.Variable(2.0)
    assert_close(tf.function(lambda: v + plain)(), 3.0)
