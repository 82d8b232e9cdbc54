"""Optimizers through the cut: overlapping pushes give the result of some serial order."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.errors import InvalidArgument
from paceline.testing.tolerances import GOLDEN, assert_close
from store_rig import HEAVY, Rig, cut_of, f32, num_bytes, store_primitives

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def rig() -> Rig:
    return Rig()


def _builtin() -> list[str]:
    found = vars(keras.optimizers).items()
    return sorted(
        name
        for name, value in found
        if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)
        if name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
    )


class Signum(keras.optimizers.Optimizer):
    """A user's optimizer: the sign of a momentum that it keeps, with a matrix product for show."""

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self.momenta = [self.add_variable_from_reference(v, "momentum") for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        momentum = self.momenta[self._get_variable_index(variable)]
        self.assign(momentum, 0.5 * momentum + gradient)
        turned = momentum.value
        if len(variable.shape) == 2:
            turned = turned @ jnp.ones((turned.shape[-1],) * 2)
        self.assign_sub(variable, learning_rate * jnp.sign(turned))


def _scheduled(k: Any) -> Any:
    return k.optimizers.Adam(k.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.01, 1]))


def _scaling(k: Any) -> Any:
    inner = k.optimizers.Adam(0.1)
    return k.optimizers.LossScaleOptimizer(inner, initial_scale=4, dynamic_growth_steps=2)


def _averaging(k: Any) -> Any:
    return k.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)


def _several(k: Any) -> Any:
    matrices, vectors = k.optimizers.Adam(0.1), k.optimizers.SGD(0.1)
    return k.optimizers.MultiOptimizer(lambda v: matrices if len(v.shape) == 2 else vectors)


OPTIMIZERS: dict[str, Any] = {
    name: (lambda k, name=name: getattr(k.optimizers, name)()) for name in _builtin()
} | {
    "momentum": lambda k: k.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "amsgrad": lambda k: k.optimizers.Adam(0.1, amsgrad=True),
    "centered": lambda k: k.optimizers.RMSprop(0.1, momentum=0.9, centered=True),
    "decay": lambda k: k.optimizers.AdamW(0.1, weight_decay=0.1),
    "clipnorm": lambda k: k.optimizers.Adam(0.1, clipnorm=0.01),
    "clipvalue": lambda k: k.optimizers.SGD(0.1, clipvalue=0.01),
    "global_clipnorm": lambda k: k.optimizers.SGD(0.1, global_clipnorm=0.1),
    "accumulation": lambda k: k.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "ema": _averaging,
    "schedule": _scheduled,
    "loss_scale": _scaling,
    "several": _several,
}


