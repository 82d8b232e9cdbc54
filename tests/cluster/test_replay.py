"""Recorded runs, replayed to the same bits; and what is refused when it is not the same run."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest

import paceline as tf
import recorded_runs as runs
from paceline.cluster import Local, Replay, Simulated
from paceline.cluster.trace import Kind, Trace, TraceWriter
from paceline.errors import InvalidArgument, ReplayError, WaitTimeout
from paceline.pace import Asynchronous, BoundedStaleness, Softsync, Synchronous
from paceline.testing import Gate
from paceline.update_rules import DelayCompensated, GapAware, Plain, StalenessScaled
from paceline.virtual import LogNormal, Loss

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 60.0
EVENT_BYTES = 35


def written(path: Path) -> bytes:
    """The events of a trace that may still be open, which has zeros behind them."""
    return path.read_bytes().rstrip(b"\0")  # an event ends with the exponent of its time


def replace(path: Path, content: bytes) -> None:
    """Puts another file in its place: a recorder that is alive has the old one in its memory."""
    path.unlink()
    path.write_bytes(content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.trace"


def threads(workers: int, path: Path, **options: Any) -> Local:
    """Threads that share a device, so that one compilation serves them all."""
    options = {"devices": ["cpu:0"], "deadline": DEADLINE_S} | options
    return Local(workers, record=path, **options)


def virtual(workers: int, path: Path, **options: Any) -> Simulated:
    """Workers in virtual time whose steps take more or less long."""
    return Simulated(workers, record=path, compute=LogNormal(1.0, 0.5), **options)


def check_is_replayed(
    cluster: Any, program: Callable[[Any], Any], path: Path, **options: Any
) -> Trace:
    """Records a run and replays it; everything that it can be told by must be equal."""
    recorded = runs.run(program, cluster, **options)
    trace = Trace(path)  # a later strategy's end is in the file as well
    replayed = runs.run(program, Replay(path, deadline=DEADLINE_S), **options)
    assert runs.is_equal(recorded[0], replayed[0])
    assert runs.is_equal(recorded[1], replayed[1])
    return trace


def test_what_tells_runs_apart_tells_them_apart() -> None:
    """The comparison of these tests: values, dtypes, shapes, keys and lengths count."""
    nest = ([np.array([0.0], np.float32)], {"a": 1}, "text", None)
    assert runs.is_equal(nest, ([np.array([0.0], np.float32)], {"a": 1}, "text", None))
    others: list[Any] = [
        ([np.array([-0.0], np.float32)], {"a": 1}, "text", None),
        ([np.array([0.0], np.float64)], {"a": 1}, "text", None),
        ([np.array([[0.0]], np.float32)], {"a": 1}, "text", None),
        ([np.array([0.0], np.float32)], {"b": 1}, "text", None),
        ([np.array([0.0], np.float32)], {"a": 1}, "texts", None),
        ([np.array([0.0], np.float32)], {"a": 1}, "text", "None"),
        ([np.array([0.0], np.float32)], {"a": 1}, "text"),
    ]
    for other in others:
        assert not runs.is_equal(nest, other)


class TestReplayed:
    """Weights, results, logs and reports are those of the recorded run, exactly."""

    @pytest.mark.parametrize(
        ("workers", "pace", "rule"),
        [
            (2, Asynchronous(), GapAware()),
            (3, Synchronous(), StalenessScaled()),
        ],
        ids=repr,
    )
    def test_fit(self, path: Path, workers: int, pace: Any, rule: Any) -> None:
        """Dropout, batch normalization, and callbacks that look at weights after each batch."""
        check_is_replayed(threads(workers, path), runs.fit, path, pace=pace, update_rule=rule)

    @pytest.mark.parametrize(
        ("workers", "pace", "rule"),
        [
            (2, Synchronous(), Plain()),
            (3, Synchronous(backups=1), StalenessScaled()),
            (4, BoundedStaleness(1), DelayCompensated()),
            (5, Softsync(3), GapAware()),
            (6, Asynchronous(max_staleness=3), DelayCompensated.adaptive()),
            (8, Asynchronous(), StalenessScaled()),
        ],
        ids=repr,
    )
    def test_own_loops(self, path: Path, workers: int, pace: Any, rule: Any) -> None:
        cluster = threads(workers, path)
        check_is_replayed(cluster, runs.schedule, path, pace=pace, update_rule=rule)

    @pytest.mark.parametrize(
        "program",
        [
            runs.poll,
            runs.per_worker_data,
            runs.eagerly,
            runs.several_functions,
            runs.embed,
            runs.change_pace,
            runs.change_pace_on_a_worker,
            runs.lose_workers,
            runs.fail,
            runs.let_go,
            runs.fit_eagerly,
            runs.train_on_batches,
        ],
        ids=lambda program: program.__name__,
    )
    def test_programs(self, path: Path, program: Callable[[Any], Any]) -> None:
        check_is_replayed(threads(4, path), program, path)

    def test_what_is_held_when_all_work_has_ended(self, path: Path) -> None:
        """It is applied when workers find no more work, perhaps while the program reads."""
        pace = Softsync(3)
        for _ in range(3):
            check_is_replayed(threads(5, path), runs.per_worker_data, path, pace=pace)

    def test_workers_on_devices_of_their_own(self, path: Path) -> None:
        assert len(jax.local_devices()) > 1
        check_is_replayed(Local(2, record=path, deadline=DEADLINE_S), runs.schedule, path)

    @pytest.mark.parametrize(
        ("program", "options"),
        [
            (runs.fit, {}),
            (runs.poll, {}),
            (runs.schedule, {"network": 0.25, "servers": 2}),
            (runs.eagerly, {}),
            (runs.fail, {}),
            (runs.change_pace, {"lease_deadline": 1.5}),
        ],
        ids=lambda value: getattr(value, "__name__", ""),
    )
    def test_virtual_time(
        self, path: Path, program: Callable[[Any], Any], options: dict[str, Any]
    ) -> None:
        check_is_replayed(virtual(3, path, **options), program, path)

    def test_faults(self, path: Path) -> None:
        """Workers that are lost while they compute, and come back or do not."""
        faults = [Loss(task="worker:0", at=1.5, back_after=2.0), Loss(task="worker:2", step=2)]
        pace = Synchronous()
        cluster = virtual(4, path, faults=faults)
        trace = check_is_replayed(cluster, runs.schedule, path, pace=pace)
        kinds = [event.kind for event in trace.events]
        assert (kinds.count(Kind.GONE), kinds.count(Kind.BACK)) == (2, 1)

    def test_leases_that_are_taken_back(self, path: Path) -> None:
        """A deadline that has passed when the worker stands at the gate."""
        visitors: list[list[object]] = []

        def program(strategy: Any) -> Any:
            training = runs.Regression(strategy)
            with Gate(holds=1, driver=strategy.driver) as gate:

                def held(x: Any, y: Any) -> Any:
                    gate.wait()
                    return training.step(x, y)

                batch = next(runs.batches(1))
                first = training.coordinator.schedule(held, args=batch)
                gate.await_visitors()
                training.coordinator.join()
                results = first.fetch(), training.state
                visitors.append(gate.visitors)
            training.coordinator.join()
            return results, training.state

        cluster = threads(2, path, lease_deadline=1e-6, grace=DEADLINE_S)
        trace = check_is_replayed(cluster, program, path)
        assert Kind.EXPIRE in [event.kind for event in trace.events]
        recorded, replayed = visitors
        assert len(recorded) == len(replayed) >= 2

    def test_a_wait_that_was_too_long(self, path: Path) -> None:
        """The error of the wait comes again, and what the program does about it."""

        def program(strategy: Any) -> Any:
            training = runs.Regression(strategy)
            with Gate(driver=strategy.driver) as gate:
                value = training.coordinator.schedule(gate.wait)
                gate.await_visitors()
                with pytest.raises(WaitTimeout, match="a wait"):
                    training.coordinator.join()
            training.coordinator.join()
            return value.fetch(), training.state

        check_is_replayed(threads(2, path, deadline=0.02), program, path)

    def test_two_strategies_at_once(self, tmp_path: Path) -> None:
        paths = [tmp_path / "one.trace", tmp_path / "other.trace"]

        def program(clusters: list[Any]) -> Any:
            tf.keras.utils.set_random_seed(2)
            training = [
                runs.Regression(tf.distribute.ParameterServerStrategy(cluster=cluster))
                for cluster in clusters
            ]
            values = []
            for x, y in runs.batches(8):
                values += [one.coordinator.schedule(one.step, args=(x, y)) for one in training]
                training[0].seen.assign_add(training[1].weight.numpy()[0])
            for one in training:
                one.coordinator.join()
            return [value.fetch() for value in values], [one.state for one in training]

        recorded = program([threads(2, path) for path in paths])
        assert runs.is_equal(recorded, program([Replay(path) for path in paths]))

    def test_a_replay_can_be_repeated(self, path: Path) -> None:
        """A cluster object holds settings only, and replaying changes nothing about the trace."""
        recorded = runs.run(runs.eagerly, threads(3, path))
        content, cluster = written(path), Replay(path)
        for _ in range(2):
            assert runs.is_equal(recorded, runs.run(runs.eagerly, cluster))
        assert path.read_bytes()[: len(content)] == content


class Short:
    """A program whose every part can be another one than was recorded."""

    def __init__(
        self, *, units: float = 1.0, count: int = 8, shift: float = 0.0, name: str = "step"
    ) -> None:
        self._scale = units
        self._count = count
        self._shift = shift
        self._name = name
        self.training: Any = None

    def __call__(self, strategy: Any) -> Any:
        self.training = training = runs.Regression(strategy)
        scale = self._scale

        def step(x: Any, y: Any) -> Any:
            return training.update(x, y) * scale

        step.__name__ = self._name
        step = tf.function(step)
        for x, y in runs.batches(self._count):
            training.coordinator.schedule(step, args=(x + np.float32(self._shift), y))
        training.coordinator.join()
        return training.state


class TestRefused:
    """What was not recorded, with the reason and the place."""

    def record(self, path: Path, program: Any = None, **options: Any) -> Any:
        return runs.run(program or Short(), threads(2, path), **options)

    @pytest.mark.parametrize(
        ("other", "reason"),
        [
            (Short(units=2.0), "the program of the step is another one"),
            (Short(shift=1.0), r"worker:\d got another batch. Are all seeds set\?"),
            (Short(name="other"), "the program asks for something else with submit"),
            (Short(count=7), "the program does this: join"),
            (Short(count=9), "the program does this: submit"),
        ],
        ids=["model", "data", "function", "fewer steps", "more steps"],
    )
    def test_another_program(self, path: Path, other: Any, reason: str) -> None:
        self.record(path)
        with pytest.raises(ReplayError, match=f"event .*; but here {reason}"):
            runs.run(other, Replay(path, deadline=DEADLINE_S))

    def test_the_first_error_is_raised_from_then_on(self, path: Path) -> None:
        self.record(path)
        other = Short(shift=1.0)
        with pytest.raises(ReplayError) as first:
            runs.run(other, Replay(path))
        with pytest.raises(ReplayError) as second:
            other.training.coordinator.join()
        assert str(first.value) == str(second.value)

    def test_a_model_that_starts_with_other_weights(self, path: Path) -> None:
        """The program and the data are the same, and yet the first push is another one."""

        class Other(Short):
            def __call__(self, strategy: Any) -> Any:
                with strategy.scope():
                    pass
                made = tf.Variable

                def doubled(value: Any, **options: Any) -> Any:
                    return made(value * 2.0, **options)

                tf.Variable = doubled  # pyright: ignore[reportAttributeAccessIssue]
                try:
                    return super().__call__(strategy)
                finally:
                    tf.Variable = made  # pyright: ignore[reportAttributeAccessIssue]

        self.record(path)
        with pytest.raises(ReplayError, match=r"worker:\d pushes other values"):
            runs.run(Other(), Replay(path))

    def test_data_in_another_order(self, path: Path) -> None:
        """A shuffle whose seed is drawn anew: another run of the same program."""

        def program(strategy: Any) -> Any:
            model = runs.classifier(strategy, tf.keras.layers.Dense(runs.CLASSES))
            order = np.random.permutation(runs.EXAMPLES)
            return model.fit(runs.X[order], runs.Y[order], batch_size=8, verbose=0).history

        self.record(path, program)
        tf.keras.utils.set_random_seed(4)

        def later(strategy: Any) -> Any:
            np.random.seed(99)
            return program(strategy)

        with pytest.raises(ReplayError, match=r"got another batch. Are all seeds set\?"):
            runs.run(later, Replay(path))

    def test_data_of_functions_that_are_not_compiled(self, path: Path) -> None:
        def program(shift: float) -> Any:
            def call(strategy: Any) -> Any:
                training = runs.Regression(strategy)
                x, y = next(runs.batches(1))
                value = training.coordinator.schedule(training.update, args=(x + shift, y))
                return value.fetch()

            return call

        self.record(path, program(0.0))
        with pytest.raises(ReplayError, match=r"worker:\d returns other values"):
            runs.run(program(1.0), Replay(path))

    def test_other_settings(self, path: Path) -> None:
        self.record(path)
        others: list[tuple[str, dict[str, Any]]] = [
            ("pace", {"pace": Synchronous()}),
            ("update_rule", {"update_rule": Plain()}),
            ("merge", {"merge": "sum"}),
        ]
        for name, options in others:
            with pytest.raises(ReplayError, match=f"Received: {name} .* was recorded with"):
                runs.run(Short(), Replay(path), **options)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("libraries", {"jax": "0.0.1"}), ("python", "2.7.0"), ("platform", "tpu")],
    )
    def test_another_environment(self, path: Path, name: str, value: Any) -> None:
        self.record(path)
        rewritten(path, {name: value})
        with pytest.raises(ReplayError, match=f"Received: {name} .* was recorded with"):
            runs.run(Short(), Replay(path))

    def test_a_pace_that_changes_to_another_one(self, path: Path) -> None:
        def program(pace: Any) -> Any:
            def call(strategy: Any) -> Any:
                strategy.pace = pace
                return Short()(strategy)

            return call

        self.record(path, program(Softsync(2)))
        with pytest.raises(ReplayError, match="asks for something else with pace"):
            runs.run(program(Softsync(3)), Replay(path))

    def test_damaged_bytes(self, path: Path) -> None:
        self.record(path)
        content = bytearray(written(path))
        content[-3 * EVENT_BYTES + 10] ^= 1
        replace(path, bytes(content))
        with pytest.raises(ReplayError, match="damaged at byte"):
            Replay(path)

    def test_a_trace_is_of_one_strategy(self, path: Path) -> None:
        """A second one with the same cluster object would overwrite what the first one wrote."""
        cluster = threads(2, path)
        recorded = runs.run(Short(), cluster)
        with pytest.raises(InvalidArgument, match=r"one run, of one strategy.*run\.trace"):
            tf.distribute.ParameterServerStrategy(cluster=cluster)
        assert runs.is_equal(recorded, runs.run(Short(), Replay(path)))

    def test_a_file_that_exists_is_replaced_whoever_still_writes_to_it(self, path: Path) -> None:
        earlier = tf.distribute.ParameterServerStrategy(cluster=threads(2, path))
        short = Short()
        short(earlier)
        recorded = runs.run(Short(count=3), threads(2, path))
        short.training.coordinator.schedule(short.training.step, args=next(runs.batches(1)))
        short.training.coordinator.join()
        assert runs.is_equal(recorded, runs.run(Short(count=3), Replay(path)))


class TestEnds:
    """Traces that end before the program does, and programs that end before the trace does."""

    def weights_by_event(self, path: Path) -> list[int]:
        """The numbers of the events that a push of a worker is, in a trace."""
        return [k for k, event in enumerate(Trace(path).events) if event.kind is Kind.PUSH]

    @pytest.mark.parametrize("lost", [0, 10])
    def test_one_that_was_cut_off_runs_up_to_its_last_whole_event(
        self, path: Path, lost: int
    ) -> None:
        """The weights are those after the last push of which the event is there."""
        weights: list[Any] = []

        def program(strategy: Any) -> None:
            step_by_step(runs.Regression(strategy), weights)
            strategy.driver.stop()  # or workers may still write that they found no more work

        runs.run(program, threads(2, path))
        fourth = self.weights_by_event(path)[3]
        content = written(path)
        begin = len(content) - EVENT_BYTES * len(Trace(path).events)
        replace(path, content[: begin + EVENT_BYTES * (fourth + 1 + (lost > 0)) - lost])
        short = Short()
        cut = Replay(path)
        assert len(cut.trace.events) == fourth + 1
        assert cut.trace.is_whole == (not lost)
        strategy = tf.distribute.ParameterServerStrategy(cluster=cut)
        short.training = training = runs.Regression(strategy)
        how = "cut off" if lost else "whole"
        with pytest.raises(ReplayError, match=f"up to its last event.*{how}, after all of its"):
            step_by_step(training, [])
        assert runs.is_equal(training.weight.numpy(), weights[3])

    def test_a_program_that_goes_on(self, path: Path) -> None:
        """What it computed so far can still be read."""
        (state, _), short = runs.run(Short(), threads(2, path)), Short()
        runs.run(short, Replay(path))
        with pytest.raises(ReplayError, match="up to its last event"):
            short.training.coordinator.schedule(short.training.step)
        assert runs.is_equal(short.training.state, state)

    def test_a_program_that_ended_with_an_error(self, path: Path) -> None:
        """Its strategy was stopped where it raised; without the error it goes on there."""
        states: list[Any] = []

        def program(strategy: Any, is_bad: bool) -> None:
            short = Short()
            states.append(short(strategy))
            if is_bad:
                strategy.driver.stop()
                raise RuntimeError("something else")
            short.training.coordinator.schedule(short.training.step)

        with pytest.raises(RuntimeError, match="something else"):
            runs.run(lambda strategy: program(strategy, True), threads(2, path))
        assert Trace(path).events[-1].kind is Kind.STOP
        with pytest.raises(ReplayError, match=r"up to its last event.*was stopped or dropped"):
            runs.run(lambda strategy: program(strategy, False), Replay(path))
        assert runs.is_equal(*states)

    def test_a_program_that_ends_earlier_is_told(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def program(strategy: Any) -> None:
            Short(count=4)(strategy)

        def twice(strategy: Any) -> None:
            program(strategy)
            program(strategy)

        runs.run(twice, threads(2, path))
        caplog.set_level(logging.WARNING, logger="paceline")
        cluster = Replay(path)
        strategy = tf.distribute.ParameterServerStrategy(cluster=cluster)
        program(strategy)
        assert not caplog.messages
        strategy.driver.stop()
        [message] = caplog.messages
        assert "The program ended before the trace did" in message
        assert f"of {len(cluster.trace.events)} events" in message

    def test_one_that_ends_with_the_trace_is_not(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        strategy = tf.distribute.ParameterServerStrategy(cluster=threads(2, path))
        Short()(strategy)
        strategy.driver.stop()
        assert Trace(path).events[-1].kind is Kind.STOP
        caplog.set_level(logging.WARNING, logger="paceline")
        strategy = tf.distribute.ParameterServerStrategy(cluster=Replay(path))
        Short()(strategy)
        strategy.driver.stop()
        assert not caplog.messages


def step_by_step(training: Any, weights: list[Any]) -> None:
    """Makes steps one by one; notes the weights after each."""
    for batch in runs.batches(8):
        training.coordinator.schedule(training.step, args=batch)
        training.coordinator.join()
        weights.append(training.weight.numpy())


def rewritten(path: Path, changes: dict[str, Any]) -> None:
    """Writes the same events under a header with changes."""
    trace = Trace(path)
    writer = TraceWriter(path, {**trace.header, **changes})
    for event in trace.events:
        writer.write(*dataclasses.astuple(event))
    writer.close()
