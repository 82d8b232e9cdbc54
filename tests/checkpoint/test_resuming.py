"""A run that stops, and one that another process goes on with on other replicas."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline as tf
from checkpoint_models import in_scope, make_model, make_small_model, state_arrays
from paceline.testing import EXACT, GOLDEN, assert_close


def train(model: Any, batches: list[Any]) -> None:
    for x, y in batches:
        model.train_on_batch(x, y)


def fit(model: Any, batches: list[Any]) -> None:
    model.fit(_Batches(batches), shuffle=False, verbose=0)


class _Batches(keras.utils.PyDataset):
    def __init__(self, batches: list[Any]) -> None:
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


def checkpoint_of(model: Any, step: int = 0) -> Any:
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=step)


@pytest.mark.parametrize(("num_replicas", "go_on"), [(None, train), (1, fit), (2, fit), (3, train)])
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(
    tmp_path: Path, batches: list[Any], num_replicas: int | None, go_on: Any
) -> None:
    model = in_scope(num_replicas, make_model)
    go_on(model, batches[:4])
    checkpoint = checkpoint_of(model)
    checkpoint.step = 4
    path = checkpoint.save(tmp_path / "ckpt")
    go_on(model, batches[4:])

    keras.utils.set_random_seed(99)
    other = in_scope(num_replicas, make_model)
    resumed = checkpoint_of(other)
    status = resumed.restore(path)
    assert resumed.step == 4
    go_on(other, batches[resumed.step :])
    status.assert_consumed()
    assert_close(state_arrays(other), state_arrays(model), EXACT)


@pytest.mark.case("R103")
@pytest.mark.parametrize("after", [None, 1, 3])
def test_a_run_goes_on_with_any_number_of_replicas(
    tmp_path: Path, batches: list[Any], after: int | None
) -> None:
    # Masks differ between numbers of replicas, so this model drops nothing.
    model = in_scope(2, lambda: make_model(dropout=0.0))
    train(model, batches[:3])
    path = checkpoint_of(model, step=3).save(tmp_path / "ckpt")

    keras.utils.set_random_seed(99)
    other = in_scope(after, lambda: make_model(dropout=0.0))
    resumed = checkpoint_of(other)
    status = resumed.restore(path)
    other.optimizer.build(other.trainable_variables)
    assert int(other.optimizer.iterations) == resumed.step == 3
    assert_close(state_arrays(other), state_arrays(model), EXACT)
    train(model, batches[3:4])
    train(other, batches[3:4])
    status.assert_consumed()
    assert_close(state_arrays(other), state_arrays(model), GOLDEN)


@pytest.mark.parametrize(("before", "after"), [(None, 3), (2, 3), (2, None)])
def test_metrics_go_on_counting(tmp_path: Path, before: int | None, after: int | None) -> None:
    old = in_scope(before, tf.keras.metrics.Mean)
    update(old, [1.0, 2.0])
    path = tf.train.Checkpoint(metric=old).save(tmp_path / "ckpt")
    new = in_scope(after, tf.keras.metrics.Mean)
    tf.train.Checkpoint(metric=new).restore(path).assert_consumed()
    assert_close(new.result(), old.result())
    count = float(old.count.value)
    update(new, [9.0])
    assert_close(new.count, count + (after or 1))


def update(metric: Any, values: list[float]) -> None:
    """Updates the metric on every replica."""
    strategy = getattr(metric.total, "distribute_strategy", None) or tf.distribute.get_strategy()
    strategy.run(metric.update_state, args=(np.array(values, "float32"),))


def test_a_loop_of_ones_own_goes_on(tmp_path: Path, batches: list[Any]) -> None:
    def make() -> tuple[Any, Any, Any]:
        with tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
            layers = tf.keras.layers
            model = tf.keras.Sequential([layers.Dense(4), layers.Dropout(0.5), layers.Dense(2)])
            optimizer = tf.keras.optimizers.Adam(0.05)
            step = tf.Variable(0, dtype="int32", aggregation=tf.VariableAggregation.SUM)
        return model, optimizer, step

    def run(parts: tuple[Any, Any, Any], own: list[Any]) -> None:
        model, optimizer, step = parts
        strategy = step.distribute_strategy
        loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function
        def train_step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        for x, y in strategy.experimental_distribute_dataset(own):
            strategy.run(train_step, args=(x, y))
            step.assign_add(1)

    def checkpoint_of_parts(parts: tuple[Any, Any, Any]) -> Any:
        model, optimizer, step = parts
        return tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)

    parts = make()
    run(parts, batches[:4])
    path = checkpoint_of_parts(parts).save(tmp_path / "ckpt")
    run(parts, batches[4:])

    keras.utils.set_random_seed(99)
    others = make()
    # Neither the model nor the optimizer is built: the first step, while it is traced, builds them.
    status = checkpoint_of_parts(others).restore(path)
    run(others, batches[4:])
    status.assert_consumed()
    for part, other in zip(parts[:2], others[:2], strict=True):
        assert_close(
            [np.asarray(v.value) for v in other.variables],
            [np.asarray(v.value) for v in part.variables],
            EXACT,
        )
    assert int(others[2].value) == 10


def test_names_do_not_depend_on_what_else_the_process_made(tmp_path: Path) -> None:
    """Keras numbers layers per process: `dense_2` here is `dense` in a fresh one."""
    make_small_model()
    model, optimizer = make_small_model()
    optimizer.apply([np.ones(v.shape, "float32") for v in model.trainable_variables])
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=2)
    path = checkpoint.save(tmp_path / "ckpt")
    program = """
        import sys
        import numpy as np
        import paceline as tf
        from checkpoint_models import make_small_model

        model, optimizer = make_small_model()
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=0)
        checkpoint.restore(sys.argv[1]).assert_consumed()
        assert checkpoint.step == 2
        np.savez(sys.argv[2], *[np.asarray(v.value) for v in model.weights + optimizer.variables])
    """
    result = tmp_path / "state.npz"
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), path, str(result)],
        check=True,
        cwd=Path(__file__).parents[1],
        timeout=100,
    )
    expected = [np.asarray(v.value) for v in [*model.weights, *optimizer.variables]]
    with np.load(result) as arrays:
        assert_close([arrays[name] for name in arrays.files], expected, EXACT)
