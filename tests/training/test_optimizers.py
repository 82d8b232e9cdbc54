"""Every Keras optimizer on replicas equals one device; gradients are combined first."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import NUM_FEATURES, examples, mirrored
from paceline.testing import GOLDEN, REFERENCE, assert_close

OPTIMIZERS: dict[str, Any] = {
    "SGD": {"learning_rate": 0.1},
    "SGD momentum": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True},
    "RMSprop": {"learning_rate": 0.01, "centered": True, "momentum": 0.5},
    "Adam": {"learning_rate": 0.01, "amsgrad": True},
    "AdamW": {"learning_rate": 0.01, "weight_decay": 0.1},
    "Adadelta": {"learning_rate": 1.0},
    "Adagrad": {"learning_rate": 0.1},
    "Adamax": {"learning_rate": 0.01},
    "Adafactor": {"learning_rate": 0.01},
    "Nadam": {"learning_rate": 0.01},
    "Ftrl": {"learning_rate": 0.1, "l1_regularization_strength": 0.01},
    "Lion": {"learning_rate": 0.001},
    "Lamb": {"learning_rate": 0.01},
    "Muon": {"learning_rate": 0.01},
    "ScheduleFreeAdamW": {"learning_rate": 0.01, "warmup_steps": 2},
    "clipnorm": {"learning_rate": 0.5, "clipnorm": 0.02},
    "global_clipnorm": {"learning_rate": 0.5, "global_clipnorm": 0.05},
    "clipvalue": {"learning_rate": 0.5, "clipvalue": 0.01},
    "accumulation": {"learning_rate": 0.01, "gradient_accumulation_steps": 2},
    "ema": {"learning_rate": 0.01, "use_ema": True, "ema_momentum": 0.9},
    "ema overwrite": {
        "learning_rate": 0.01,
        "use_ema": True,
        "ema_momentum": 0.9,
        "ema_overwrite_frequency": 2,
    },
    "weight decay": {"learning_rate": 0.1, "weight_decay": 0.05},
    "loss scale factor": {"learning_rate": 0.1, "loss_scale_factor": 8.0},
}
CLASSES = {"clipnorm": "SGD", "global_clipnorm": "SGD", "clipvalue": "SGD", "ema": "Adam"} | {
    "accumulation": "Adam", "ema overwrite": "Adam", "weight decay": "SGD",
    "loss scale factor": "SGD", "SGD momentum": "SGD",
}  # fmt: skip


SHORT_LAST_BATCH = {"Adam", "accumulation", "ema overwrite"}


def make(k: Any, name: str) -> Any:
    return getattr(k.optimizers, CLASSES.get(name, name))(**OPTIMIZERS[name])


def test_the_table_names_every_optimizer_of_keras() -> None:
    classes = {
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)
    }
    # Tested below: they wrap other optimizers.
    wrappers = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
    assert classes - wrappers == set(OPTIMIZERS) - set(CLASSES)


def softmax_regression(k: Any) -> Any:
    keras.utils.set_random_seed(7)
    return k.Sequential([k.Input((NUM_FEATURES,)), k.layers.Dense(3, activation="softmax")])


def fitted(k: Any, name: str) -> tuple[Any, Any]:
    model = softmax_regression(k)
    model.compile(make(k, name), "sparse_categorical_crossentropy")
    # Batches of 7 are uneven on 2 and 3 replicas; where steps are counted the last one is short.
    num_examples = 24 if name in SHORT_LAST_BATCH else 21
    history = model.fit(*examples(num_examples), batch_size=7, epochs=2, shuffle=False, verbose=0)
    return model, np.float32(history.history["loss"])


@functools.cache
def single_device(name: str) -> tuple[Any, Any]:
    return fitted(keras, name)


@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.case("R68")
def test_fit_equals_one_device(name: str, num_replicas: int) -> None:
    plain, expected = single_device(name)
    with mirrored(num_replicas).scope():
        model, loss = fitted(tf.keras, name)
    assert_close(loss, expected)
    # Sign-like updates amplify the last bit of a gradient.
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)
    assert int(model.optimizer.iterations) == int(plain.optimizer.iterations)


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.contract(108)
class TestApply:
    """`apply_gradients` inside `strategy.run` with a gradient of each replica."""

    @staticmethod
    def steps(
        make_optimizer: Any,
        start: Any,
        gradients: list[Any],
        is_compiled: bool,
        num_replicas: int = 2,
    ) -> tuple[Any, Any, list[np.ndarray]]:
        strategy = mirrored(num_replicas)
        with strategy.scope():
            variable = tf.Variable(jnp.asarray(start, "float32"))
            optimizer = make_optimizer()

        def replica_fn(gradient: Any) -> None:
            optimizer.apply_gradients([(gradient, variable)])

        run = tf.function(replica_fn) if is_compiled else replica_fn
        seen = []
        for parts in gradients:
            values = strategy.experimental_distribute_values_from_function(
                lambda ctx, parts=parts: jnp.asarray(parts[ctx.replica_id_in_sync_group], "float32")
            )
            strategy.run(run, args=(values,))
            seen.append(np.array(variable))
        for copy in variable.values:
            assert_close(copy, seen[-1])
        return variable, optimizer, seen

    def test_gradients_are_summed(self, is_compiled: bool) -> None:
        _, optimizer, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(0.1), 0.0, [(1.0, 2.0)], is_compiled
        )
        assert_close(seen[-1], -0.3)
        assert int(optimizer.iterations) == 1

    def test_equal_gradients_are_summed_too(self, is_compiled: bool) -> None:
        grad = [1.0, 6.0, 7.0, 2.0]
        _, _, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(0.5, momentum=0.06),
            [1.0, 2.0, 3.0, 4.0],
            [(grad, grad)],
            is_compiled,
        )
        assert_close(seen[-1], [0.0, -4.0, -4.0, 2.0])

    @pytest.mark.contract(109)
    def test_clipping_sees_the_sum(self, is_compiled: bool) -> None:
        _, _, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(0.1, clipvalue=1.5), 0.0, [(1.0, 2.0)], is_compiled
        )
        assert_close(seen[-1], -0.15)

    @pytest.mark.contract(109)
    @pytest.mark.parametrize("kind", ["clipnorm", "global_clipnorm"])
    def test_norm_clipping_sees_the_sum(self, is_compiled: bool, kind: str) -> None:
        _, _, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(0.1, **{kind: 1.0}),
            [0.0, 0.0],
            [([1.0, 1.0], [2.0, 2.0])],
            is_compiled,
        )
        assert_close(seen[-1], [-0.1 / np.sqrt(2)] * 2)

    @pytest.mark.case("R26")
    def test_global_norm_of_the_sum(self, is_compiled: bool) -> None:
        _, _, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(1.0, global_clipnorm=1.0),
            [0.0, 0.0],
            [([3.0, 0.0], [0.0, 4.0])],
            is_compiled,
        )
        assert_close(seen[-1], [-0.6, -0.8])

    @pytest.mark.contract(110)
    def test_accumulation(self, is_compiled: bool) -> None:
        _, _, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(1.0, gradient_accumulation_steps=2),
            0.0,
            [(1.0, 2.0), (10.0, 20.0)],
            is_compiled,
        )
        assert_close(seen, [0.0, -16.5])

    @pytest.mark.contract(110)
    def test_accumulation_counts_updates(self, is_compiled: bool) -> None:
        grad = [[1.0, 1.0], [2.0, 2.0]]
        _, optimizer, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(1.0, gradient_accumulation_steps=3),
            [[1.0, 2.0], [3.0, 4.0]],
            [(grad, grad)] * 3,
            is_compiled,
        )
        assert_close(seen[0], [[1.0, 2.0], [3.0, 4.0]])
        assert_close(seen[1], [[1.0, 2.0], [3.0, 4.0]])
        assert_close(seen[2], [[-1.0, 0.0], [-1.0, 0.0]])
        assert int(optimizer.iterations) == 1

    @pytest.mark.case("R60")
    def test_accumulation_of_microbatches(self, is_compiled: bool) -> None:
        _, _, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(1.0, gradient_accumulation_steps=2),
            0.0,
            [(1.0, 3.0), (5.0, 7.0)],
            is_compiled,
        )
        assert_close(seen, [0.0, -8.0])

    @pytest.mark.contract(111)
    def test_moving_average(self, is_compiled: bool) -> None:
        half = [[0.5, 0.5], [0.5, 0.5]]
        _, optimizer, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(
                1.0, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
            ),
            [[3.0, 4.0], [5.0, 6.0]],
            [(half, half)] * 3,
            is_compiled,
        )
        assert_close([s[0, 0] for s in seen], [2.0, 1.0, 1.71])
        assert_close(optimizer._model_variables_moving_average[0].value[0, 0], 1.71)

    @pytest.mark.contract(117)
    @pytest.mark.parametrize("broken", [0, 1])
    @pytest.mark.parametrize("value", [np.inf, np.nan])
    def test_a_non_finite_gradient_on_any_replica_skips_the_step(
        self, is_compiled: bool, broken: int, value: float
    ) -> None:
        bad = [1.0, 1.0]
        bad[broken] = value
        _, optimizer, seen = self.steps(
            lambda: tf.keras.optimizers.LossScaleOptimizer(
                tf.keras.optimizers.SGD(0.5), initial_scale=4.0
            ),
            1.0,
            [tuple(bad), (4.0, 8.0)],
            is_compiled,
        )
        assert_close(seen, [1.0, 1.0 - 0.5 * 12 / 2])
        assert float(optimizer.dynamic_scale) == 2.0
        assert int(optimizer.iterations) == 1

    def test_a_multi_optimizer_combines_once(self, is_compiled: bool) -> None:
        _, optimizer, seen = self.steps(
            lambda: tf.keras.optimizers.MultiOptimizer(
                tf.keras.optimizers.OptimizerMap(tf.keras.optimizers.SGD(0.1))
            ),
            0.0,
            [(1.0, 2.0)],
            is_compiled,
        )
        assert_close(seen[-1], -0.3)
        assert int(optimizer.iterations) == 1

    @pytest.mark.case("R61")
    def test_a_schedule_counts_updates_as_on_one_device(self, is_compiled: bool) -> None:
        def schedule(k: Any) -> Any:
            return k.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 10.0])

        plain = keras.Variable(0.0)
        single = keras.optimizers.SGD(schedule(keras), gradient_accumulation_steps=4)
        for _ in range(8):
            single.apply([jnp.asarray(2.0)], [plain])
        _, optimizer, seen = self.steps(
            lambda: tf.keras.optimizers.SGD(schedule(tf.keras), gradient_accumulation_steps=4),
            0.0,
            [(1.0, 1.0)] * 8,
            is_compiled,
        )
        assert_close(seen[-1], np.array(plain))
        assert int(optimizer.iterations) == 2
        assert int(optimizer._iterations) == 8


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_across_replicas_a_gradient_is_the_global_one(where: str) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
        optimizer = tf.keras.optimizers.Adam(0.1)
        if where == "inside":
            optimizer.apply_gradients([(jnp.ones(2), variable)])
    if where == "outside":
        optimizer.apply_gradients([(jnp.ones(2), variable)])
    assert_close(variable, [0.9, 1.9])
    assert int(optimizer.iterations) == 1
    assert all(slot.distribute_strategy is strategy for slot in optimizer.variables)


def test_an_optimizer_made_elsewhere_joins_the_variables_strategy() -> None:
    optimizer = tf.keras.optimizers.Adam(0.1)
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(0.0)

    @tf.function
    def step() -> None:
        strategy.run(lambda: optimizer.apply([jnp.asarray(1.0)], [variable]))

    step()
    assert_close(variable, -0.1)
    assert all(slot.distribute_strategy is strategy for slot in optimizer.variables)


def test_a_plain_optimizer_follows_after_distribute() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(0.1)
    assert strategy.distribute(optimizer) is optimizer
    strategy.run(lambda: optimizer.apply([jnp.asarray(1.0)], [variable]))
    assert_close(variable, -0.2)


def test_a_plain_optimizer_is_told_what_to_use() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(0.0)
        optimizer = keras.optimizers.SGD(0.1)
    with pytest.raises(ValueError, match=r"paceline\.keras\.optimizers, or strategy\.distribute"):
        strategy.run(lambda: optimizer.apply([jnp.asarray(1.0)], [variable]))


def test_an_empty_replica_contributes_its_regulariser_only() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(2.0)
        optimizer = tf.keras.optimizers.SGD(1.0)

    @tf.function
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.nn.compute_average_loss(variable * x)
                loss += tf.nn.scale_regularization_loss(variable.value**2)
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

        strategy.run(replica_fn, args=(x,))

    step(next(iter(strategy.experimental_distribute_dataset([np.ones(1, "float32")]))))
    assert_close(variable, 2.0 - (1.0 + 4.0), REFERENCE)


@pytest.mark.parametrize("name", ["Adam", "SGD", "Nadam"])
def test_configs_and_names_are_those_of_plain_keras(name: str) -> None:
    ours, plain = getattr(tf.keras.optimizers, name)(), getattr(keras.optimizers, name)()
    assert isinstance(ours, getattr(keras.optimizers, name))
    assert ours.get_config() | {"name": ""} == plain.get_config() | {"name": ""}
    again = keras.optimizers.deserialize(keras.optimizers.serialize(ours))
    assert type(again) is getattr(keras.optimizers, name)
    assert type(tf.keras.optimizers.get(name.lower())) is type(ours)
    assert tf.optimizers.Adam is tf.keras.optimizers.Adam
