"""Values restored before their variables exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import paceline as tf
from checkpoint_models import in_scope
from paceline.errors import CheckpointError
from paceline.testing import EXACT, assert_close
from replica_values import components, mirrored_strategy

if TYPE_CHECKING:
    from pathlib import Path

X = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)


class _Nested(keras.Model):
    """Sublayers in attributes, a list, a dict and a shared place; built by its first call."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(width), keras.layers.Dense(width)]
        self.heads = {"a": keras.layers.Dense(2), "b": keras.Sequential([keras.layers.Dense(2)])}
        self.shared = self.blocks[0]

    def call(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](x) + self.heads["b"](x)


class _MakesLayersInBuild(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.inner = keras.layers.Dense(2)
        self.inner.build(shape)
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x: Any) -> Any:
        return self.inner(x) * self.scale


def _sequential() -> Any:
    return keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization()])


def _custom() -> Any:
    return keras.Sequential([_MakesLayersInBuild()])


MODELS = {"sequential": _sequential, "nested": _Nested, "layers_in_build": _custom}


def values(item: Any) -> list[Any]:
    return [np.asarray(variable.value) for variable in item.variables]


@pytest.mark.parametrize("num_replicas", [None, 2])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_gets_its_values_when_it_is_built(
    tmp_path: Path, make: Any, num_replicas: int | None
) -> None:
    model = in_scope(num_replicas, make)
    expected = model(X)
    path = tf.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    other = in_scope(num_replicas, make)
    status = tf.train.Checkpoint(model=other).restore(path)
    with pytest.raises(CheckpointError, match="only in the checkpoint: model/"):
        status.assert_consumed()
    assert_close(other(X), expected, EXACT)
    status.assert_consumed()
    assert_close(values(other), values(model), EXACT)


def test_values_are_given_once(tmp_path: Path) -> None:
    model = _sequential()
    model(X)
    path = tf.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    other = _sequential()
    status = tf.train.Checkpoint(model=other).restore(path)
    other(X)
    other.layers[0].bias.assign(np.ones(4))
    status.initialize_or_restore()
    status.assert_consumed()
    assert_close(other.layers[0].bias, np.ones(4), EXACT)
    assert "build" in vars(other.layers[0])  # Keras's own
    assert other.layers[0].build.__wrapped__.__func__ is keras.layers.Dense.build


def test_an_optimizer_gets_its_slots_when_it_is_built(tmp_path: Path) -> None:
    def make() -> Any:
        return tf.Variable([1.0, 2.0]), tf.keras.optimizers.Adam(0.1)

    v, optimizer = make()
    optimizer.apply([np.array([1.0, 3.0])], [v])
    path = tf.train.Checkpoint(v=v, optimizer=optimizer).save(tmp_path / "ckpt")
    w, other = make()
    status = tf.train.Checkpoint(v=w, optimizer=other).restore(path)
    assert int(other.iterations) == 1
    for variable, own in ((v, optimizer), (w, other)):
        own.apply([np.array([2.0, 1.0])], [variable])
    status.assert_consumed()
    assert_close(values(other), values(optimizer), EXACT)
    assert_close(w, np.asarray(v.value), EXACT)


def test_compiling_after_the_restore(tmp_path: Path) -> None:
    def make() -> Any:
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        return model, lambda: model.compile("adam", "mse", metrics=["mae"])

    model, compile_it = make()
    compile_it()
    model.train_on_batch(X, X[:, :1])
    path = tf.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    other, compile_it = make()
    status = tf.train.Checkpoint(model=other).restore(path)
    compile_it()
    assert int(other.optimizer.iterations) == 1
    other.optimizer.build(other.trainable_variables)
    assert_close(values(other.optimizer), values(model.optimizer), EXACT)
    with pytest.raises(CheckpointError, match="flat_metrics/0/metrics/0/total"):
        status.assert_consumed()
    status.assert_existing_objects_matched()


def test_objects_that_come_later(tmp_path: Path) -> None:
    path = tf.train.Checkpoint(v=tf.Variable(3.0), step=5).save(tmp_path / "ckpt")
    checkpoint = tf.train.Checkpoint()
    status = checkpoint.restore(path)
    with pytest.raises(CheckpointError, match="At least one"):
        status.assert_nontrivial_match()
    checkpoint.v = tf.Variable(0.0)
    assert float(checkpoint.v.value) == 3
    status.assert_nontrivial_match().assert_existing_objects_matched()
    checkpoint.step = 0
    assert checkpoint.step == 5
    checkpoint.step += 1
    assert checkpoint.step == 6
    status.assert_consumed()


def test_a_shape_that_turns_out_wrong_raises_in_build(tmp_path: Path) -> None:
    model = _sequential()
    model(X)
    path = tf.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    other = keras.Sequential([keras.layers.Dense(5), keras.layers.BatchNormalization()])
    tf.train.Checkpoint(model=other).restore(path)
    with pytest.raises(
        CheckpointError, match=r"float32\[3, 4\] in the checkpoint, float32\[3, 5\]"
    ):
        other(X)


def test_a_later_restore_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    model = _sequential()
    model(X)
    checkpoint = tf.train.Checkpoint(model=model)
    first = checkpoint.save(tmp_path / "ckpt")
    model.layers[0].bias.assign(np.ones(4))
    second = checkpoint.save(tmp_path / "ckpt")
    other = _sequential()
    resumed = tf.train.Checkpoint(model=other)
    resumed.restore(first)
    resumed.restore(second)
    other(X)
    assert_close(values(other), values(model), EXACT)


def test_on_read_sums_made_in_a_symbolic_build_keep_their_sum(tmp_path: Path) -> None:
    """Keras puts initialisation off here, and the first value would go to every copy."""

    class Counts(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.seen = keras.Variable(
                keras.initializers.Zeros(),
                shape=(),
                dtype="int32",
                trainable=False,
                synchronization="on_read",
                aggregation="sum",
            )

        def call(self, x: Any) -> Any:
            return x

    class Outer(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.counts = Counts()

        def call(self, x: Any) -> Any:
            return self.counts(x)

    saved = tf.train.Checkpoint(model={"counts": {"seen": tf.Variable(7)}})
    path = saved.save(tmp_path / "ckpt")
    with mirrored_strategy(2).scope():
        model = Outer()
        status = tf.train.Checkpoint(model=model).restore(path)
        model(X)
    status.assert_consumed()
    assert components(model.counts.seen) == [4, 3]


def test_statistics_that_a_layer_derives_from_its_variables(tmp_path: Path) -> None:
    layer = keras.layers.Normalization()
    layer.adapt(X * 5 + 2)
    path = tf.train.Checkpoint(layer=layer).save(tmp_path / "ckpt")
    other = keras.layers.Normalization()
    tf.train.Checkpoint(layer=other).restore(path)
    assert_close(other(X), layer(X), EXACT)
    built = keras.layers.Normalization()
    built.build((None, 3))
    tf.train.Checkpoint(layer=built).restore(path).assert_consumed()
    assert_close(built(X), layer(X), EXACT)
