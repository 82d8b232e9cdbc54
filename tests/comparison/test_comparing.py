"""Modes on one small model: what is run, kept, chosen and said."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

from paceline import GradientTape
from paceline.comparison import Experiment, Mode, advice, compare, default_modes
from paceline.errors import InvalidArgument
from paceline.pace import Asynchronous, BoundedStaleness, Softsync, Synchronous
from paceline.store.rules import DelayCompensated, GapAware, Plain, StalenessScaled
from paceline.testing import assert_close
from paceline.virtual import Constant, Pareto

if TYPE_CHECKING:
    from pathlib import Path


FREE = "asynchronous"


def blobs() -> Experiment:
    """Two classes that a line tells apart."""
    rng = np.random.default_rng(0)
    y = np.arange(96) % 2
    x = rng.normal(size=(96, 4)).astype("float32") + 3 * y[:, None].astype("float32")

    def make_model() -> Any:
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile(
            optimizer=keras.optimizers.SGD(0.3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return model

    return Experiment(
        title="blobs",
        make_model=make_model,
        train=(x, y.astype("int32")),
        test=(x[:32], y[:32].astype("int32")),
        batch_size=8,
        examples=480,
    )


class TrainsHalf(keras.Model):
    """Its own step, in TensorFlow's form, trains on every second example, by a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with GradientTape() as tape:
            loss = keras.ops.sum((self(x[::2])[:, 0] - y[::2]) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_the_step_is_the_models_own(eager: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 3)).astype("float32"), rng.normal(size=32).astype("float32")

    def make_model() -> Any:
        model = TrainsHalf()
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", run_eagerly=eager)
        return model

    ended: dict[str, Any] = {}

    def evaluate(model: Any) -> dict[str, float]:
        ended["weights"] = [np.asarray(weight) for weight in model.get_weights()]
        ended.setdefault("first", ended["weights"])
        return {"loss": 0.0}

    experiment = Experiment(
        title="half", make_model=make_model, train=(x, y), test=(x, y), batch_size=8, examples=64,
        evaluate=evaluate,
    )  # fmt: skip
    compare(experiment, modes=[Mode.parse("async/plain")], workers=1, points=1)
    kernel, bias = (weight.astype("float64") for weight in ended["first"])
    for rows, target in experiment.batches(0):
        rows, target = rows[::2].astype("float64"), target[::2].astype("float64")
        error = (rows @ kernel)[:, 0] + bias[0] - target
        kernel = kernel - 0.01 * 2 * rows.T @ error[:, None]
        bias = bias - 0.01 * 2 * error.sum(keepdims=True)
    assert_close(ended["weights"][0], kernel.astype("float32"))
    assert_close(ended["weights"][1], bias.astype("float32"))


def test_all_modes_see_the_same_examples_and_lockstep_waits() -> None:
    result = compare(blobs(), workers=4, compute=Pareto(1.0, 0.3), target=0.9, points=6)
    runs = {run["mode"]: run for run in result["runs"]}
    assert list(runs) == [mode.name for mode in default_modes(4)]
    assert {run["examples"] for run in runs.values()} == {480}
    assert runs["lockstep"]["idle_share"] > runs["asynchronous"]["idle_share"] == 0.0
    assert runs["lockstep"]["staleness"]["largest"] == 0
    assert runs["asynchronous"]["seconds"] < runs["lockstep"]["seconds"]
    for run in runs.values():
        assert [point["examples"] for point in run["curve"]] == [*range(0, 480, 80), 480]
        assert run["curve"][-1]["accuracy"] >= 0.9
        assert run["seconds_to_target"] <= run["seconds"]
        assert not run["is_tuned"]
        assert overlaps(run["timeline"]["spans"]) == []
        assert {span[3] for span in run["timeline"]["spans"]} <= {"compute", "wait", "dropped"}
    assert result["recommendation"]["run"] in {run["name"] for run in runs.values()}


def overlaps(spans: list[list[Any]]) -> list[list[Any]]:
    """Spans that begin before the one before them on the same worker has ended."""
    ordered = sorted(spans)
    pairs = itertools.pairwise(ordered)
    return [b for a, b in pairs if a[0] == b[0] and b[1] < a[2] - 1e-9]


