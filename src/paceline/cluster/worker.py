"""A worker: the message loop around one run of a step.

pull (snapshot, version) -> worker half -> push (residuals, read version, lease) -> acknowledged
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import jax

from paceline.cluster.carrying import carried
from paceline.cluster.trace import fingerprint_of
from paceline.cluster.vigil import Probe
from paceline.program import nest
from paceline.program.frozen import frozen
from paceline.program.function import is_array
from paceline.program.handover import handover
from paceline.store.step_update import StepUpdate
from paceline.store.store import Push

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.cluster.exchange import Outcome
    from paceline.cluster.session import Session
    from paceline.cluster.steps import Step
    from paceline.cluster.work import Work
    from paceline.store.store import Snapshot


class Driver(Protocol):
    """What a worker asks of the cluster that it runs on."""

    @property
    def session(self) -> Session: ...
    @property
    def counts_bytes(self) -> bool: ...
    @property
    def computes_ahead(self) -> bool: ...
    @property
    def is_traced(self) -> bool: ...
    def pull(self, worker: Worker, keys: Sequence[Any], keeps_pace: bool) -> Snapshot: ...
    def compute(self, worker: Worker) -> None: ...
    def push(self, worker: Worker, push: Push, keeps_pace: bool) -> Outcome: ...
    def apply(self, worker: Worker, update: Callable[[], Any], is_whole: bool) -> Any: ...
    def check(self, worker: Worker) -> None: ...
    def note_trace(self, worker: Worker, *, is_alone: bool) -> None: ...


class _Read:
    """What is kept of a snapshot when the worker half has it.

    Args:
        step: the step.
        snapshot: what its worker pulled.
        is_watched: whether somebody wants to see the weights.
    """

    def __init__(self, step: Step, snapshot: Snapshot, is_watched: bool) -> None:
        self.version = snapshot.version
        self.backups = step.backups(snapshot.values)
        self.weights = step.weights(snapshot.values) if step.is_update and is_watched else None


class Worker:
    """One executor of the message path. Made by a cluster; reached as `context.worker()`.

    Args:
        driver: the cluster's driver.
        index: its number.
        incarnation: how often it was replaced.
        device: where it computes.

    Attributes:
        driver, index, incarnation, device: as given.
        work: what it runs now.
        dropped: why its last push was dropped, or ""; noted by the driver, with the push.
        read_version: version of the store when it began, or last updated variables by itself.
        since: when that was, in the driver's seconds.
        step: the compiled step that it runs, or ran last.
        keeps_arguments: whether nobody writes to the arrays that its step takes until that is done:
            no code of the program has them in between.
    """

    def __init__(self, driver: Driver, index: int, incarnation: int, device: Any) -> None:
        self.driver = driver
        self.index = index
        self.incarnation = incarnation
        self.device = device
        self.work: Work | None = None
        self.dropped = ""
        self.read_version = 0
        self.since = 0.0
        self.step: Step | None = None
        self.keeps_arguments = False
        self._marks = (0, 0)
        self._sequence = 0
        self._is_applying = False
        self._is_tracing = False

    def begin(self, work: Work, version: int, now: float) -> None:
        """Notes what the worker runs from now on, and the version that it starts from."""
        self.work, self.dropped, self.read_version, self.since = work, "", version, now
        self.step = None
        self.keeps_arguments = False

    def end(self) -> None:
        """Notes that the worker runs nothing."""
        self.work = None

    def execute(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Runs a `paceline.function` as one step of the message path; returns its result."""
        leaves, tree = nest.flattened((args, kwargs))
        session = self.driver.session
        self._is_tracing = True
        try:
            traced = {"note": self._note_trace, "guard": handover}
            options: dict[str, Any] = traced if self.driver.is_traced else {}
            step, batches = session.steps.find(function, leaves, tree, **options)
        finally:
            self._is_tracing = False
        arrays = self._here([leaf for leaf in leaves if is_array(leaf)])
        if self.driver.computes_ahead and not self.keeps_arguments:
            arrays = list(map(frozen, arrays))
        fed = self._here([batches[i][leaf] for i, leaf in step.fed])
        self.step = step
        if step.traffic is None and self.driver.counts_bytes:
            step.measure_traffic(fed, arrays)
        if self.driver.is_traced:
            self._marks = step.fingerprint, fingerprint_of([*fed, *arrays])
        read, residuals, results = self._computed(step, fed, arrays)
        if step.has_writes:
            is_here = self.device == session.device
            given = step.given(residuals, fed, arrays) if is_here else frozenset()
            self._push(step, read, carried(residuals, self.device, session.device), given)
        return step.result(results)

    def _computed(
        self, step: Step, fed: Sequence[Any], arrays: Sequence[Any]
    ) -> tuple[_Read, Sequence[Any], Sequence[Any]]:
        """Pulls and computes, which takes its time; returns what is kept of the snapshot, too."""
        session, half = self.driver.session, step.worker_half
        snapshot = self.driver.pull(self, step.pulled, step.is_update)
        read = _Read(step, snapshot, session.vigil.wants(self.index, self._sequence + 1))
        values = carried(snapshot.values[: len(half.variables)], session.device, self.device)
        if half.calls_back:  # what its code does has its place among the events
            self.driver.compute(self)
        residuals, results = half(values, fed, arrays, self.index, self.device)
        if step.fed:  # the batch, which is lent, is needed no more then
            jax.block_until_ready((residuals, results))
        del snapshot, values  # while time passes this may be the last one to hold them
        if not half.calls_back:
            self.driver.compute(self)
        if step.has_writes:  # a push carries numbers, not the promise of them
            jax.block_until_ready((residuals, results))
        return read, residuals, results

    def _push(
        self, step: Step, read: _Read, residuals: Sequence[Any], given: frozenset[int]
    ) -> None:
        session, probe = self.driver.session, None
        self._sequence += 1
        if self.driver.is_traced:
            self._marks = 0, fingerprint_of(step.telltale(residuals))
        if read.weights is not None:
            gradients = step.store_halves.gradients_of(residuals)
            probe = Probe(step.store_halves.form, read.weights, gradients)
            if given:
                probe.copy_gradients()
        noting = probe if session.vigil.wants_steps(self.index, self._sequence) else None
        update = StepUpdate(
            step.store_halves, residuals, read.backups, self.index, session.states, given, noting
        )
        push = Push(
            self.index, self.incarnation, self._sequence, read.version, update, self.work,
            step.examples,
        )  # fmt: skip
        self.driver.push(self, push, step.is_update)
        if probe is not None:
            session.vigil.observe(self.index, self._sequence, probe)

    def apply(self, update: Callable[[], Any], *, is_whole: bool = False) -> Any:
        """Carries out an optimizer's update of code that is not compiled, as one unit.

        Args:
            update: reads and writes variables.
            is_whole: whether `update` is the whole step, which reads by itself all that it needs.
        """
        if self._is_applying:
            return update()
        self._is_applying = True
        try:
            return self.driver.apply(self, update, is_whole)
        finally:
            self._is_applying = False

    def check(self) -> None:
        """Raises if what this worker runs was called off; called wherever it meets the store.

        What it reads or writes after that it does under the same lock, as one unit with this.
        """
        is_part = self._is_applying or (self._is_tracing and self.driver.is_traced)
        if not is_part:
            self.driver.check(self)

    def mark(self, nest: Any) -> None:
        """Notes for a trace what arrays it meets the store with."""
        arrays = [leaf for leaf in jax.tree.leaves(nest) if is_array(leaf)]
        if arrays:
            self._marks = 0, fingerprint_of(arrays)

    def _note_trace(self, is_alone: bool) -> None:
        self.driver.note_trace(self, is_alone=is_alone)

    def take_marks(self) -> tuple[int, int]:
        """Fingerprints of the program and the data that it meets the store with, for a trace."""
        marks, self._marks = self._marks, (0, 0)
        return marks

    def _here(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """The arrays on the worker's device; NumPy's get there with the call that takes them."""
        device = self.device
        elsewhere = [
            k
            for k, array in enumerate(arrays)
            if isinstance(array, jax.Array) and array.committed and array.device != device
        ]
        if not elsewhere:
            return arrays
        moved = jax.device_put([arrays[k] for k in elsewhere], device)
        result = list(arrays)
        for k, array in zip(elsewhere, moved, strict=True):
            result[k] = array
        return result
