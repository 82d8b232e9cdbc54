"""What tests look at in a run: its pushes, and the checks of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import paceline as tf
from keras_oracle import linear
from message_models import compiled
from paceline import testing, virtual
from paceline.errors import InvalidType
from push_records import push
from virtual_runs import Descent, simulated

RUN = [push(0, 1.0), push(1, 1.5, staleness=1), push(0, 2.0, outcome="dropped", staleness=9)]


def test_the_pushes_of_a_run_are_collected_while_the_context_is_open() -> None:
    descent = Descent(simulated(2), 0.1)
    pushes = descent.run(5)
    assert [(one.worker, one.finished_at) for one in pushes] == [
        (0, 1.0), (1, 1.0), (0, 2.0), (1, 2.0), (0, 3.0),
    ]  # fmt: skip
    descent.coordinator.schedule(descent.step)
    descent.coordinator.join()
    assert len(pushes) == 5
    assert descent.strategy.monitor.report().applied == 6


def test_the_program_of_the_how_to() -> None:
    """A slow worker, and another one that is lost in its third step."""
    strategy = simulated(
        4,
        pace=tf.pace.BoundedStaleness(2),
        compute=virtual.Slow(1.0, {3: 10.0}),
        faults=testing.FaultPlan([testing.Loss(task="worker:1", step=2, back_after=5.0)]),
    )
    model = compiled(strategy, linear, lambda k: {"optimizer": "sgd", "loss": "mse"})
    x = np.linspace(-1.0, 1.0, 160, dtype="float32")[:, None]
    with testing.pushes_of(strategy) as pushes:
        model.fit(x, -x, batch_size=8, verbose=0)
    testing.assert_counted_once(pushes, examples=len(x))
    # While a worker makes a step, each other one goes from 2 behind to 3 ahead at most.
    testing.assert_staleness(pushes, most=3 * 5)
    assert {push.worker for push in pushes} == {0, 1, 2, 3}
    assert strategy.driver.clock.now < 60


def test_a_strategy_without_workers_has_no_pushes() -> None:
    with (
        pytest.raises(InvalidType, match=r"Received: MirroredStrategy"),
        testing.pushes_of(tf.distribute.MirroredStrategy(["cpu:0"])),
    ):
        pass


def test_two_runs_are_the_same() -> None:
    testing.assert_same_pushes(RUN, list(RUN))
    testing.assert_same_pushes([], [])


def test_the_first_difference_is_shown() -> None:
    other = [RUN[0], push(1, 1.75, staleness=1), RUN[2]]
    with pytest.raises(AssertionError, match=r"part at push 1\. .*=1\.5, .*Expected: .*=1\.75, "):
        testing.assert_same_pushes(RUN, other)
    for one, two in ((RUN, RUN[:2]), (RUN[:2], RUN)):
        text = rf"Actual: {len(one)} pushes. Expected: {len(two)}. .*{re.escape(str(RUN[2]))}"
        with pytest.raises(AssertionError, match=text):
            testing.assert_same_pushes(one, two)


def test_staleness_is_that_of_applied_pushes() -> None:
    testing.assert_staleness(RUN, mean=0.5, most=1)
    testing.assert_staleness(RUN, mean=0.51, tolerance=testing.CONVERGENCE)
    with pytest.raises(AssertionError, match=r"no staleness above 0\. Actual: .*worker=1"):
        testing.assert_staleness(RUN, most=0)
    with pytest.raises(AssertionError, match="EXACT"):
        testing.assert_staleness(RUN, mean=0.51)
    with pytest.raises(AssertionError, match="none of 1"):
        testing.assert_staleness(RUN[2:], most=0)


def test_examples_count_once() -> None:
    run = [push(examples=8), push(examples=8, outcome="dropped"), push(examples=4)]
    testing.assert_counted_once(run, 12)
    with pytest.raises(AssertionError, match=r"Expected: 20 .* Actual: 12, in 3 .* 1 were dropped"):
        testing.assert_counted_once(run, 20)


def test_clock_and_faults_are_those_of_virtual_time() -> None:
    for name in ("Clock", "FaultPlan", "Loss", "Preemptions"):
        assert getattr(testing, name) is getattr(virtual, name)