def test_the_same_seed_gives_the_same_result() -> None:
    def figures(seed: int) -> list[Any]:
        result = compare(blobs(), modes=["async"], workers=3, compute=Pareto(), seed=seed, points=3)
        (run,) = result["runs"]
        return [run["curve"], run["timeline"], run["staleness"], run["seconds"]]

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_one_worker_is_the_training_on_one_device() -> None:
    experiment = blobs()
    result = compare(experiment, modes=["lockstep"], workers=1, points=1)
    keras.utils.set_random_seed(0)
    model = experiment.make_model()
    model.build((None, 4))
    for x, y in experiment.batches(0):
        model.train_on_batch(x, y)
    expected = float(model.evaluate(*experiment.test, verbose=0))
    assert result["runs"][0]["curve"][-1]["loss"] == pytest.approx(expected, rel=1e-5)


def test_with_several_rates_the_best_one_is_shown_and_called_tuned() -> None:
    rates = (1e-6, 0.05)
    result = compare(blobs(), modes=["async"], workers=2, learning_rates=rates, points=1)
    (run,) = result["runs"]
    assert run["learning_rate"] == pytest.approx(0.05)
    assert run["is_tuned"]


class TestKeptRuns:
    """A comparison that was interrupted goes on where it was."""

    def test_runs_that_are_done_are_read(self, tmp_path: Path) -> None:
        calls: list[tuple[str, int, int]] = []

        def progress(name: str, done: int, total: int) -> None:
            calls.append((name, done, total))
            if name.startswith("asynchronous") and done > 0:
                raise KeyboardInterrupt

        modes = ["lockstep", "async"]
        with pytest.raises(KeyboardInterrupt):
            compare(blobs(), modes=modes, workers=2, points=2, folder=tmp_path, progress=progress)
        assert len(list((tmp_path / "runs").iterdir())) == 1
        calls.clear()
        again = compare(
            blobs(), modes=modes, workers=2, points=2, folder=tmp_path,
            progress=lambda *told: calls.append(told),
        )  # fmt: skip
        assert calls[0] == ("lockstep, 2 workers", 1, 1)
        fresh = compare(blobs(), modes=modes, workers=2, points=2)
        for one, other in zip(again["runs"], fresh["runs"], strict=True):
            assert one["curve"] == other["curve"]

    def test_another_model_or_other_data_are_other_runs(self, tmp_path: Path) -> None:
        def run(experiment: Experiment) -> None:
            compare(experiment, modes=["async"], workers=2, points=1, folder=tmp_path)

        run(blobs())
        run(blobs())
        assert len(list((tmp_path / "runs").iterdir())) == 1
        x, y = blobs().train
        run(dataclasses.replace(blobs(), train=(x + 1, y)))
        run(dataclasses.replace(blobs(), batch_size=4))
        run(dataclasses.replace(blobs(), source="another program"))
        run(dataclasses.replace(blobs(), evaluate=lambda model: {"loss": 1.0}))
        assert len(list((tmp_path / "runs").iterdir())) == 5


