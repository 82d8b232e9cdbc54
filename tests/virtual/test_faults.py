"""Plans of faults: what they hold, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.errors import InvalidArgument
from paceline.testing.tolerances import CONVERGENCE, assert_close
from paceline.virtual import FaultPlan, Loss, Preemptions

AT_TIME = Loss(task="worker:1", at=2.0, back_after=1.0)
IN_STEP = Loss(task="worker:12", step=3)
SERVER = Loss(task="ps:0", at=5.0)


def test_losses_are_addressed_by_time_or_by_task_and_step() -> None:
    plan = FaultPlan([AT_TIME, IN_STEP, SERVER])
    assert plan.at_times() == [AT_TIME, SERVER]
    assert plan.in_steps() == {(12, 3): IN_STEP}


def test_a_task_is_a_kind_and_an_index() -> None:
    assert (AT_TIME.index, AT_TIME.is_server) == (1, False)
    assert (IN_STEP.index, SERVER.index, SERVER.is_server) == (12, 0, True)


def test_one_fault_is_a_plan() -> None:
    assert FaultPlan(AT_TIME).losses == (AT_TIME,)
    assert FaultPlan(Preemptions(per_hour=2.0)).preemptions == (Preemptions(per_hour=2.0),)
    assert (FaultPlan().losses, FaultPlan().preemptions) == ((), ())


def test_a_plan_prints_as_what_makes_it() -> None:
    assert repr(FaultPlan([SERVER])).startswith("FaultPlan([Loss(task='ps:0', at=5.0")


@pytest.mark.parametrize("task", ["worker", "worker:", "worker:-1", "chief:0", "ps:0 ", "worker:x"])
def test_unknown_tasks_are_refused(task: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"called like .*Received: task={task!r}"):
        Loss(task=task, at=1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"task": "worker:0"},
        {"task": "worker:0", "at": 1.0, "step": 1},
        {"task": "ps:0", "step": 1},
    ],
)
def test_a_loss_has_one_address(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"`at` a time or in a `step`.*Received: Loss\("):
        Loss(**options)


@pytest.mark.parametrize(
    "options", [{"at": -1.0}, {"step": -1}, {"at": 1.0, "back_after": -0.5}, {"at": math.nan}]
)
def test_numbers_below_zero_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"not negative.*Received: Loss\("):
        Loss(task="worker:0", **options)


def test_two_losses_in_one_step_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"once in a step.*'worker:1'"):
        FaultPlan([Loss(task="worker:1", step=2), Loss(task="worker:1", step=2, back_after=1.0)])


def test_only_tasks_of_the_cluster_can_be_lost() -> None:
    FaultPlan([AT_TIME, SERVER]).check_tasks(workers=2, servers=1)
    with pytest.raises(InvalidArgument, match=r"Received: 'worker:1' of 1 workers and 1 servers"):
        FaultPlan(AT_TIME).check_tasks(workers=1, servers=1)
    with pytest.raises(InvalidArgument, match="'ps:1' of 4 workers"):
        FaultPlan(Loss(task="ps:1", at=1.0)).check_tasks(workers=4, servers=1)


@pytest.mark.parametrize("fault", [None, "worker:0", 3.0])
def test_a_plan_holds_faults_only(fault: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"`Loss` and `Preemptions`\. Received: "):
        FaultPlan([fault])


def test_lifetimes_have_the_mean_of_the_rate() -> None:
    rng = np.random.default_rng(0)
    lives = [Preemptions(per_hour=120.0).seconds_to_next(rng) for _ in range(20_000)]
    assert_close(np.mean(lives), 30.0, CONVERGENCE)
    assert_close(np.median(lives), 30.0 * math.log(2), CONVERGENCE)


def test_at_rate_zero_nobody_is_lost() -> None:
    assert Preemptions(per_hour=0.0).seconds_to_next(np.random.default_rng(0)) == math.inf


@pytest.mark.parametrize(
    "options", [{"per_hour": -1.0}, {"per_hour": math.inf}, {"per_hour": 1.0, "back_after": -1.0}]
)
def test_wrong_rates_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"not negative.*Received: Preemptions\("):
        Preemptions(**options)
