"""Losses called on replicas add up to the loss of the global batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import linear, mirrored, train_both
from paceline.testing import GOLDEN, assert_close

REDUCTIONS = ["sum_over_batch_size", "mean_with_sample_weight", "sum"]


def masked(value: Any, mask: Any) -> Any:
    keras.src.backend.set_keras_mask(value, mask)
    return value


def on_replicas(fn: Any, sizes: tuple[int, ...], arrays: list[np.ndarray], compiled: bool) -> Any:
    """The sum over replicas of `fn` on parts of the arrays of the given sizes."""
    strategy = mirrored(len(sizes))
    ends = np.cumsum(sizes)
    parts = [
        strategy.experimental_distribute_values_from_function(
            lambda ctx, a=a: jnp.asarray(np.split(a, ends[:-1])[ctx.replica_id_in_sync_group])
        )
        for a in arrays
    ]

    def step(*parts: Any) -> Any:
        return strategy.run(fn, args=parts)

    per_replica = (tf.function(step) if compiled else step)(*parts)
    return strategy.reduce("SUM", per_replica, axis=None)


@pytest.mark.parametrize(
    ("sizes", "compiled"),
    [((2, 2), True), ((3, 1), True), ((4, 0), True), ((2, 1, 1), True), ((3, 1), False),
     ((4, 0), False)],
)  # fmt: skip
@pytest.mark.case("R24", "R34", "R47")
def test_losses_and_gradients_equal_one_device(sizes: tuple[int, ...], compiled: bool) -> None:
    rng = np.random.default_rng(1)
    y, p, w = (rng.uniform(0.1, 1, size=(4, 3)).astype("float32") for _ in range(3))
    per_example = w[:, 0]
    mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
    deep = np.stack([p, p * 2], -1)  # [example, step, channel]: one loss per masked step

    def all_values(k: Any, y: Any, p: Any, w: Any, v: Any, mask: Any, deep: Any) -> Any:
        results = {}
        for reduction in REDUCTIONS:
            mse = k.losses.MeanSquaredError(reduction=reduction)
            results |= {
                f"{reduction} plain": mse(y, p),
                f"{reduction} weights": mse(y, p, v),
                f"{reduction} mask": mse(deep * 0, masked(deep + 0, mask)),
                f"{reduction} mask and weights": mse(deep * 0, masked(deep + 0, mask), w),
                f"{reduction} per step": mse(deep * 0, deep, w),
            }
        return results

    def losses_and_gradient(k: Any, *args: Any) -> Any:
        def total(p: Any) -> Any:
            return sum(all_values(k, args[0], p, *args[2:]).values())

        return all_values(k, *args), jax.grad(total)(args[1])

    arrays = [y, p, w, per_example, mask, deep]
    expected, gradient = losses_and_gradient(keras, *map(jnp.asarray, arrays))
    actual = on_replicas(lambda *a: losses_and_gradient(tf.keras, *a)[0], sizes, arrays, compiled)
    for name in expected:
        assert_close(actual[name], expected[name])
    gradients = on_replicas(
        lambda *a: jnp.pad(losses_and_gradient(tf.keras, *a)[1], ((0, 4 - a[0].shape[0]), (0, 0))),
        (4, 0),
        arrays,
        compiled,
    )
    assert_close(gradients, gradient)


@pytest.mark.contract(113)
@pytest.mark.case("R23")
def test_mean_squared_error_in_replica_context() -> None:
    strategy = mirrored(2)
    y, p = jnp.zeros((4, 16)), jnp.full((4, 16), np.sqrt(20.0))

    def values() -> Any:
        mse = tf.keras.losses.MeanSquaredError
        return {r: mse(reduction=r)(y, p) for r in ("sum_over_batch_size", "sum", "none")}

    # Each replica holds these 4 examples: a half of 20, so that the sum over replicas is the mean.
    result = strategy.run(values)
    assert_close(list(result["sum_over_batch_size"].values), [10.0, 10.0])
    assert_close(list(result["sum"].values), [80.0, 80.0])
    assert_close(list(result["none"].values), [np.full(4, 20.0)] * 2)


@pytest.mark.case("R17", "R23")
def test_uneven_replicas_give_the_true_mean() -> None:
    loss = on_replicas(
        lambda x: tf.keras.losses.MeanAbsoluteError()(jnp.zeros_like(x), x),
        (2, 1),
        [np.float32([[2], [4], [9]])],
        compiled=True,
    )
    assert_close(loss, 5.0)


@pytest.mark.parametrize("rule", ["sum", "sum_over_batch_size"])
def test_a_scalar_that_a_loss_returns(rule: str) -> None:
    class Own(tf.keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            reduce = jnp.sum if self.reduction == "sum" else jnp.mean
            return reduce(y_pred - y_true)

    x = np.float32([2, 4, 9])
    actual = on_replicas(
        lambda x: Own(reduction=rule)(jnp.zeros_like(x), x), (2, 1), [x], compiled=True
    )
    assert_close(actual, x.sum() if rule == "sum" else x.mean())


def test_outside_of_replicas_losses_are_keras() -> None:
    y, p = jnp.zeros((4, 2)), jnp.ones((4, 2))
    ours, plain = tf.keras.losses.MeanSquaredError(), keras.losses.MeanSquaredError()
    assert isinstance(ours, keras.losses.MeanSquaredError)
    with mirrored(2).scope():
        assert_close(ours(y, p), plain(y, p))
    assert keras.losses.serialize(ours)["module"] == "keras.losses"
    assert type(tf.keras.losses.get("mse")) is type(keras.losses.get("mse"))


LOSSES: dict[str, Any] = {
    "string": lambda k: {"loss": "mse"},
    "function": lambda k: {"loss": lambda y, p: (y - p) ** 2},
    "scalar function": lambda k: {"loss": lambda y, p: keras.ops.mean((y - p) ** 2)},
    "scalar of the worst": lambda k: {"loss": lambda y, p: keras.ops.max((y - p) ** 2)},
    "dice": lambda k: {"loss": k.losses.Dice()},
    "tversky": lambda k: {"loss": k.losses.Tversky()},
    "sum": lambda k: {"loss": k.losses.MeanSquaredError(reduction="sum")},
    "weighted mean": lambda k: {
        "loss": k.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    },
    "weights": lambda k: {"loss": "mae", "loss_weights": 0.5},
}


@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_fit_with_any_form_of_loss(name: str, num_replicas: int) -> None:
    x = np.arange(1, 8, dtype="float32")[:, None]
    weights = np.linspace(0.5, 2, 7).astype("float32")
    # The last batch of 3 leaves uneven replicas, and with one example empty ones.
    plain, model, expected, actual = train_both(
        linear,
        num_replicas,
        (x, 0 * x),
        compile_args=lambda k: {"optimizer": k.optimizers.SGD(0.001), **LOSSES[name](k)},
        batch_size=3,
        sample_weight=weights,
    )
    assert_close(actual, expected, GOLDEN)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_a_loss_over_pairs_of_examples(reduction: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 4)).astype("float32")
    y = np.array([0, 1, 0, 1, 0, 1, 1])

    def build(k: Any) -> Any:
        embed = k.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        return k.Sequential([k.Input((4,)), embed, k.layers.UnitNormalization()])

    plain, model, expected, actual = train_both(
        build,
        2,
        (x, y),
        compile_args=lambda k: {
            "optimizer": k.optimizers.SGD(0.01),
            "loss": k.losses.Circle(gamma=2, reduction=reduction),
        },
        batch_size=4,
        shuffle=False,
    )
    assert_close(actual, expected, GOLDEN)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)


@pytest.mark.case("R29")
def test_weights_per_time_step() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3, 1)).astype("float32")
    weights = np.float32([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0.5, 0, 0]])
    plain, model, expected, actual = train_both(
        lambda k: k.Sequential([k.Input((3, 1)), k.layers.Dense(1, kernel_initializer="ones")]),
        2,
        (x, 0 * x),
        compile_args=lambda k: {"optimizer": "sgd", "loss": "mse", "weighted_metrics": ["mae"]},
        sample_weight=weights,
        batch_size=3,
    )
    assert_close(actual, expected)
    assert_close(model.get_weights(), plain.get_weights())


def test_masks_and_several_outputs() -> None:
    def build(k: Any) -> Any:
        inputs = k.Input((3, 2), name="x")
        hidden = k.layers.Masking()(inputs)
        a = k.layers.Dense(1, kernel_initializer="ones", name="a")(hidden)
        b = k.layers.Dense(1, kernel_initializer="ones", name="b")(hidden)
        return k.Model(inputs, {"a": a, "b": b})

    x = np.random.default_rng(0).normal(size=(7, 3, 2)).astype("float32")
    x[:4, 1:] = 0
    x[6] = 0
    y = {name: np.ones((7, 3, 1), "float32") for name in "ab"}
    plain, model, expected, actual = train_both(
        build,
        2,
        (x, y),
        compile_args=lambda k: {
            "optimizer": "sgd",
            "loss": {"a": "mse", "b": k.losses.MeanAbsoluteError()},
            "loss_weights": {"a": 1.0, "b": 0.3},
            "metrics": {"a": ["mae"]},
        },
        batch_size=4,
    )
    assert_close(actual, expected, GOLDEN)
    assert_close(model.get_weights(), plain.get_weights())