def test_a_loss_by_name_trains_as_the_loss_itself() -> None:
    def curve(loss: Any) -> list[Any]:
        def make_model() -> Any:
            model = keras.Sequential([keras.layers.Dense(2, activation="softmax")])
            model.compile(optimizer=keras.optimizers.SGD(0.3), loss=loss)
            return model

        experiment = dataclasses.replace(blobs(), make_model=make_model)
        return compare(experiment, modes=["async"], workers=2, points=2)["runs"][0]["curve"]

    named = curve("sparse_categorical_crossentropy")
    for one, other in zip(named, curve(keras.losses.SparseCategoricalCrossentropy()), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["accuracy"] == other["accuracy"]


def test_two_classes_by_one_output() -> None:
    def accuracy(activation: str | None) -> float:
        def make_model() -> Any:
            model = keras.Sequential([keras.layers.Dense(1, activation=activation)])
            loss = keras.losses.BinaryCrossentropy(from_logits=activation is None)
            model.compile(optimizer=keras.optimizers.SGD(0.3), loss=loss)
            return model

        train, test = blobs().train, blobs().test
        experiment = dataclasses.replace(
            blobs(),
            make_model=make_model,
            train=(train[0], train[1][:, None]),
            test=(test[0], test[1][:, None]),
        )
        result = compare(experiment, modes=["async"], workers=2, points=1)
        return result["runs"][0]["curve"][-1]["accuracy"]

    assert accuracy(None) == pytest.approx(accuracy("sigmoid"), abs=0.04)
    assert accuracy(None) >= 0.9


class TestModes:
    """Modes as the command line has them."""

    @pytest.mark.parametrize(
        ("text", "name", "pace", "rule"),
        [
            ("lockstep", "lockstep", Synchronous(), StalenessScaled()),
            ("backups:3", "lockstep, 3 backups", Synchronous(backups=3), StalenessScaled()),
            ("bounded:4", "staleness bound 4", BoundedStaleness(4), StalenessScaled()),
            ("softsync:2/plain", "groups of 2, plain", Softsync(2), Plain()),
            (
                "async:9/gap",
                "asynchronous, at most 9 stale, gap-aware",
                Asynchronous(9),
                GapAware(),
            ),
            (
                "async/adaptive",
                "asynchronous, adaptively delay-compensated",
                Asynchronous(),
                DelayCompensated.adaptive(),
            ),
        ],
    )
    def test_are_read(self, text: str, name: str, pace: Any, rule: Any) -> None:
        assert Mode.parse(text) == Mode(name, pace, rule)

    @pytest.mark.parametrize("text", ["", "bsp", "lockstep:2", "bounded", "async:x", "async/none"])
    def test_others_are_refused(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match="A mode is lockstep, backups:N"):
            Mode.parse(text)


class TestScript:
    """An experiment in a file."""

    def test_is_read(self, tmp_path: Path) -> None:
        script = tmp_path / "mine.py"
        script.write_text(
            "import numpy as np\n"
            "BATCH_SIZE = 2\n"
            "def make_model(): return 'model'\n"
            "def make_data(): return (np.ones((6, 1)), np.ones(6)), (np.ones((2, 1)), np.ones(2))\n"
        )
        experiment = Experiment.from_script(script)
        assert (experiment.title, experiment.batch_size, experiment.examples) == ("mine", 2, 30)
        assert experiment.make_model() == "model"

    def test_what_is_missing_is_named(self, tmp_path: Path) -> None:
        script = tmp_path / "mine.py"
        script.write_text("def make_data(): pass\n")
        with pytest.raises(InvalidArgument, match="without make_model"):
            Experiment.from_script(script)
        with pytest.raises(InvalidArgument, match="A script is a Python file"):
            Experiment.from_script(tmp_path / "none.py")


def test_batches_pass_over_the_data_in_ever_new_orders() -> None:
    experiment = dataclasses.replace(blobs(), examples=100, batch_size=32)
    sizes = [len(x) for x, _ in experiment.batches(0)]
    assert sizes == [32, 32, 32, 4]
    first, again = ([x for x, _ in experiment.batches(0)] for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_model_without_a_loss_needs_somebody_to_judge_it() -> None:
    def make_model() -> Any:
        model = TrainsHalf()
        model.compile(optimizer="sgd")
        return model

    experiment = dataclasses.replace(blobs(), make_model=make_model)
    with pytest.raises(InvalidArgument, match=r"compiled without a loss, and no `evaluate`"):
        compare(experiment, modes=[Mode.parse("async")], workers=1, points=1)


def test_sizes_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="batch_size=0"):
        dataclasses.replace(blobs(), batch_size=0)
    with pytest.raises(InvalidArgument, match="96 examples and 95 targets"):
        dataclasses.replace(blobs(), train=(blobs().train[0], blobs().train[1][:-1]))


def run_of(mode: str, **figures: Any) -> dict[str, Any]:
    accuracy = figures.pop("accuracy", 0.95)
    return {
        "name": f"{mode}, 8 workers",
        "mode": mode,
        "seconds": 100.0,
        "seconds_to_target": None,
        "curve": [{"seconds": 100.0, "examples": 10, "loss": 0.1, "accuracy": accuracy}],
        "idle_share": 0.0,
        "dropped_share": 0.0,
        "stragglers": [],
        "staleness": {"mean": 0.0},
        "learning_rate": 0.1,
        "is_tuned": False,
        **figures,
    }


class TestAdvice:
    """The recommendation, from figures by hand."""

    @staticmethod
    def of(*runs: dict[str, Any], target: float | None = 0.9) -> dict[str, Any]:
        shown = None if target is None else {"metric": "accuracy", "value": target}
        return advice.recommend({"runs": list(runs), "target": shown})

    def test_the_fastest_to_the_target(self) -> None:
        advised = self.of(
            run_of("lockstep", seconds_to_target=90.0, idle_share=0.4),
            run_of("asynchronous", seconds_to_target=45.0, staleness={"mean": 7.0}),
        )
        assert advised["run"] == "asynchronous, 8 workers"
        assert "45 virtual s for 90.0% accuracy, 2 times as fast as lockstep" in advised["text"]
        reasons = " ".join(advised["reasons"])
        assert "workers wait 40% of the time for the slowest" in reasons
        assert "7.0 versions old" in reasons
        assert "tuned for none" in reasons

    def test_lockstep_where_nothing_is_much_faster(self) -> None:
        advised = self.of(
            run_of("lockstep", seconds_to_target=49.0),
            run_of("asynchronous", seconds_to_target=45.0),
        )
        assert advised["run"] == "lockstep, 8 workers"

    def test_one_that_did_not_get_there_is_not_chosen(self) -> None:
        advised = self.of(
            run_of("lockstep", seconds_to_target=90.0),
            run_of("asynchronous", accuracy=0.1, seconds=50.0),
        )
        assert advised["run"] == "lockstep, 8 workers"
        assert "Asynchronous, 8 workers ends at 10.0% accuracy" in " ".join(advised["reasons"])

    def test_nobody_got_there(self) -> None:
        advised = self.of(run_of("lockstep", accuracy=0.5), run_of("asynchronous", accuracy=0.4))
        assert advised["run"] is None
        assert "No mode reached 90.0% accuracy" in advised["text"]

    def test_without_a_target_the_fastest_of_the_good_ones(self) -> None:
        advised = self.of(
            run_of("lockstep", seconds=100.0),
            run_of("groups of 4", seconds=60.0, accuracy=0.94),
            run_of("asynchronous", seconds=50.0, accuracy=0.9),
            target=None,
        )
        assert advised["run"] == "groups of 4, 8 workers"

    def test_of_equally_fast_ones_the_better_one(self) -> None:
        advised = self.of(
            run_of("groups of 4", accuracy=0.95, is_tuned=True),
            run_of("asynchronous", accuracy=0.96, learning_rate=0.3, is_tuned=True),
            target=None,
        )
        assert advised["run"] == "asynchronous, 8 workers"
        said = " ".join(advised["reasons"])
        assert "the best of its learning rates: groups of 4 0.1, asynchronous 0.3." in said

    def test_a_bound_does_not_help_against_a_worker_that_is_slow_for_good(self) -> None:
        slow = {"stragglers": ["worker:5"], "idle_share": 0.48}
        advised = self.of(
            run_of("lockstep", seconds_to_target=100.0, **slow),
            run_of("staleness bound 8", seconds_to_target=98.0, **slow),
            run_of("asynchronous", seconds_to_target=52.0, stragglers=["worker:5"]),
        )
        assert advised["run"] == "asynchronous, 8 workers"
        said = " ".join(advised["reasons"])
        assert "worker:5 is slow for good: a bound on staleness lets the others run ahead" in said


def test_several_latencies_are_told_apart() -> None:
    result = compare(
        blobs(), modes=["async"], workers=2, compute=[Constant(1.0), Constant(2.0)], points=1
    )
    assert len({run["name"] for run in result["runs"]}) == 2
    fast, slow = (run["seconds"] for run in result["runs"])
    assert slow == 2 * fast


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="workers=\\[\\]"):
        compare(blobs(), workers=[])