class Regression:
    """y = x w + b by least squares, for any optimizer of plain Keras and of ours."""

    start = (
        np.random.default_rng(0).normal(size=(4, 3)).astype("float32"),
        np.zeros(3, np.float32),
    )

    def __init__(self, variable: Any, optimizer: Any) -> None:
        self.variables = [variable(value) for value in self.start]
        self.optimizer = optimizer
        optimizer.build(self.variables)

    @staticmethod
    def loss(weights: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ weights[0] + weights[1] - y) ** 2)

    @staticmethod
    def batch(seed: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(seed)
        return tuple(rng.normal(size=(8, width)).astype("float32") for width in (4, 3))

    @property
    def state(self) -> list[Any]:
        return [np.asarray(v.value) for v in (*self.variables, *self.optimizer.variables)]

    def train(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss([v.value for v in self.variables], x, y)
        self.optimizer.apply(tape.gradient(loss, self.variables), self.variables)
        return loss

    def gradients(self, x: Any, y: Any) -> list[Any]:
        return jax.grad(self.loss)([v.value for v in self.variables], x, y)

    def apply(self, grads: list[Any]) -> None:
        """Applies gradients as plain Keras does."""
        own = self.optimizer.variables
        new = self.optimizer.stateless_apply(
            [v.value for v in own], grads, [v.value for v in self.variables]
        )
        for variable, value in zip((*self.variables, *own), (*new[0], *new[1]), strict=True):
            variable.assign(value)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_every_optimizer_gives_the_serial_result(rig: Rig, make: Callable[[Any], Any]) -> None:
    plain = Regression(keras.Variable, make(keras))
    ours = Regression(tf.Variable, make(tf.keras))
    step = rig.step(ours.train, *ours.batch(0))
    batches = [ours.batch(seed) for seed in range(7)]
    for batch in batches[:3]:  # no overlap: as one device
        plain.apply(plain.gradients(*batch))
        rig.run(step, *batch)
    assert_close(ours.state, plain.state, GOLDEN)
    for pair in (batches[3:5], batches[5:7]):
        gradients = [plain.gradients(*batch) for batch in pair]
        rig.overlap(step, *pair)
        for grads in gradients:
            plain.apply(grads)
    assert_close(ours.state, plain.state, GOLDEN)


def test_an_optimizer_of_the_user_may_be_heavy(rig: Rig) -> None:
    plain = Regression(keras.Variable, Signum(0.1))
    optimizer = rig.strategy.distribute(Signum(0.1))
    ours = Regression(tf.Variable, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = rig.step(ours.train, *ours.batch(0))
    assert "dot_general" in store_primitives(step)
    pair = [ours.batch(seed) for seed in (1, 2)]
    gradients = [plain.gradients(*batch) for batch in pair]
    rig.overlap(step, *pair)
    for grads in gradients:
        plain.apply(grads)
    assert_close(ours.state, plain.state, GOLDEN)
    assert num_bytes([cut_of(step).flat.avals[s] for s in cut_of(step).residuals]) == num_bytes(
        ours.variables
    )


@pytest.mark.parametrize("form", ["stateful", "stateless"])
def test_an_optimizer_that_does_not_follow_the_strategy_is_refused(rig: Rig, form: str) -> None:
    weight, plain = tf.Variable(0.0), keras.optimizers.SGD(0.1, momentum=0.9)
    plain.build([weight])

    def stateful(g: Any) -> None:
        plain.apply([g], [weight])

    def stateless(g: Any) -> Any:
        return plain.stateless_apply([v.value for v in plain.variables], [g], [weight.value])

    with pytest.raises(InvalidArgument, match=r"strategy\.distribute"):
        rig.step(stateful if form == "stateful" else stateless, f32(1))
    rig.strategy.distribute(plain)
    step = rig.step(stateful, f32(1))
    rig.overlap(step, (f32(1),), (f32(2),))
    assert_close(weight, -0.1 - (0.09 + 0.2))


def test_two_optimizers_take_turns_in_one_step(rig: Rig) -> None:
    critic, maker = tf.Variable(1.0), tf.Variable(2.0)
    fast, slow = tf.keras.optimizers.SGD(0.5), tf.keras.optimizers.SGD(0.1)

    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = critic * maker * x
        fast.apply([tape.gradient(loss, critic)], [critic])
        with tf.GradientTape() as tape:
            second = -critic * maker * x  # with the critic as it is now
        slow.apply([tape.gradient(second, maker)], [maker])
        return second

    step = rig.step(train, f32(1))
    first, second = rig.overlap(step, (f32(1),), (f32(3),))
    assert_close([first, second], [-(1 - 0.5 * 2) * 2, -(1 - 0.5 * 6) * 2 * 3])
    assert_close(critic, 1 - 0.5 * 2 - 0.5 * 6)
    # Each worker's own critic gave the gradient of the maker: 0, and -(1 - 3) * 3 = 6.
    assert_close(maker, 2 - 0.1 * 0 - 0.1 * 6)
    assert [int(o.iterations.numpy()) for o in (fast, slow)] == [2, 2]


def test_the_second_network_of_a_pair_leaves_nothing_heavy_to_the_store(rig: Rig) -> None:
    with rig.strategy.scope():
        judge = keras.Sequential(
            [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        judge.build((None, 4))
        maker = keras.Sequential([keras.layers.Dense(4)])
        maker.build((None, 2))
    optimizers = tf.keras.optimizers.Adam(), tf.keras.optimizers.Adam()

    def train(x: Any, noise: Any) -> None:
        for optimizer, trained, sign in zip(optimizers, (judge, maker), (1, -1), strict=True):
            with tf.GradientTape() as tape:
                fake = judge(maker(noise), training=True)
                loss = sign * (jnp.mean(fake) - jnp.mean(judge(x, training=True)))
            weights = trained.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)

    arrays = np.ones((64, 4), np.float32), np.ones((64, 2), np.float32)
    step = rig.step(train, *arrays)
    assert not store_primitives(step) & (HEAVY | {"reduce_sum"})
    cut = cut_of(step)
    weights = [*judge.trainable_variables, *maker.trainable_variables]
    statistics = 4 * 2 * 8 * 4  # of four calls: mean and variance, 8 floats each
    assert num_bytes([cut.flat.avals[s] for s in cut.residuals]) <= num_bytes(weights) + statistics
    rig.overlap(step, arrays, arrays)
    assert [int(o.iterations.numpy()) for o in optimizers] == [2, 2]


def test_control_flow_in_the_loss(rig: Rig) -> None:
    weight = tf.Variable(2.0)
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            powers, _ = jax.lax.scan(lambda c, _: (c * weight.value, None), 1.0, None, length=3)
            loss = jax.lax.cond(x > 0, lambda: powers * x, lambda: weight * x)
        sgd.apply([tape.gradient(loss, weight)], [weight])
        return loss

    step = rig.step(train, f32(1))
    assert_close(rig.overlap(step, (f32(1),), (f32(-1),)), [8.0, -2.0])
    assert_close(weight, 2 - 3 * 2**2 + 1)


def test_a_frozen_weight_and_one_without_gradient_stay(rig: Rig) -> None:
    used, unused = tf.Variable(1.0), tf.Variable(5.0)
    sgd = tf.keras.optimizers.SGD(1.0)

    def train(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = used * x
        grads = tape.gradient(loss, [used, unused])
        sgd.apply([g for g in grads if g is not None], [used])

    step = rig.step(train, f32(1))
    rig.overlap(step, (f32(1),), (f32(2),))
    assert_close([used.value, unused.value], [-2.0, 5.0])
