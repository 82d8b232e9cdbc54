"""Callbacks, errors, interruptions and checkpoints while workers push."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import linear
from message_models import BATCH, STRATEGIES, compiled, evaluated, history_of, parameter_servers
from paceline.testing import REFERENCE, assert_close

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_BATCHES = 6
X = np.linspace(-1.0, 1.0, NUM_BATCHES * BATCH, dtype="float32")[:, None]
Y = -2.0 * X


def sgd(k: Any, rate: float = 0.05) -> dict[str, Any]:
    return {"optimizer": k.optimizers.SGD(rate), "loss": "mse", "metrics": ["mae"]}


def frozen(k: Any) -> dict[str, Any]:
    return sgd(k, 0.0)


def model_on(strategy: Any, compile_args: Callable[[Any], dict[str, Any]] = sgd) -> Any:
    return compiled(strategy, linear, compile_args)


def updates(model: Any) -> int:
    return int(model.optimizer.iterations)


@pytest.fixture(params=STRATEGIES)
def make_strategy(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return STRATEGIES[request.param]


# Callbacks ------------------------------------------------------------------------------------


class Counting(keras.callbacks.Callback):
    """Notes the hooks that are called, and the logs of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[str, int]] = []
        self.logs: list[dict[str, float]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.batches.append(("begin", batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(("end", batch))
        self.logs.append(logs)


@pytest.mark.case("R100")
def test_batch_hooks_are_called_for_every_batch() -> None:
    model = model_on(parameter_servers())
    counting = Counting()
    history_of(model, X, Y, epochs=2, callbacks=[counting])
    once = [(hook, k) for k in range(NUM_BATCHES) for hook in ("begin", "end")]
    assert counting.batches == 2 * once
    assert all(logs.keys() == {"loss", "mae"} for logs in counting.logs)
    assert all(isinstance(logs["loss"], float) for logs in counting.logs)
    model.compile(**sgd(tf.keras), steps_per_execution=4)
    counting = Counting()
    history_of(model, X, Y, epochs=1, callbacks=[counting])
    assert counting.batches == [("begin", 0), ("end", 3), ("begin", 4), ("end", 7)]  # as Keras says
    assert updates(model) == NUM_BATCHES


@pytest.mark.case("R65", "R99")
def test_the_callbacks_of_keras(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_on(parameter_servers(), frozen)  # which never gets better
    rate = model.optimizer.learning_rate
    callbacks = keras.callbacks
    options: dict[str, Any] = {"validation_data": (X[:BATCH], Y[:BATCH])}
    stopping = callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    assert len(history_of(model, X, Y, epochs=9, callbacks=[stopping], **options)["loss"]) == 2

    reducing = callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_lr=0.0)
    rate.assign(1e-12)
    rates = history_of(model, X, Y, epochs=3, callbacks=[reducing], **options)["learning_rate"]
    assert_close(rates, np.float32([1e-12, 1e-12, 0.5e-12]))

    schedule = callbacks.LearningRateScheduler(lambda epoch, rate: epoch * 1e-12)
    logged, best = tmp_path / "log.csv", tmp_path / "best.weights.h5"
    logger = callbacks.CSVLogger(logged)
    saving = callbacks.ModelCheckpoint(best, save_weights_only=True)
    found = [schedule, logger, saving]
    rates = history_of(model, X, Y, epochs=2, callbacks=found, **options)["learning_rate"]
    assert_close(rates, np.float32([0.0, 1e-12]))
    rows = list(csv.DictReader(logged.read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert {"loss", "val_mae", "mean_staleness"} <= rows[0].keys()
    plain = model_on(None)
    plain.load_weights(best)
    assert_close(plain.get_weights(), model.get_weights())
    capsys.readouterr()
    for verbose in (0, 1, 2, "auto"):
        history_of(model, X, Y, epochs=1, verbose=verbose)
        shown = capsys.readouterr().out
        assert ("loss" in shown) == (verbose != 0)
        assert ("3 workers" in shown) == (verbose != 0)


class Deciding(keras.callbacks.Callback):
    """Calls a function at the end of a batch."""

    def __init__(self, act: Callable[[Any, int], object], hook: str = "on_train_batch_end") -> None:
        super().__init__()
        setattr(self, hook, lambda batch, logs=None: act(self.model, batch))


def test_training_stops_where_a_callback_says() -> None:
    model = model_on(parameter_servers())

    def stop(model: Any, batch: int) -> None:
        model.stop_training = batch == 2

    history = history_of(model, X, Y, epochs=4, callbacks=[Deciding(stop)])
    assert (updates(model), len(history["loss"])) == (3, 1)
    history_of(model, X, Y, epochs=1)
    assert updates(model) == 3 + NUM_BATCHES


@pytest.mark.case("R54")
def test_a_callback_may_assign_evaluate_and_predict(make_strategy: Callable[..., Any]) -> None:
    plain, model = model_on(None, frozen), model_on(make_strategy(), frozen)
    results: list[Any] = []

    def act(model: Any, batch: int) -> None:
        if batch != 3:
            return
        results.append(evaluated(model, X, Y))
        results.append(model.predict(X, verbose=0))
        model.layers[0].kernel.assign([[0.5]])

    history_of(model, X, Y, epochs=1, callbacks=[Deciding(act)])
    assert_close(results[0], evaluated(plain, X, Y), REFERENCE)
    assert_close(results[1], plain.predict(X, verbose=0), REFERENCE)
    assert float(model.get_weights()[0][0, 0]) == 0.5
    assert updates(model) == NUM_BATCHES


# Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_a_callback_leaves_all_usable(error: type[BaseException]) -> None:
    strategy = parameter_servers()
    model = model_on(strategy, frozen)
    plain = model_on(None, frozen)

    def fail(model: Any, batch: int) -> None:
        if batch == 1:
            raise error("on purpose")

    hooks = {"on_train_batch_end": model.fit, "on_test_batch_end": model.evaluate}
    for hook, call in hooks.items():
        for _ in range(2 * 3 + 1):  # more often than batches may be under way
            with pytest.raises(error, match="on purpose"):
                call(X, Y, batch_size=BATCH, verbose=0, callbacks=[Deciding(fail, hook)])
    assert strategy.driver.is_done()
    assert updates(model) == 7 * 2  # no batch was handed out twice or lost
    assert_close(evaluated(model, X, Y), evaluated(plain, X, Y), REFERENCE)
    history_of(model, X, Y, epochs=1)
    assert updates(model) == 14 + NUM_BATCHES


class Breaking(tf.keras.layers.Layer):
    """Raises at one of its calls."""

    after: int | None = None

    def call(self, x: Any) -> Any:
        if Breaking.after is not None:
            if Breaking.after == 0:
                raise ArithmeticError("a worker broke")
            Breaking.after -= 1
        return x


@pytest.mark.case("R81")
def test_an_error_of_a_worker_surfaces_once(make_strategy: Callable[..., Any]) -> None:
    strategy = make_strategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((1,)), Breaking(), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    for _ in range(9):  # more often than batches may be under way
        Breaking.after = 3
        with pytest.raises(ArithmeticError, match="a worker broke"):
            history_of(model, X, Y)
        Breaking.after = None
        assert strategy.driver.is_done()
        model.evaluate(X[:BATCH], Y[:BATCH], verbose=0)
    Breaking.after = 0
    with pytest.raises(ArithmeticError, match="a worker broke"):
        model.evaluate(X, Y, verbose=0)
    Breaking.after = None
    before = updates(model)
    history_of(model, X, Y, epochs=1)
    assert updates(model) == before + NUM_BATCHES


@pytest.mark.case("R110")
def test_workers_may_be_lost_while_they_train() -> None:
    strategy = parameter_servers()
    model = model_on(strategy, frozen)
    plain = model_on(None, frozen)

    def lose(model: Any, batch: int) -> None:
        strategy.driver.lose(batch % 3)

    callbacks = [Deciding(lose), Deciding(lose, "on_test_batch_end")]
    history = history_of(model, X, Y, epochs=3, callbacks=callbacks)
    assert_close(history, history_of(plain, X, Y, epochs=3), REFERENCE)
    assert updates(model) == 3 * NUM_BATCHES
    actual = evaluated(model, X, Y, callbacks=callbacks)
    assert_close(actual, evaluated(plain, X, Y), REFERENCE)
    report = strategy.monitor.report()
    assert (report.applied, report.examples) == (3 * NUM_BATCHES, 3 * len(X))


def test_a_pace_may_change_between_epochs() -> None:
    strategy = parameter_servers(3)
    model = model_on(strategy)
    paces = [tf.pace.Synchronous(), tf.pace.BoundedStaleness(1), tf.pace.Softsync(2)]

    def switch(model: Any, epoch: int) -> None:
        strategy.pace = paces[epoch]

    callbacks = [Deciding(switch, "on_epoch_begin")]
    history = history_of(model, X, Y, epochs=3, callbacks=callbacks)
    assert updates(model) == 2 + NUM_BATCHES + 3  # in threes, one by one, in pairs
    assert strategy.monitor.report().applied == 3 * NUM_BATCHES
    assert history["loss"][2] < history["loss"][0]


# Checkpoints ----------------------------------------------------------------------------------


@pytest.mark.case("R103")
def test_what_is_saved_continues_anywhere(
    make_strategy: Callable[..., Any], tmp_path: Path
) -> None:
    def momentum(k: Any) -> dict[str, Any]:
        return {"optimizer": k.optimizers.SGD(0.05, momentum=0.9), "loss": "mse"}

    model = model_on(make_strategy(), momentum)
    history_of(model, X, Y, epochs=1)
    model.save_weights(tmp_path / "w.weights.h5")
    model.save(tmp_path / "model.keras")
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "ckpt")
    plain = model_on(None, momentum)
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(tmp_path / "w.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    other = model_on(parameter_servers(1), momentum)
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(saved)
    assert updates(plain) == updates(loaded) == updates(other) == NUM_BATCHES
    for _ in range(2):
        for one in (plain, loaded, other):
            history_of(one, X, Y, epochs=1)
        states = [
            [np.asarray(v) for v in (*m.weights, *m.optimizer.variables)]
            for m in (plain, loaded, other)
        ]
        assert_close(states[1], states[0], REFERENCE)
        assert_close(states[2], states[0], REFERENCE)


# Lifetime -------------------------------------------------------------------------------------


def test_two_models_share_the_workers() -> None:
    strategy = parameter_servers()
    first, second = model_on(strategy), model_on(strategy)
    for _ in range(2):
        history_of(first, X, Y, epochs=1)
        history_of(second, X, Y, epochs=1)
    assert updates(first) == updates(second) == 2 * NUM_BATCHES
