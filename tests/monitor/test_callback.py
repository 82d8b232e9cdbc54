"""The callback in `fit`, under a strategy whose pushes are written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import paceline as tf
from paceline.monitor import StalenessReport, Statistics
from push_records import push

if TYPE_CHECKING:
    from pathlib import Path


class Pushes(keras.callbacks.Callback):
    """Records two pushes a batch, where a cluster would; one second each, staleness the epoch's."""

    def __init__(self, statistics: Statistics) -> None:
        super().__init__()
        self._statistics = statistics
        self._now = 100.0
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch
        self._now += 50.0  # a pause, which belongs to no epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        for worker in (0, 1):
            self._now += 1.0
            record = push(worker, self._now, staleness=self._epoch, compute=1.0, examples=2)
            self._statistics.record(record)


class Seen(keras.callbacks.Callback):
    """Keeps the logs of epochs, as a callback after the report sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, Any]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.logs.append(dict(logs or {}))


@pytest.fixture
def statistics(monkeypatch: pytest.MonkeyPatch) -> Statistics:
    """The `monitor` of the strategy that models follow by default."""
    made = Statistics()
    monkeypatch.setattr(tf.distribute.get_strategy(), "monitor", made, raising=False)
    return made


def fit(*callbacks: Any, epochs: int = 2, verbose: int = 0, model: Any = None) -> Any:
    if model is None:
        model = tf.keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model.fit(
        np.ones((8, 2)), np.ones((8, 1)), batch_size=4, epochs=epochs, verbose=verbose,
        callbacks=list(callbacks),
    )  # fmt: skip


def test_epoch_logs(statistics: Statistics, capsys: pytest.CaptureFixture[str]) -> None:
    seen = Seen()
    history = fit(Pushes(statistics), StalenessReport(print_table=False), seen, verbose=2)
    assert history.history["mean_staleness"] == [0.0, 1.0]
    assert history.history["steps_per_second"] == [1.0, 1.0]
    assert [logs["mean_staleness"] for logs in seen.logs] == [0.0, 1.0]
    printed = capsys.readouterr().out
    assert "mean_staleness: 1.0" in printed
    assert "steps_per_second: 1.0" in printed
    assert "Pushes by worker" not in printed


def test_early_stopping_can_watch_the_staleness(statistics: Statistics) -> None:
    stop = keras.callbacks.EarlyStopping("mean_staleness", mode="min", patience=1)
    history = fit(Pushes(statistics), StalenessReport(print_table=False), stop, epochs=9)
    assert len(history.epoch) == 2


def test_the_table_at_the_end(statistics: Statistics, capsys: pytest.CaptureFixture[str]) -> None:
    statistics.record(push(7, staleness=30))  # of an earlier training
    callback = StalenessReport()
    fit(Pushes(statistics), callback)
    printed = capsys.readouterr().out
    assert printed.count("Pushes by worker") == 1
    assert "2 workers made 8 steps" in printed
    assert callback.report is not None
    assert callback.report.applied == 8
    assert callback.report.histogram == {0: 4, 1: 4}


def test_tensorboard(statistics: Statistics, tmp_path: Path) -> None:
    callback = StalenessReport(log_dir=tmp_path, print_table=False)
    fit(Pushes(statistics), callback)
    events = EventAccumulator(str(tmp_path), {"scalars": 0, "histograms": 0})  # keeps all
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("staleness/mean")]
    assert found == [(0, 0.0), (1, 1.0)]
    assert [event.histogram_value.num for event in events.Histograms("staleness")] == [4, 4]


def test_a_training_that_failed_and_another_one(statistics: Statistics, tmp_path: Path) -> None:
    def fail(epoch: int, logs: dict[str, Any] | None) -> None:
        raise RuntimeError("an accident")

    callback = StalenessReport(log_dir=tmp_path, print_table=False)
    with pytest.raises(RuntimeError, match="an accident"):
        fit(
            Pushes(statistics), callback, keras.callbacks.LambdaCallback(on_epoch_end=fail),
        )  # fmt: skip
    assert callback.report is None
    fit(Pushes(statistics), callback, epochs=1)
    assert callback.report is not None
    assert callback.report.applied == 4
    assert len(list(tmp_path.iterdir())) == 2


def test_in_lockstep_it_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = tf.keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = StalenessReport(log_dir=tmp_path)
    for _ in range(2):
        history = fit(callback, model=model)
    assert set(history.history) == {"loss"}
    assert callback.report is None
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == (
        "StalenessReport has nothing to report: training in lockstep has no staleness "
        "(MirroredStrategy).\n"
    )


def test_a_plain_keras_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    fit(StalenessReport(), model=model)
    assert "(without a strategy)" in capsys.readouterr().out
