"""With one of four workers slowed tenfold: who does how much, and who is named. By hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import paceline as tf
from keras_oracle import linear
from message_models import compiled
from paceline.testing import GOLDEN, assert_close
from paceline.virtual import Slow
from virtual_runs import simulated

SLOW = 3


def trained(pace: Any, batches: int) -> tuple[Any, float, Any]:
    """Trains by four workers, the last one slow; seconds and report are of this only."""
    strategy = simulated(4, pace=pace, compute=Slow(1.0, {SLOW: 10.0}))
    model = compiled(
        strategy, linear, lambda k: {"optimizer": k.optimizers.SGD(0.01), "loss": "mse"}
    )
    x = np.linspace(-1.0, 1.0, 2 * batches, dtype="float32")[:, None]
    # A first fit waits for its first batch. Now each worker has made one, and is at clock 1.
    model.fit(x[:8], -x[:8], batch_size=2, verbose=0)
    before, began = strategy.monitor.report(), strategy.driver.clock.now
    model.fit(x, -x, batch_size=2, verbose=0)
    report = strategy.monitor.report().since(before)
    assert report.examples == len(x)
    return model, strategy.driver.clock.now - began, report


def per_worker(report: Any) -> dict[int, int]:
    return {one.index: one.applied for one in report.workers}


def test_free_running_it_takes_a_tenth_of_the_batches() -> None:
    model, seconds, report = trained(tf.pace.Asynchronous(), 62)
    assert per_worker(report) == {0: 20, 1: 20, 2: 20, SLOW: 2}
    assert seconds == 20.0  # four fast workers would need 16
    assert report.wait_share == 0.0
    assert int(model.optimizer.iterations) == 4 + 62
    check_names_the_slow_one(report)


def test_lockstep_is_held_up_by_it() -> None:
    model, seconds, report = trained(tf.pace.Synchronous(), 64)
    assert per_worker(report) == {0: 16, 1: 16, 2: 16, SLOW: 16}
    assert seconds == 160.0
    assert int(model.optimizer.iterations) == 1 + 16
    # Three wait 9 s before each round but the first; a round takes them 1 s, the slow one 10 s.
    waits = 3 * 9 * 15
    assert_close(report.wait_share, waits / (waits + 16 * (3 + 10)), GOLDEN)
    check_names_the_slow_one(report)


def test_lockstep_with_a_backup_is_not_held_up_by_it() -> None:
    """21 rounds make 63 batches. The slow one comes late at 10, 20 and 30; its last one is left."""
    _, seconds, report = trained(tf.pace.Synchronous(backups=1), 64)
    assert seconds == 31.0
    counts = per_worker(report)
    assert counts.pop(SLOW) == 0
    assert sorted(counts.values()) == [21, 21, 22]
    assert report.workers[SLOW].dropped == report.dropped == 3
    assert all("orker 3 came late for round" in reason for reason in report.drops)
    check_names_the_slow_one(report)


def test_bounded_staleness_keeps_its_speed_some_steps_ahead() -> None:
    """The fast ones finish clock 5 at 5, and from then on one clock in ten seconds."""
    _, seconds, report = trained(tf.pace.BoundedStaleness(4), 64)
    assert per_worker(report) == {0: 17, 1: 17, 2: 17, SLOW: 13}
    assert seconds == 130.0
    waits = 3 * (5 + 11 * 9)  # from 5 to 10, then from 11 to 20 and so on
    assert_close(report.wait_share, waits / (waits + 3 * 17 + 13 * 10), GOLDEN)
    check_names_the_slow_one(report)


def check_names_the_slow_one(report: Any) -> None:
    assert report.stragglers == ("worker:3",)
    assert report.typical_compute == pytest.approx(1.0, rel=0.005)  # as wide as a bucket
    assert "worker:3" in report.summary()
