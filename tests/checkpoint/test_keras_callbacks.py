"""Keras's callbacks that save, under a fit on replicas, and checkpoints saved by a callback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import paceline as tf
from checkpoint_models import in_scope, make_model, state_arrays
from paceline.testing import EXACT, assert_close

if TYPE_CHECKING:
    from pathlib import Path


class _Stop(keras.callbacks.Callback):
    """Ends the process, as far as fit can tell, at the start of an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._epoch:
            raise KeyboardInterrupt


def fit(model: Any, batches: list[Any], *callbacks: Any, epochs: int = 4) -> Any:
    x, y = (np.concatenate(parts) for parts in zip(*batches[:2], strict=True))
    return model.fit(
        x, y, batch_size=12, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
    )


def test_backup_and_restore(tmp_path: Path, batches: list[Any]) -> None:
    def make() -> Any:
        return in_scope(2, lambda: make_model(dropout=0.0))

    keras.utils.set_random_seed(1)
    whole = make()
    fit(whole, batches)
    keras.utils.set_random_seed(1)
    stopped = make()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, batches, backup, _Stop(2))
    keras.utils.set_random_seed(2)
    resumed = make()
    history = fit(resumed, batches, keras.callbacks.BackupAndRestore(tmp_path / "backup"))
    assert history.epoch == [2, 3]
    assert_close(state_arrays(resumed), state_arrays(whole), EXACT)


def test_model_checkpoint(tmp_path: Path, batches: list[Any]) -> None:
    model = in_scope(2, make_model)
    path = tmp_path / "best.weights.h5"
    fit(model, batches, keras.callbacks.ModelCheckpoint(path, save_weights_only=True), epochs=1)
    plain = in_scope(None, make_model)
    plain.optimizer.build(plain.trainable_variables)  # Keras warns of slots it has no place for
    plain.load_weights(path)
    assert_close(values(plain), values(model), EXACT)


def values(model: Any) -> list[Any]:
    """What Keras's own files hold: they leave out seeds."""
    return [np.asarray(v.value) for v in [*model.weights, *model.optimizer.variables]]


def test_a_checkpoint_saved_and_restored_by_a_callback(tmp_path: Path, batches: list[Any]) -> None:
    model = in_scope(2, make_model)
    checkpoint = tf.train.Checkpoint(model=model, epoch=0)
    manager = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=2)

    def save(epoch: int, logs: Any) -> None:
        checkpoint.epoch = epoch + 1
        manager.save()

    fit(model, batches, keras.callbacks.LambdaCallback(on_epoch_end=save), epochs=3)
    expected = state_arrays(model)
    fit(model, batches, epochs=1)
    status = checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    assert checkpoint.epoch == 3
    status.assert_consumed()
    assert_close(state_arrays(model), expected, EXACT)


def test_plain_keras_keeps_its_state_elsewhere_during_fit(
    tmp_path: Path, batches: list[Any]
) -> None:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    checkpoint = tf.train.Checkpoint(model=model)
    paths = []
    save = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: paths.append(checkpoint.save(tmp_path / "ckpt"))
    )
    fit(model, batches, save, epochs=1)
    final = model.get_weights()
    checkpoint.restore(paths[0])
    assert not np.array_equal(model.get_weights()[0], final[0])
    checkpoint.restore(paths[-1])
    assert_close(model.get_weights(), final, EXACT)
