"""Every strategy in one process, crossed with what all of them promise. A new strategy is a row."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.testing import EXACT, GOLDEN, REFERENCE, assert_close
from replica_values import mirrored_strategy

if TYPE_CHECKING:
    from collections.abc import Callable

Aggregation = tf.VariableAggregation
Synchronization = tf.VariableSynchronization

STRATEGIES: dict[str, Callable[[], Any]] = {
    "default": tf.distribute.get_strategy,
    "one device": lambda: tf.distribute.OneDeviceStrategy("cpu:1"),
    "mirrored x1": lambda: mirrored_strategy(1),
    "mirrored x2": lambda: mirrored_strategy(2),
    "mirrored x3": lambda: mirrored_strategy(3),
    "mirrored x4": lambda: mirrored_strategy(4),
}
RATE = 0.1


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Any:
    return STRATEGIES[request.param]()


@pytest.fixture(params=["eager", "run(function)", "function(run)"])
def compile_step(request: pytest.FixtureRequest) -> Any:
    """Makes a step over a distributed batch of a replica function."""

    def make(strategy: Any, replica_fn: Any) -> Any:
        if request.param == "run(function)":
            replica_fn = tf.function(replica_fn)

        def step(*batch: Any) -> Any:
            return strategy.run(replica_fn, args=batch)

        return tf.function(step) if request.param == "function(run)" else step

    return make


class Model:
    """Linear regression, trained by plain gradient descent in the spelling of tf.distribute."""

    def __init__(self, strategy: Any, compile_step: Any, state: Any = None) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.weight = tf.Variable([[1.0], [-1.0], [0.5]], aggregation=Aggregation.SUM)
            self.bias = tf.Variable(0.25, aggregation=Aggregation.SUM)
            self.steps = tf.Variable(
                0, dtype="int64", aggregation=Aggregation.ONLY_FIRST_REPLICA, trainable=False
            )
            self.seen = tf.Variable(
                0, synchronization=Synchronization.ON_READ, aggregation=Aggregation.SUM
            )
            self.largest = tf.Variable(
                0.0,
                synchronization=Synchronization.ON_READ,
                aggregation=Aggregation.ONLY_FIRST_REPLICA,
            )
        self.variables = [self.weight, self.bias, self.steps, self.seen, self.largest]
        for variable, value in zip(self.variables, state or (), strict=False):
            variable.assign(value)
        self._step = compile_step(strategy, self._replica_step)

    def _replica_step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            error = jnp.squeeze(x @ self.weight + self.bias, 1) - y
            loss = tf.nn.compute_average_loss(error**2)
            loss = loss + tf.nn.scale_regularization_loss(0.01 * jnp.sum(self.weight**2))
        gradients = tape.gradient(loss, [self.weight, self.bias])
        for variable, gradient in zip([self.weight, self.bias], gradients, strict=True):
            variable.assign_sub(RATE * gradient)
        self.steps.assign_add(1)
        self.seen.assign_add(jnp.asarray(x.shape[0]))
        context = tf.distribute.get_replica_context()
        self.largest.assign(context.all_reduce("sum", jnp.sum(x)))
        return loss

    def fit(self, batches: Any) -> list[float]:
        """Trains over the batches and returns the loss of each step."""
        losses = []
        for batch in self.strategy.experimental_distribute_dataset(batches):
            loss = self.strategy.reduce("sum", self._step(*batch), axis=None)
            losses.append(float(loss))
        return losses

    @property
    def state(self) -> list[Any]:
        """The logical values of all variables."""
        return [variable.numpy() for variable in self.variables]


def batches(*sizes: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((n, 3)).astype("float32"), rng.standard_normal(n).astype("float32"))
        for n in sizes
    ]


def expected(data: list[Any]) -> tuple[list[float], list[Any]]:
    """The same training in JAX alone."""

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        weight, bias = weights
        return jnp.mean((x @ weight[:, 0] + bias - y) ** 2) + 0.01 * jnp.sum(weight**2)

    weights: Any = (jnp.asarray([[1.0], [-1.0], [0.5]]), jnp.asarray(0.25))
    losses = []
    for x, y in data:
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        weights = jax.tree.map(lambda w, g: w - RATE * g, weights, gradients)
        losses.append(float(loss))
    seen = sum(len(x) for x, _ in data)
    return losses, [*weights, len(data), seen, np.sum(data[-1][0])]


def test_it_equals_a_single_device(strategy: Any, compile_step: Any) -> None:
    data = batches(12, 12, 7, 2, 1)
    model = Model(strategy, compile_step)
    losses = model.fit(data)
    expected_losses, expected_state = expected(data)
    assert_close(np.float32(losses), np.float32(expected_losses), REFERENCE)
    assert_close(model.state, expected_state, GOLDEN)


def test_it_keeps_the_dtype(strategy: Any, compile_step: Any) -> None:
    count = strategy.num_replicas_in_sync
    dtypes = ["float32", "float16", "bfloat16", "int32", "uint8"]
    with strategy.scope():
        written = [tf.Variable([1, 2], dtype=d, aggregation=Aggregation.SUM) for d in dtypes]
        read = [
            tf.Variable(
                [0, 0],
                dtype=dtype,
                synchronization=Synchronization.ON_READ,
                aggregation=Aggregation.SUM,
            )
            for dtype in dtypes
        ]

    def replica_fn() -> Any:
        ones = [jnp.ones(2, dtype) for dtype in dtypes]
        for variables in (written, read):
            for variable, one in zip(variables, ones, strict=True):
                variable.assign_add(one)
        context = tf.distribute.get_replica_context()
        total, gathered = context.all_reduce("sum", ones), context.all_gather(ones, 0)
        return [variable * 1 for variable in written], total, gathered

    results = compile_step(strategy, replica_fn)()
    whole = results[2]
    for i, dtype in enumerate(dtypes):
        for result in results:
            for part in strategy.experimental_local_results(result[i]):
                assert part.dtype == dtype
        assert strategy.reduce("sum", results[1][i], axis=None).dtype == dtype
        assert strategy.gather(whole[i], axis=0).dtype == dtype
        for variable, value in (
            (written[i], [1 + count, 2 + count]),
            (read[i], [count] * 2),
        ):
            assert variable.dtype == variable.value.dtype == dtype
            assert {part.dtype for part in variable.values} == {jnp.dtype(dtype)}
            assert_close(variable.numpy().astype("float32"), np.float32(value), EXACT)


@pytest.mark.parametrize("sizes", [(12,), (12, 7)], ids=["equal batches", "a short batch"])
def test_it_compiles_once_per_batch_size(
    strategy: Any, sizes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(strategy, lambda strategy, fn: tf.function(lambda *b: strategy.run(fn, args=b)))
    distributed = list(strategy.experimental_distribute_dataset(batches(*sizes * 3)))
    for batch in distributed[: len(sizes)]:
        model._step(*batch)
    with caplog.at_level(logging.DEBUG, "jax"), jax.log_compiles():
        for batch in distributed[len(sizes) :]:
            model._step(*batch)
    assert [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()] == []
    assert model._step.num_traces == len(sizes)
    assert int(model.steps.value) == len(distributed)


def test_an_error_restores_the_scope_and_the_state(strategy: Any, compile_step: Any) -> None:
    with strategy.scope():
        variable = tf.Variable(1.0, aggregation=Aggregation.SUM)
    error = KeyError("mine")
    is_failing = [True]

    def replica_fn() -> Any:
        variable.assign_add(jnp.asarray(1.0))
        if is_failing:
            raise error
        return variable * 1.0

    step = compile_step(strategy, replica_fn)
    before = tf.distribute.get_strategy(), tf.distribute.has_strategy()
    with pytest.raises(KeyError, match="mine") as caught:
        step()
    assert caught.value is error
    assert (tf.distribute.get_strategy(), tf.distribute.has_strategy()) == before
    assert not tf.distribute.in_cross_replica_context()
    is_failing.clear()
    total = float(variable.value) + strategy.num_replicas_in_sync
    for part in strategy.experimental_local_results(step()):
        assert part == total


@pytest.mark.parametrize("target", ["default", "mirrored x2", "mirrored x3"])
def test_the_state_moves_to_every_strategy(strategy: Any, target: str) -> None:
    def compiled(strategy: Any, fn: Any) -> Any:
        compiled_fn = tf.function(fn)
        return lambda *batch: strategy.run(compiled_fn, args=batch)

    data = batches(8, 7, 8, 5)
    first = Model(strategy, compiled)
    first.fit(data[:2])
    second = Model(STRATEGIES[target](), compiled, first.state)
    assert_close(second.state, first.state, EXACT)
    second.fit(data[2:])
    state = expected(data)[1]
    assert_close(second.state, state, GOLDEN)
