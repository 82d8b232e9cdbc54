"""Copies that must be equal, some of which are made to differ."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.errors import InvalidArgument, InvalidType, ReplicasDiverged
from paceline.monitor import (
    DivergenceCheck,
    check_replicas,
    check_workers,
    divergence,
    fingerprints,
)

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


@pytest.fixture
def strategy() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(DEVICES)


def variable(strategy: tf.distribute.Strategy, value: Any, name: str = "v", **kwargs: Any) -> Any:
    with strategy.scope():
        return tf.Variable(value, name=name, **kwargs)


def corrupt(variable: Any, *copies: Any) -> None:
    """Gives each device a copy of its own, as a faulty one would."""
    storage = variable._value
    parts = [
        jax.device_put(np.asarray(copy, storage.dtype), shard.device)
        for copy, shard in zip(copies, storage.addressable_shards, strict=True)
    ]
    variable._value = jax.make_array_from_single_device_arrays(
        storage.shape, storage.sharding, parts
    )


def test_equal_copies(strategy: tf.distribute.Strategy) -> None:
    assert check_replicas([variable(strategy, [1.0, np.nan, np.inf]), keras.Variable(1.0)]) == []


def test_a_copy_that_differs_is_named_with_its_device(strategy: tf.distribute.Strategy) -> None:
    good, bad = variable(strategy, [1.0, 2.0], "good"), variable(strategy, [1.0, 2.0], "bad")
    corrupt(bad, [1.0, 2.0], [1.0, 2.0], [1.5, 2.125])
    (found,) = check_replicas([good, bad])
    assert (found.name, found.places, found.largest_difference) == ("bad", ("cpu:2",), 0.5)
    assert str(found) == "bad on cpu:2 differs from cpu:0 in 2 elements, by 0.5 at most."


def test_one_variable_is_enough(strategy: tf.distribute.Strategy) -> None:
    bad = variable(strategy, 3)
    corrupt(bad, 3, 4, -5)
    (found,) = check_replicas(bad)
    assert (found.places, found.largest_difference) == (("cpu:1", "cpu:2"), 8)
    assert "in 1 element, by 8 at most" in str(found)


@pytest.mark.parametrize(
    ("dtype", "copies", "difference"),
    [
        ("float32", [np.nan, 1.0, 1.0], np.inf),
        ("float32", [1.0, 1.0, np.nan], np.inf),
        ("float32", [np.inf, np.inf, 1.0], np.inf),
        ("float32", [np.inf, np.inf, -np.inf], np.inf),
        ("float32", [0.0, 0.0, -0.0], 0.0),
        ("float32", [1.0, np.nextafter(np.float32(1), np.float32(2)), 1.0], 2.0**-23),
        ("bfloat16", [1.0, 1.0, 1.5], 0.5),
        ("bool", [True, True, False], 1.0),
        ("uint8", [255, 255, 0], 255.0),
        ("complex64", [0, 0, 3 + 4j], 5.0),
    ],
)
def test_the_largest_difference(
    strategy: tf.distribute.Strategy, dtype: str, copies: list[Any], difference: float
) -> None:
    aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
    bad = variable(strategy, np.asarray(copies[0]), dtype=dtype, aggregation=aggregation)
    corrupt(bad, *copies)
    (found,) = check_replicas(bad)
    assert found.largest_difference == difference


def test_nan_agrees_with_nan(strategy: tf.distribute.Strategy) -> None:
    same = variable(strategy, [np.nan, 1.0])
    other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)[0]
    corrupt(same, [np.nan, 1.0], [other_nan, 1.0], [-np.nan, 1.0])
    assert check_replicas(same) == []


def test_copies_of_on_read_variables_may_differ(strategy: tf.distribute.Strategy) -> None:
    total = variable(
        strategy, 0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation="sum"
    )
    strategy.run(
        lambda: total.assign_add(tf.distribute.get_replica_context().replica_id_in_sync_group + 1.0)
    )
    assert check_replicas(total) == []


def test_a_keras_variable_on_a_mesh_of_its_own() -> None:
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    plain = keras.Variable([1.0, 2.0], name="plain")
    plain._value = jax.device_put(plain._value, replicated)
    assert check_replicas(plain) == []
    corrupt(plain, [1.0, 2.0], [1.0, 3.0])
    (found,) = check_replicas(plain)
    assert (found.name, found.places) == ("plain", ("cpu:1",))


def test_two_variables_of_one_name_are_told_apart(strategy: tf.distribute.Strategy) -> None:
    variables = [variable(strategy, 1.0), variable(strategy, 1.0)]
    corrupt(variables[1], 1.0, 2.0, 1.0)
    (found,) = check_replicas([*variables, variables[1]])
    assert found.name == "v#2"
    assert list(fingerprints(variables)) == ["v", "v#2"]


@pytest.mark.parametrize("wrong", [3, ["v"], None])
def test_only_variables_are_compared(wrong: Any) -> None:
    with pytest.raises(InvalidType, match=r"variables of a model, or variables. Received: "):
        check_replicas(wrong)


class TestWorkers:
    def test_the_same_program_gives_the_same_fingerprints(self) -> None:
        told = {}
        for worker in ("worker:0", "worker:1"):
            keras.utils.clear_session()
            keras.utils.set_random_seed(1)
            told[worker] = fingerprints(built(tf.distribute.get_strategy()))
        assert "m/dense/kernel" in told["worker:0"]
        assert "sgd/m_dense_kernel_momentum" in told["worker:0"]
        assert check_workers(told) == []

    def test_another_seed_is_found(self) -> None:
        told = {}
        for worker, seed in (("worker:0", 1), ("worker:1", 1), ("worker:2", 2)):
            keras.utils.clear_session()
            keras.utils.set_random_seed(seed)
            told[worker] = fingerprints(built(tf.distribute.get_strategy()))
        (found,) = check_workers(told)
        assert (found.name, found.places) == ("m/dense/kernel", ("worker:2",))
        assert found.largest_difference is None
        assert str(found).startswith(
            "m/dense/kernel differs between workers: worker:0 has float32["
        )

    def test_shapes_dtypes_and_missing_variables_are_found(self) -> None:
        one, other = keras.Variable([1.0], name="a"), keras.Variable([[1.0]], name="a")
        extra = keras.Variable(1, name="b")
        told = {"worker:0": fingerprints(one), "worker:1": fingerprints([other, extra])}
        shape, missing = check_workers(told)
        assert "worker:0 has float32[1] " in str(shape)
        assert "worker:1 has float32[1,1] " in str(shape)
        assert (missing.name, missing.places) == ("b", ("worker:1",))
        assert "worker:0 has none" in str(missing)

    def test_many_workers_are_named_in_part(self) -> None:
        told = {f"worker:{i}": {"v": str(min(i, 1))} for i in range(9)}
        (found,) = check_workers(told)
        assert len(found.places) == 8
        assert str(found).endswith("worker:5 has 1 and 3 more.")

    def test_per_replica_variables_and_no_workers(self, strategy: tf.distribute.Strategy) -> None:
        own = variable(strategy, 0.0, synchronization=tf.VariableSynchronization.ON_READ)
        assert fingerprints(own)["v"].startswith("float32[3] ")
        assert check_workers({}) == []


def built(strategy: Any) -> Any:
    with strategy.scope():
        model = tf.keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)], name="m")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


class Corruptor(keras.callbacks.Callback):
    """Spoils the bias, or a slot of the optimizer, after one batch."""

    def __init__(self, at: int, in_optimizer: bool = False) -> None:
        super().__init__()
        self._at = at
        self._in_optimizer = in_optimizer
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._batches += 1
        if self._batches == self._at:
            model: Any = self.model
            slots = [v for v in model.optimizer.variables if v.path == "sgd/m_dense_bias_momentum"]
            corrupt(slots[0] if self._in_optimizer else model.weights[1], [0.0], [0.0], [1.0])


def fit(strategy: Any, *callbacks: Any, epochs: int = 1, **kwargs: Any) -> Any:
    model = built(strategy)
    model.fit(
        np.ones((18, 2)), np.ones((18, 1)), batch_size=3, epochs=epochs, verbose=0,
        callbacks=list(callbacks), **kwargs,
    )  # fmt: skip
    return model


class TestByItself:
    def test_initial_values_are_checked(self, strategy: tf.distribute.Strategy) -> None:
        model = built(strategy)
        corrupt(model.weights[1], [0.0], [0.0], [1.0])
        with pytest.raises(ReplicasDiverged, match=r"found before the first step\. m/dense/bias"):
            model.fit(np.ones((3, 2)), np.ones((3, 1)), verbose=0)
        assert int(model.optimizer.iterations) == 0

    def test_every_epoch_is_checked_before_a_callback_saves(
        self, strategy: tf.distribute.Strategy
    ) -> None:
        ended: list[int] = []
        saving = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: ended.append(epoch)
        )
        # Six batches an epoch: the second epoch ends with a copy that differs.
        with pytest.raises(ReplicasDiverged, match=r"at the end of epoch 1.*m/dense/bias on cpu:2"):
            fit(strategy, Corruptor(12), saving, epochs=3)
        assert ended == [0]

    def test_a_check_among_the_callbacks_takes_its_place(
        self, strategy: tf.distribute.Strategy
    ) -> None:
        with pytest.warns(UserWarning, match="m/dense/bias on cpu:2"):
            model = fit(strategy, Corruptor(6), DivergenceCheck(action="warn"))
        assert int(model.optimizer.iterations) == 6

    @pytest.mark.parametrize("name", ["workers", "central", "one device", "one replica"])
    def test_one_copy_is_not_compared(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        def never(_: Any) -> None:
            raise AssertionError("there is one copy")

        monkeypatch.setattr(divergence, "check_replicas", never)
        central = tf.distribute.experimental.CentralStorageStrategy
        strategies = {
            "workers": tf.distribute.experimental.ParameterServerStrategy,
            "central": lambda: central(DEVICES, pace=tf.pace.Synchronous()),
            "one device": lambda: tf.distribute.OneDeviceStrategy("cpu:1"),
            "one replica": lambda: tf.distribute.MirroredStrategy(["cpu:1"]),
        }
        fit(strategies[name]())

    def test_batches_do_not_wait_for_it(self) -> None:
        """Keras hands batches out ahead unless a callback looks at them."""
        assert keras.callbacks.CallbackList([DivergenceCheck()])._async_train
        assert not keras.callbacks.CallbackList([DivergenceCheck(2)])._async_train


class TestDigests:
    """What accelerators do, here on CPU devices."""

    @pytest.fixture(autouse=True)
    def _away_from_the_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(divergence, "_is_on_host", lambda array: False)

    @pytest.mark.parametrize(
        "dtype",
        ["float32", "bfloat16", "float16", "float8_e4m3fn", "bool", "uint8", "int32", "complex64"],
    )
    def test_one_element_is_enough(self, strategy: tf.distribute.Strategy, dtype: str) -> None:
        aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        whole = np.ones((31, 17)).astype(dtype)
        spoiled = whole.copy()
        spoiled[30, 16] = 0
        bad = variable(strategy, whole, dtype=dtype, aggregation=aggregation)
        assert check_replicas(bad) == []
        corrupt(bad, whole, spoiled, whole)
        (found,) = check_replicas(bad)
        assert (found.places, found.largest_difference) == (("cpu:1",), 1.0)

    def test_elements_in_another_order_differ(self, strategy: tf.distribute.Strategy) -> None:
        bad = variable(strategy, [1.0, 2.0, 3.0])
        corrupt(bad, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [2.0, 1.0, 3.0])
        (found,) = check_replicas(bad)
        assert found.places == ("cpu:2",)

    def test_nan_agrees_with_nan_and_signs_of_zero_differ(
        self, strategy: tf.distribute.Strategy
    ) -> None:
        other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)[0]
        same, zero = variable(strategy, [np.nan, 1.0], "same"), variable(strategy, 0.0, "zero")
        corrupt(same, [np.nan, 1.0], [other_nan, 1.0], [-np.nan, 1.0])
        corrupt(zero, 0.0, -0.0, 0.0)
        assert [one.name for one in check_replicas([same, zero])] == ["zero"]

    def test_only_what_differs_is_read(
        self, strategy: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = built(strategy)
        corrupt(model.weights[1], [0.0], [0.0], [1.0])
        read: list[Any] = []
        compare = divergence._compare
        monkeypatch.setattr(
            divergence, "_compare", lambda *copies: read.append(1) or compare(*copies)
        )
        (found,) = check_replicas(model)
        assert found.name == "m/dense/bias"
        assert len(read) == len(DEVICES) - 1

    def test_a_sound_training_goes_on(self, strategy: tf.distribute.Strategy) -> None:
        assert fit(strategy, epochs=2).history.epoch == [0, 1]

    def test_a_keras_variable_on_a_mesh_of_two_axes(self) -> None:
        mesh = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices()[:4])
        replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        plain = keras.Variable([1.0, 2.0], name="plain")
        plain._value = jax.device_put(plain._value, replicated)
        assert check_replicas(plain) == []
        corrupt(plain, *[[1.0, 2.0]] * 3, [1.0, 3.0])
        (found,) = check_replicas(plain)
        assert found.places == ("cpu:3",)


def test_a_check_leaves_the_storage_to_the_next_step(strategy: tf.distribute.Strategy) -> None:
    """Where a step may not overwrite what it reads, memory for both is needed."""
    model = built(strategy)
    model.fit(np.ones((3, 2)), np.ones((3, 1)), verbose=0)
    kernel: Any = model.weights[0]
    before = kernel._value
    check_replicas(model)
    model.train_on_batch(np.ones((3, 2)), np.ones((3, 1)))
    assert before.is_deleted()


class TestDivergenceCheck:
    @pytest.mark.parametrize("every", ["epoch", 4])
    def test_a_sound_training_goes_on(self, strategy: tf.distribute.Strategy, every: Any) -> None:
        fit(strategy, DivergenceCheck(every), epochs=2)

    @pytest.mark.parametrize(
        ("every", "when"),
        [("epoch", "at the end of epoch 0"), (1, "after batch 2"), (4, "batch 3")],
    )
    def test_it_raises_with_the_name(
        self, strategy: tf.distribute.Strategy, every: Any, when: str
    ) -> None:
        with pytest.raises(
            ReplicasDiverged, match=rf"1 that differ, found .*{when}.*m/dense/bias on "
        ):
            fit(strategy, Corruptor(3), DivergenceCheck(every))

    def test_the_optimizer_counts(self, strategy: tf.distribute.Strategy) -> None:
        with pytest.raises(ReplicasDiverged, match="sgd/m_dense_bias_momentum on cpu:2"):
            fit(strategy, Corruptor(1, in_optimizer=True), DivergenceCheck(1))

    def test_it_warns_and_goes_on(self, strategy: tf.distribute.Strategy) -> None:
        with pytest.warns(UserWarning, match="m/dense/bias on cpu:2"):
            model = fit(strategy, Corruptor(6), DivergenceCheck(action="warn"))
        assert int(model.optimizer.iterations) == 6

    def test_initial_values_are_checked(self, strategy: tf.distribute.Strategy) -> None:
        model = built(strategy)
        corrupt(model.weights[1], [0.0], [0.0], [1.0])
        with pytest.raises(ReplicasDiverged, match=r"found before the first step\. m/dense/bias"):
            model.fit(np.ones((3, 2)), np.ones((3, 1)), verbose=0, callbacks=[DivergenceCheck()])
        assert int(model.optimizer.iterations) == 0

    def test_several_steps_in_one_program(self, strategy: tf.distribute.Strategy) -> None:
        with strategy.scope():
            model = tf.keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)], name="m")
        model.compile("sgd", "mse", steps_per_execution=3)
        with pytest.raises(ReplicasDiverged, match="after batch 2"):
            model.fit(
                np.ones((18, 2)), np.ones((18, 1)), batch_size=3, verbose=0,
                callbacks=[Corruptor(1), DivergenceCheck(2)],
            )  # fmt: skip

    def test_a_model_without_a_strategy(self) -> None:
        fit(tf.distribute.get_strategy(), DivergenceCheck(1))

    @pytest.mark.parametrize("every", [0, -1, "batch", 1.5, True])
    def test_every_is_checked(self, every: Any) -> None:
        with pytest.raises(InvalidArgument, match=r"number of batches.*Received: every="):
            DivergenceCheck(every)

    def test_the_action_is_checked(self) -> None:
        with pytest.raises(InvalidArgument, match="Received: action='print'"):
            DivergenceCheck(action="print")  # pyright: ignore[reportArgumentType]
