"""One mode in virtual time: trains the model and notes what a user wants to know of it."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING, Any

import keras

from paceline.cluster.simulated import Simulated
from paceline.comparison.experiment import Judge
from paceline.strategies.parameter_server import ParameterServerStrategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.records import PushRecord
    from paceline.comparison.experiment import Experiment
    from paceline.comparison.modes import Mode
    from paceline.virtual.faults import FaultPlan
    from paceline.virtual.latency import Latency
    from paceline.virtual.network import Network

    Progress = Callable[[int, int], None]

_MOST_WORKERS_SHOWN = 16
_STEPS_SHOWN = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """On what a mode runs.

    Attributes:
        mode: pace and update rule.
        workers, servers: of the simulated cluster.
        compute, network, faults: see `paceline.cluster.Simulated`.
        learning_rate: None: the optimizer's own.
        is_tuned: whether the rate is the best of several for this mode.
        seed: of the model, the order of the data and everything virtual.
        points: how often the model is judged.
    """

    mode: Mode
    workers: int
    servers: int = 1
    compute: Latency | float = 1.0
    network: Network | float | None = None
    faults: FaultPlan | tuple[Any, ...] = ()
    learning_rate: float | None = None
    is_tuned: bool = False
    seed: int = 0
    points: int = 40

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.mode.name}, {self.workers} workers"


class _Timeline:
    """What the first workers do, until one of them has made twenty steps."""

    def __init__(self, workers: int) -> None:
        self._counts = [0] * min(workers, _MOST_WORKERS_SHOWN)
        self._spans: list[list[Any]] = []
        self._end: float | None = None

    def record(self, push: PushRecord) -> None:
        if push.worker >= len(self._counts) or push.outcome == "duplicate":
            return
        ended = push.finished_at - push.held
        began = ended - push.compute
        if self._end is not None and began - push.wait >= self._end:
            return
        if push.wait > 0:
            self._spans.append([push.worker, began - push.wait, began, "wait"])
        kind = "dropped" if push.outcome == "dropped" else "compute"
        self._spans.append([push.worker, began, ended, kind])
        self._counts[push.worker] += 1
        if self._end is None and self._counts[push.worker] == _STEPS_SHOWN:
            self._end = ended

    def as_dict(self) -> dict[str, Any]:
        end = max((s[2] for s in self._spans), default=0.0) if self._end is None else self._end
        spans = [[who, began, min(ended, end), kind] for who, began, ended, kind in self._spans]
        return {
            "workers": list(range(len(self._counts))),
            "from": 0.0,
            "to": end,
            "spans": [span for span in spans if span[1] < end],
        }


def run(experiment: Experiment, setting: Setting, progress: Progress | None = None) -> dict:
    """Trains under one mode.

    Args:
        experiment: model and data.
        setting: the mode and its cluster.
        progress: told of the steps that are done, and of all.

    Returns:
        What `paceline.comparison` says of a run, as JSON has it.
    """
    began = time.perf_counter()
    keras.utils.set_random_seed(setting.seed)
    cluster = Simulated(
        setting.workers, setting.servers, compute=setting.compute, network=setting.network,
        faults=setting.faults, seed=setting.seed,
    )  # fmt: skip
    mode, timeline = setting.mode, _Timeline(setting.workers)
    strategy = ParameterServerStrategy(
        cluster=cluster, pace=mode.pace, update_rule=mode.update_rule
    )
    strategy.monitor.listeners.append(timeline.record)
    with strategy.scope():
        model = strategy.distribute(experiment.make_model())
        # As Keras's `fit` begins: it builds model, metrics and optimizer.
        model._symbolic_build(data_batch=next(experiment.batches(setting.seed)))
        if setting.learning_rate is not None:
            model.optimizer.learning_rate = setting.learning_rate
    curve = _train(experiment, setting, strategy, model, progress)
    report = strategy.monitor.report()
    driver: Any = strategy.driver
    seconds = driver.now()
    return {
        "name": setting.name,
        "mode": mode.name,
        "pace": repr(mode.pace),
        "update_rule": repr(mode.update_rule),
        "workers": setting.workers,
        "compute": repr(cluster.compute),
        "learning_rate": float(model.optimizer.learning_rate),
        "is_tuned": setting.is_tuned,
        "seconds": seconds,
        "examples": report.examples,
        "real_seconds": time.perf_counter() - began,
        "bytes": driver.num_bytes,
        "curve": curve,
        "idle_share": report.wait_share,
        "examples_per_second": report.examples / seconds if seconds else 0.0,
        "staleness": {
            "mean": report.mean_staleness,
            "median": report.percentile(50),
            "p99": report.percentile(99),
            "largest": report.max_staleness,
            "histogram": {str(value): count for value, count in report.histogram.items()},
        },
        "dropped": report.dropped,
        "dropped_share": report.dropped / max(1, report.pushes),
        "stragglers": list(report.stragglers),
        "timeline": timeline.as_dict(),
    }


def _train(
    experiment: Experiment, setting: Setting, strategy: Any, model: Any, progress: Progress | None
) -> list[dict[str, Any]]:
    """Hands out all batches, and judges the model as pushes come in; returns the curve."""
    judge = Judge(experiment, model)
    step = model.make_train_function().on_worker  # as in `fit`
    total = math.ceil(experiment.examples / experiment.batch_size)
    every = max(1, total // setting.points)
    curve: list[dict[str, Any]] = []

    def note(count: int) -> None:
        figures = {name: _finite(value) for name, value in judge().items()}
        done = min(count * experiment.batch_size, experiment.examples)
        curve.append({"seconds": strategy.driver.now(), "examples": done, **figures})
        if progress is not None:
            progress(count, total)

    note(0)
    ended = 0

    def count(work: Any) -> None:
        nonlocal ended
        ended += work.state == "finished"

    for x, y in experiment.batches(setting.seed):
        strategy.hand_out(
            step, ((x, y),), examples=len(x), is_one_push=True, is_kept=True, on_end=count
        )
    for target in range(every, total, every):
        strategy.driver.wait_until(lambda t=target: ended >= t, "the next point of the curve")
        note(target)
    strategy.driver.join()
    note(total)
    return curve


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
