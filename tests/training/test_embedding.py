"""Contract 101 to 107 with Keras's own layer: an `Embedding` whose table lies in shards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import mirrored
from message_models import history_of, parameter_servers
from paceline.errors import InvalidArgument, Unsupported
from paceline.testing import EXACT, REFERENCE, assert_close
from paceline.variables.sharded import ShardedVariable
from store_rig import Rig

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_WORDS, WIDTH, LENGTH = 11, 4, 3
constraints: Any = keras.constraints
regularizers: Any = keras.regularizers


def servers(num_shards: int = 3, workers: int = 1) -> Any:
    """Two parameter servers that divide what has as many rows as there are words."""

    def partitioner(shape: Any, dtype: Any) -> list[int]:
        return [num_shards if shape[0] == NUM_WORDS else 1, *[1] * (len(shape) - 1)]

    return tf.distribute.ParameterServerStrategy(
        cluster=tf.cluster.Local(workers, 2, devices=["cpu:0"], deadline=60.0, grace=20.0),
        variable_partitioner=partitioner,
        update_rule=tf.update_rules.Plain(),
    )


def data(num: int = 32) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, NUM_WORDS, (num, LENGTH)).astype("int32")
    return ids, rng.normal(size=(num, 1)).astype("float32")


def regression(k: Any, **options: Any) -> Any:
    """A model of `k` with the same weights each time."""
    keras.utils.set_random_seed(7)
    layers = [
        k.layers.Input((LENGTH,), dtype="int32"),
        k.layers.Embedding(NUM_WORDS, WIDTH, **options),
        k.layers.Flatten(),
        k.layers.Dense(1),
    ]
    return k.Sequential(layers)


def embedding(strategy: Any, **options: Any) -> Any:
    """A built layer; two with the same options start alike."""
    keras.utils.set_random_seed(7)
    if strategy is None:
        layer = keras.layers.Embedding(NUM_WORDS, WIDTH, **options)
    else:
        with strategy.scope():
            layer = tf.keras.layers.Embedding(NUM_WORDS, WIDTH, **options)
    layer.build()
    return layer


def table_of(model: Any) -> Any:
    layer = next(layer for layer in model.layers if isinstance(layer, keras.layers.Embedding))
    return np.asarray(layer.embeddings)


def trained(strategy: Any, build: Callable[[Any], Any], optimizer: Callable[[Any], Any]) -> Any:
    """A model after two epochs, and their losses."""
    if strategy is None:
        model = build(keras)
        model.compile(optimizer(keras), "mse")
    else:
        with strategy.scope():
            model = build(tf.keras)
            model.compile(optimizer(tf.keras), "mse")
    return model, history_of(model, *data())["loss"]


# The layer ---------------------------------------------------------------------------------------


@pytest.mark.contract(84)
@pytest.mark.contract(101)
def test_the_weights_of_the_layer_are_the_shards() -> None:
    strategy = servers(3)
    layer = embedding(strategy, name="words")
    table = layer.embeddings
    assert isinstance(table, ShardedVariable)
    assert [shard.shape for shard in table] == [(4, WIDTH), (4, WIDTH), (3, WIDTH)]
    assert list(map(id, layer.trainable_weights)) == list(map(id, table))
    assert [shard.path for shard in table] == [f"words/embeddings/part_{i}" for i in range(3)]
    assert [strategy.server_of(shard) for shard in table] == [0, 1, 0]
    assert layer.count_params() == NUM_WORDS * WIDTH
    assert_close(table, np.asarray(embedding(None).embeddings), EXACT)
    layer.trainable = False
    assert layer.trainable_weights == []
    assert not table.trainable


@pytest.mark.parametrize(
    "make_strategy", [lambda: None, lambda: servers(1), parameter_servers, lambda: mirrored(2)]
)
def test_without_shards_it_is_keras_own(make_strategy: Any) -> None:
    strategy, options = make_strategy(), {"mask_zero": True, "embeddings_regularizer": "l2"}
    plain = keras.layers.Embedding(NUM_WORDS, WIDTH, name="words", **options)
    if strategy is None:
        ours = tf.keras.layers.Embedding(NUM_WORDS, WIDTH, name="words", **options)
        ours.build()
    else:
        ours = embedding(strategy, name="words", **options)
    assert isinstance(ours.embeddings, keras.Variable)
    assert ours.embeddings.path == "words/embeddings"
    saved: list[Any] = [keras.layers.serialize(layer) for layer in (ours, plain)]
    own, plains = saved
    assert own["config"] == plains["config"]
    assert (own["module"], own["class_name"]) == (plains["module"], plains["class_name"])


def test_a_whole_table_can_be_quantized_and_one_in_shards_not() -> None:
    ids = np.array([[0, 3]])
    layer = tf.keras.layers.Embedding(NUM_WORDS, WIDTH)
    rows = np.asarray(layer(ids))
    layer.quantize("int8")
    assert layer.embeddings.dtype == "int8"
    assert np.abs(np.asarray(layer(ids)) - rows).max() <= np.abs(rows).max() / 127
    with pytest.raises(Unsupported, match="2 shards"):
        embedding(servers(2)).quantize("int8")


@pytest.mark.contract(106)
@pytest.mark.parametrize(
    ("policy", "dtype"),
    [
        ("float32", "int32"),
        ("float32", "uint8"),
        ("float32", "float32"),
        ("mixed_bfloat16", "int64"),
        ("bfloat16", "int32"),
    ],
)
def test_a_call_gives_what_keras_gives(policy: str, dtype: str) -> None:
    plain = embedding(None, dtype=policy, mask_zero=True)
    ours = embedding(servers(3), dtype=policy, mask_zero=True)
    assert [shard.dtype for shard in ours.embeddings] == [plain.embeddings.dtype] * 3
    ids = data()[0].astype(dtype)
    for call in (lambda layer: layer(ids), lambda layer: tf.function(layer)(jnp.asarray(ids))):
        expected, actual = call(plain), call(ours)
        assert actual.dtype == expected.dtype
        assert_close(actual, np.asarray(expected), EXACT)
    assert_close(ours.compute_mask(ids), np.asarray(plain.compute_mask(ids)), EXACT)
    assert ours.compute_output_shape((5, LENGTH)) == (5, LENGTH, WIDTH)


def test_ids_that_name_no_row() -> None:
    plain, ours = embedding(None), embedding(servers(3))
    ids = np.array([-1, -NUM_WORDS, 0, NUM_WORDS, 2**31 - 1], "int32")
    rows = tf.function(ours)(ids)
    assert np.isnan(rows[3:]).all()  # not zeros, which would train on
    assert_close(rows, np.asarray(plain(ids)), EXACT)
    assert_close(ours(ids[:3]), np.asarray(plain(ids[:3])), EXACT)
    with pytest.raises(InvalidArgument, match=f"11 to {NUM_WORDS} for 'embeddings'"):
        ours(ids[3:4])


def test_weights_are_set_by_shard_or_as_the_whole_table() -> None:
    start = np.arange(NUM_WORDS * WIDTH, dtype="float32").reshape(NUM_WORDS, WIDTH)
    with servers(2).scope():
        layer = tf.keras.layers.Embedding(NUM_WORDS, WIDTH, weights=start)
    assert_close(layer.embeddings, start, EXACT)
    parts = layer.get_weights()
    assert [part.shape for part in parts] == [(6, WIDTH), (5, WIDTH)]
    layer.set_weights([start + 1])
    assert_close(layer.embeddings, start + 1, EXACT)
    layer.set_weights(parts)
    assert_close(layer.embeddings, start, EXACT)
    layer.embeddings.assign(start * 2)
    assert_close(layer.embeddings, start * 2, EXACT)
    for wrong in ([start[:-1]], [*parts, start], parts[::-1]):
        with pytest.raises(ValueError, match=r"shape|length"):
            layer.set_weights(wrong)
    assert_close(layer.embeddings, start * 2, EXACT)


def test_an_initializer_may_make_each_shard_by_itself() -> None:
    asked = []

    def initializer(
        shape: Any, dtype: Any = None, partition_shape: Any = None, partition_offset: Any = None
    ) -> Any:
        asked.append((tuple(shape), partition_shape, partition_offset))
        return jnp.full(partition_shape, partition_offset[0], dtype)

    layer = embedding(servers(2), embeddings_initializer=initializer)
    whole = (NUM_WORDS, WIDTH)
    assert asked == [(whole, (6, WIDTH), (0, 0)), (whole, (5, WIDTH), (6, 0))]
    assert layer.embeddings.numpy()[:, 0].tolist() == [0] * 6 + [6] * 5


def test_low_rank_changes_of_a_table_in_shards() -> None:
    plain, ours = (embedding(where, lora_rank=2) for where in (None, servers(3)))
    ids, factor = data()[0], np.arange(8, dtype="float32").reshape(2, WIDTH)
    for layer in (plain, ours):
        assert [w.name for w in layer.trainable_weights] == [
            "lora_embeddings_a",
            "lora_embeddings_b",
        ]
        layer.lora_embeddings_b.assign(factor)
    assert_close(ours(ids), np.asarray(plain(ids)), REFERENCE)
    assert_close(ours.embeddings, np.asarray(plain.embeddings), REFERENCE)


# Constraints and regularizers --------------------------------------------------------------------


def columns(w: Any) -> Any:
    """A constraint that needs all rows."""
    return w - keras.ops.mean(w, axis=0, keepdims=True)


def for_this_table(w: Any) -> Any:
    return w * np.ones((NUM_WORDS, WIDTH), "float32")


@pytest.mark.parametrize(
    "options",
    [
        {"embeddings_constraint": constraints.MaxNorm(2)},
        {"embeddings_constraint": constraints.MaxNorm(1e9)},
        {"embeddings_constraint": constraints.UnitNorm()},
        {"embeddings_constraint": columns},
        {"embeddings_constraint": for_this_table},
        {"embeddings_regularizer": regularizers.OrthogonalRegularizer()},
        {"embeddings_regularizer": lambda w: keras.ops.mean(w**2)},
        {"embeddings_regularizer": lambda w: keras.ops.sqrt(keras.ops.sum(w**2))},
    ],
)
def test_what_needs_all_rows_keeps_the_table_whole(options: dict[str, Any]) -> None:
    kind = next(iter(options)).removeprefix("embeddings_")
    with pytest.warns(UserWarning, match=f"'words' stays whole.*its {kind} "):
        layer = embedding(servers(3), name="words", **options)
    assert isinstance(layer.embeddings, keras.Variable)


@pytest.mark.parametrize(
    "options",
    [
        # Rows that are not used stay as they are: let them be allowed from the start.
        {
            "embeddings_constraint": "non_neg",
            "embeddings_initializer": keras.initializers.RandomUniform(0.0, 0.1, seed=1),
        },
        {"embeddings_constraint": constraints.MaxNorm(0.05, axis=1)},
        {"embeddings_constraint": constraints.UnitNorm(axis=-1)},
        {"embeddings_regularizer": regularizers.L1L2(0.1, 0.01)},
        {"embeddings_regularizer": lambda w: keras.ops.sum(keras.ops.abs(w * w * w))},
    ],
)
def test_what_acts_on_rows_acts_as_in_keras(options: dict[str, Any]) -> None:
    def build(k: Any) -> Any:
        return regression(k, **options)

    def optimizer(k: Any) -> Any:
        return k.optimizers.SGD(0.5)

    plain, expected = trained(None, build, optimizer)
    model, losses = trained(servers(3), build, optimizer)
    assert len(model.layers[0].weights) == 3
    assert_close(losses, expected, REFERENCE)
    assert_close(table_of(model), table_of(plain), REFERENCE)


# Training ----------------------------------------------------------------------------------------


def masked(k: Any) -> Any:
    """A recurrent model that leaves out padding."""
    keras.utils.set_random_seed(7)
    ids = k.Input((LENGTH,), dtype="int32")
    words = k.layers.Embedding(NUM_WORDS, WIDTH, mask_zero=True)(ids)
    return k.Model(ids, k.layers.Dense(1)(k.layers.GRU(3)(words)))


def built_late(k: Any) -> Any:
    """A model that makes its weights when `fit` begins."""
    keras.utils.set_random_seed(7)
    return k.Sequential(
        [k.layers.Embedding(NUM_WORDS, WIDTH), k.layers.Flatten(), k.layers.Dense(1)]
    )


def mixed(k: Any) -> Any:
    return regression(k, dtype="mixed_bfloat16")


@pytest.mark.parametrize("build", [regression, masked, built_late, mixed])
def test_fit_with_one_worker_equals_plain_keras(build: Callable[[Any], Any]) -> None:
    def optimizer(k: Any) -> Any:
        return k.optimizers.Adagrad(0.5)

    plain, expected = trained(None, build, optimizer)
    model, losses = trained(servers(3), build, optimizer)
    assert len(model.layers[-3].weights) == 3
    assert_close(losses, expected, REFERENCE)
    assert_close(table_of(model), table_of(plain), REFERENCE)
    assert_close(model.predict(data()[0], verbose=0), plain.predict(data()[0], verbose=0))


@pytest.mark.parametrize(
    "make",
    [
        lambda k: k.optimizers.SGD(0.5, momentum=0.9, nesterov=True),
        lambda k: k.optimizers.Adam(0.1),
        lambda k: k.optimizers.AdamW(0.1, weight_decay=0.1, use_ema=True),
        lambda k: k.optimizers.RMSprop(0.1, global_clipnorm=0.5),
        lambda k: k.optimizers.Lion(0.1, gradient_accumulation_steps=2),
    ],
)
def test_shards_are_trained_as_the_whole_table_is(make: Callable[[Any], Any]) -> None:
    whole, expected = trained(servers(1), regression, make)
    model, losses = trained(servers(3), regression, make)
    assert len(model.layers[0].weights) == 3
    assert_close(losses, expected, REFERENCE)
    assert_close(table_of(model), table_of(whole), REFERENCE)


def test_workers_that_do_not_wait_learn() -> None:
    strategy = servers(3, workers=3)
    with strategy.scope():
        model = regression(tf.keras)
        model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    ids, _ = data(128)
    labels = (ids % 2 == 0).sum(axis=1, keepdims=True).astype("float32")
    losses = history_of(model, ids, labels, epochs=8)["loss"]
    assert losses[-1] < 0.2 * losses[0]
    assert strategy.monitor.report().applied == 8 * 16


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("is_built", [True, False])
def test_a_loop_of_ones_own_by_workers(workers: int, is_built: bool) -> None:
    """A loss that is linear in the rows: whatever the order, the sum of all steps, and exact."""
    strategy = servers(3, workers)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        layer = tf.keras.layers.Embedding(NUM_WORDS, WIDTH, "zeros")
        optimizer = tf.keras.optimizers.SGD(0.25)
    if is_built:
        layer.build()

    def replica(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = jnp.sum(layer(ids))
        gradients = tape.gradient(loss, layer.trainable_weights)
        optimizer.apply_gradients(zip(gradients, layer.trainable_weights, strict=True))
        return loss

    step = tf.function(lambda ids: strategy.run(replica, args=(ids,)))
    ids, _ = data(40)
    for part in np.split(ids, 10):
        coordinator.schedule(step, args=(part,))
    coordinator.join()
    assert len(layer.weights) == 3
    uses = np.bincount(ids.reshape(-1), minlength=NUM_WORDS)
    assert_close(layer.embeddings, -0.25 * np.repeat(uses[:, None], WIDTH, axis=1), EXACT)
    assert int(optimizer.iterations) == 10


def test_rows_travel_to_every_shard_and_others_keep_all_they_have() -> None:
    rig = Rig()
    rig.strategy = servers(3)
    layer = embedding(rig.strategy)
    start, optimizer = layer.embeddings.numpy(), tf.keras.optimizers.Adam(0.1)

    def train(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = jnp.sum(layer(ids) ** 2)
        gradients = tape.gradient(loss, layer.trainable_weights)
        optimizer.apply_gradients(zip(gradients, layer.trainable_weights, strict=True))
        return loss

    ids = np.array([0, 10, 10, 5], np.int32)
    computed = rig.compute(rig.step(train, ids), ids)
    carried: Any = computed.push.update
    found = []
    for rows, shard in zip(carried.residuals, layer.embeddings, strict=True):
        found.append([row for row in rows.indices.tolist() if row < shard.shape[0]])
    assert found == [[0], [1], [2]]  # of rows 0 to 3, 4 to 7 and 8 to 10
    rig.apply(computed)
    others = [row for row in range(NUM_WORDS) if row not in ids]
    assert_close(layer.embeddings.numpy()[others], start[others], EXACT)
    assert np.all(layer.embeddings.numpy()[[0, 5, 10]] != start[[0, 5, 10]])
    slots = [v for v in optimizer.variables if v.ndim == 2]
    assert [slot.shape for slot in slots] == [
        shard.shape for shard in layer.embeddings for _ in range(2)
    ]


# Keras's files -----------------------------------------------------------------------------------


def adam(k: Any) -> Any:
    return k.optimizers.Adam(0.05)


def slots_of(model: Any) -> list[Any]:
    """Moments of the whole table and the dense layer, in the order of plain Keras."""
    found: dict[str, list[Any]] = {}
    for slot in model.optimizer.variables[2:]:
        name = re.sub(r"embeddings_part_\d+", "embeddings", slot.path.split("sequential")[-1])
        found.setdefault(re.sub(r"_\d+", "", name), []).append(np.asarray(slot))
    return [np.concatenate(parts) for parts in found.values()]


PLACES = {
    "plain": lambda: None,
    "whole": lambda: servers(1),
    "two": lambda: servers(2),
    "three": lambda: servers(3),
}


@pytest.mark.contract(107)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("plain", "three"),
        ("whole", "three"),
        ("two", "three"),
        ("three", "two"),
        ("three", "whole"),
        ("three", "plain"),
    ],
)
def test_weights_are_saved_whole(tmp_path: Any, before: str, after: str) -> None:
    model, _ = trained(PLACES[before](), regression, adam)
    model.save_weights(tmp_path / "of.weights.h5")
    strategy = PLACES[after]()
    if strategy is None:
        other = regression(keras)
        other.compile(adam(keras), "mse")
    else:
        with strategy.scope():
            other = regression(tf.keras)
            other.compile(adam(tf.keras), "mse")
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "of.weights.h5")
    assert_close(table_of(other), table_of(model), EXACT)
    assert_close(slots_of(other), slots_of(model), EXACT)
    assert int(other.optimizer.iterations) == 8


@pytest.mark.contract(107)
@pytest.mark.parametrize("after", ["plain", "whole", "three"])
def test_a_saved_model_loads_anywhere(tmp_path: Any, after: str) -> None:
    model, _ = trained(servers(2), regression, adam)
    model.save(tmp_path / "model.keras")
    strategy = PLACES[after]()
    if strategy is None:
        other: Any = keras.models.load_model(tmp_path / "model.keras")
        assert type(other.layers[0]) is keras.layers.Embedding
    else:
        with strategy.scope():
            other = tf.keras.models.load_model(tmp_path / "model.keras")
    assert len(other.layers[0].weights) == (3 if after == "three" else 1)
    assert_close(table_of(other), table_of(model), EXACT)
    assert_close(slots_of(other), slots_of(model), EXACT)
    assert_close(other.predict(data()[0], verbose=0), model.predict(data()[0], verbose=0))


def test_what_does_not_fit_is_not_loaded(tmp_path: Any) -> None:
    model = regression(keras)
    model.layers[0].quantize("int8")
    model.save_weights(tmp_path / "of.weights.h5")
    with servers(2).scope():
        other = regression(tf.keras)
    with pytest.raises(ValueError, match="2 arrays for"):
        other.load_weights(tmp_path / "of.weights.h5")
