"""Several modes on one model: which one wins, and why."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.comparison import advice
from paceline.comparison.modes import as_mode, default_modes
from paceline.comparison.running import Setting, run
from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from paceline.comparison.experiment import Experiment
    from paceline.comparison.modes import Mode
    from paceline.virtual.faults import FaultPlan
    from paceline.virtual.latency import Latency
    from paceline.virtual.network import Network

    # Told of a run's name, its steps that are done, and all of them.
    Progress = Callable[[str, int, int], None]

FORMAT = 1
_LIBRARIES = ("paceline", "jax", "jaxlib", "keras", "numpy")


def compare(
    experiment: Experiment,
    *,
    modes: Sequence[Mode | str] = (),
    workers: int | Sequence[int] = 32,
    servers: int = 1,
    compute: Latency | float | Sequence[Latency | float] = 1.0,
    network: Network | float | None = None,
    faults: FaultPlan | tuple[Any, ...] = (),
    learning_rates: Sequence[float] = (),
    target: float | None = None,
    seed: int = 0,
    points: int = 40,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Trains one model under several modes in virtual time, with the same examples for all.

    Args:
        experiment: model and data.
        modes: `Mode`s, or texts for `Mode.parse`. Default: see `default_modes`.
        workers: how many, or several numbers.
        servers, network, faults, seed: see `paceline.cluster.Simulated`.
        compute: how long a step takes: seconds or a model, or several of them.
        learning_rates: each mode runs at all of them and is shown at the best one, which the result
            calls tuned. Default: the optimizer's own rate for all, which it calls not tuned.
        target: the figure whose time is taken: accuracy that is reached, or the loss where there
            is no accuracy. None: no time is taken.
        points: how often a model is judged.
        folder: where finished runs are kept, so that a comparison that was interrupted goes on.
        progress: told of the steps that are done.

    Returns:
        The result as JSON has it; see `paceline.comparison.tables` and `page`.

    Raises:
        InvalidArgument: no worker, or something that is no mode.
    """
    counts = [workers] if isinstance(workers, int) else list(workers)
    latencies: list[Any] = list(compute) if isinstance(compute, (list, tuple)) else [compute]
    if not counts or not latencies or points < 1:
        raise InvalidArgument(
            "What is compared has workers, times and points. Received: "
            f"workers={workers!r}, compute={compute!r}, points={points!r}."
        )
    runs = []
    for count in counts:
        for latency in latencies:
            for mode in [as_mode(mode) for mode in modes] or default_modes(count):
                setting = Setting(
                    mode=mode, workers=count, servers=servers, compute=latency,
                    network=network, faults=faults, seed=seed, points=points,
                )  # fmt: skip
                runs.append(_best(experiment, setting, learning_rates, folder, progress))
    _name_apart(runs)
    metric = "accuracy" if all("accuracy" in one["curve"][-1] for one in runs) else "loss"
    for one in runs:
        one |= _time_to(target, metric, one["curve"])
    result = {
        "format": FORMAT,
        "title": experiment.title,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "real_seconds": sum(one["real_seconds"] for one in runs),
        "settings": {
            "batch_size": experiment.batch_size,
            "examples": experiment.examples,
            "seed": seed,
            "compute": ", ".join(map(repr, latencies)),
            "network": repr(network),
            "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        },
        "target": None if target is None else {"metric": metric, "value": target},
        "runs": runs,
    }
    return result | {"recommendation": advice.recommend(result)}


def _best(
    experiment: Experiment,
    setting: Setting,
    rates: Sequence[float],
    folder: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """The run of a mode, or the best one of several rates."""
    settings = [
        dataclasses.replace(setting, learning_rate=rate, is_tuned=len(rates) > 1) for rate in rates
    ] or [setting]
    runs = [_run_or_read(experiment, one, folder, progress) for one in settings]
    return max(runs, key=lambda one: _goodness(one["curve"][-1]))


def _goodness(point: dict[str, Any]) -> float:
    value = point.get("accuracy")
    if value is None:
        value = None if point.get("loss") is None else -point["loss"]
    return float("-inf") if value is None else value


def _run_or_read(
    experiment: Experiment,
    setting: Setting,
    folder: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """A run, from an earlier comparison with exactly the same settings if there is one."""

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(setting.name, done, total)

    if folder is None:
        return run(experiment, setting, tell)
    path = Path(folder) / "runs" / f"{_fingerprint(experiment, setting)}.json"
    if path.exists():
        found = json.loads(path.read_text())
        tell(1, 1)
        return found
    result = run(experiment, setting, tell)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(result))
    beside.replace(path)  # at once: a run that is there is whole
    return result


def _fingerprint(experiment: Experiment, setting: Setting) -> str:
    """Differs where the run would: of model, data, settings and libraries."""
    model = experiment.make_model()
    config = json.dumps([model.get_config(), model.get_compile_config()], default=str)
    digest = hashlib.sha256()
    for part in (
        repr(setting),
        re.sub(r'_\d+"', '"', config),  # Keras numbers names by how many there were before
        repr((experiment.batch_size, experiment.examples)),
        experiment.source,
        *map(_code_of, (experiment.evaluate, type(model).train_step, type(model).compute_loss)),
        *(f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES),
    ):
        digest.update(part.encode())
    for array in (*experiment.train, *experiment.test):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:24]


def _code_of(function: Any) -> str:
    """What tells a function from another one; addresses of functions within do not count."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    constants = [one for one in code.co_consts if not hasattr(one, "co_code")]
    return repr((code.co_code, code.co_names, constants))


def _name_apart(runs: list[dict[str, Any]]) -> None:
    """Adds to names what tells runs of one mode apart."""
    names = [one["name"] for one in runs]
    for one, name in zip(runs, names, strict=True):
        if names.count(name) > 1:
            one["name"] = f"{name}, {one['compute']}"


def _time_to(
    target: float | None, metric: str, curve: list[dict[str, Any]]
) -> dict[str, float | int | None]:
    """When a curve first meets the target."""
    for point in curve:
        value = point.get(metric)
        if target is None or value is None:
            continue
        if value >= target if metric == "accuracy" else value <= target:
            return {
                "seconds_to_target": point["seconds"],
                "examples_to_target": point["examples"],
            }
    return {"seconds_to_target": None, "examples_to_target": None}
