"""With one of four workers slowed tenfold: who does how much, and who is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import paceline as tf
from keras_oracle import linear
from message_models import compiled, parameter_servers
from virtual_speeds import VirtualSpeeds

SLOW = 3
NUM_BATCHES = 64
X = np.linspace(-1.0, 1.0, 2 * NUM_BATCHES, dtype="float32")[:, None]


def trained(pace: Any) -> tuple[Any, VirtualSpeeds, Any]:
    """Trains by four workers, the last one slow; the report is of this only."""
    strategy = parameter_servers(4, pace=pace)
    model = compiled(
        strategy, linear, lambda k: {"optimizer": k.optimizers.SGD(0.01), "loss": "mse"}
    )
    model.fit(X[:2], -X[:2], batch_size=2, verbose=0)  # traces and compiles
    before = strategy.monitor.report()
    with VirtualSpeeds(strategy, {SLOW: 10.0}) as speeds:
        model.fit(X, -X, batch_size=2, verbose=0)
    report = strategy.monitor.report().since(before)
    assert report.examples == len(X)
    return model, speeds, report


def per_worker(report: Any) -> dict[int, int]:
    return {one.index: one.applied for one in report.workers}


def test_free_running_it_takes_a_tenth_of_the_batches() -> None:
    model, speeds, report = trained(tf.pace.Asynchronous())
    counts = per_worker(report)
    assert counts.pop(SLOW) == 2
    assert sorted(counts.values()) == [20, 21, 21]
    assert speeds.now == 21.0  # four fast workers would need 16
    assert int(model.optimizer.iterations) == NUM_BATCHES + 1
    check_names_the_slow_one(report)


def test_lockstep_is_held_up_by_it() -> None:
    model, speeds, report = trained(tf.pace.Synchronous())
    assert set(per_worker(report).values()) == {16}
    assert speeds.now == 160.0
    assert int(model.optimizer.iterations) == 16 + 1
    # Three of four wait 9 of 10 seconds. A wait counts from when the worker is seen to want work.
    assert 0.3 < report.wait_share <= 27 / 40
    check_names_the_slow_one(report)


def test_lockstep_with_a_backup_is_not_held_up_by_it() -> None:
    _, speeds, report = trained(tf.pace.Synchronous(backups=1))
    counts = per_worker(report)
    assert speeds.now <= 31.0  # 21 rounds or so, and the last step that the slow one has begun
    assert counts.get(SLOW, 0) <= 1  # it is late until nobody else has data
    assert report.workers[SLOW].dropped == report.dropped
    assert 2 <= report.dropped <= 3  # at 10, at 20, and perhaps at the end
    assert all("orker 3 came late for round" in reason for reason in report.drops)
    check_names_the_slow_one(report)


def test_bounded_staleness_keeps_its_speed_some_steps_ahead() -> None:
    _, speeds, report = trained(tf.pace.BoundedStaleness(4))
    counts = per_worker(report)
    assert counts.pop(SLOW) >= 12
    assert max(counts.values()) <= 12 + 4 + 1 + 1
    assert speeds.now >= 120.0
    check_names_the_slow_one(report)


def check_names_the_slow_one(report: Any) -> None:
    assert report.stragglers == ("worker:3",)
    assert report.typical_compute == pytest.approx(1.0, rel=0.005)
    assert "worker:3" in report.summary()
