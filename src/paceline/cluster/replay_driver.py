"""The driver of `Replay`: whoever comes next in the trace goes on, and nobody else."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax

from paceline.cluster.staged import Staged
from paceline.cluster.trace import Kind
from paceline.errors import ReplayError
from paceline.program import context
from paceline.program.handover import handover

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.replay import Replay
    from paceline.cluster.session import Session
    from paceline.cluster.stage import Actor
    from paceline.cluster.trace import Event
    from paceline.cluster.work import Work
    from paceline.cluster.worker import Worker


@dataclasses.dataclass(frozen=True, eq=False)
class _Standing:
    """A worker's code that stands before an event."""

    actor: Actor
    kind: Kind
    marks: tuple[int, int]
    work: int


class ReplayDriver(Staged):
    """Lets events happen in the order of a trace, whenever the coordinator waits for one.

    Args:
        cluster: the configuration, with the trace.
        session: the machines.
    """

    def __init__(self, cluster: Replay, session: Session) -> None:
        self._now = 0.0
        super().__init__(cluster, session)
        self.is_traced = True
        self._trace = cluster.trace
        self._place = 0
        self._failure: ReplayError | None = None
        self._standing: dict[tuple[int, int], _Standing] = {}

    def now(self) -> float:
        return self._now

    def release(self) -> None:
        """Does nothing: workers are let go when the trace says so."""

    # The order of events --------------------------------------------------------------------------

    def _at(self, kind: Kind, worker: Worker | None = None, work: Work | None = None) -> float:
        if kind.is_coordinators:
            while not self._peek().kind.is_coordinators:
                self._unlocked(self._happen)
            self._consume(kind)
        elif kind.is_workers and worker is not None:
            actor = self._stage.here
            if actor is None:
                raise RuntimeError("only a worker's code stands before an event of a worker")
            number = -1 if work is None else work.number
            key = worker.index, worker.incarnation
            self._standing[key] = _Standing(actor, kind, worker.take_marks(), number)
            self._unlocked(self._stage.stand_still)
        return self._now

    def _wait_until(self, is_met: Callable[[], bool], what: str) -> None:
        if self._stage.here is None:  # a worker waits for what comes next in the trace
            super()._wait_until(is_met, what)

    def _timeout(self, what: str) -> Exception:
        return self._parted(f"the program still waits for {what}")

    def _next_event(self) -> bool:
        """Lets the next event of the trace happen, unless it is the coordinator's."""
        event = self._peek()
        if event.kind.is_coordinators:
            return False
        if event.kind.is_workers:
            self._go_on(event)
        else:
            self._consume(event.kind)
            with handover:
                self._act(event)
        return True

    def _go_on(self, event: Event) -> None:
        """Lets the code of a worker go on from where it stands."""
        key = event.worker, event.incarnation
        what = f"what worker:{event.worker} runs"
        standing = self._standing.pop(key, None)
        if standing is None:
            raise self._parted(f"worker:{event.worker} runs nothing")
        if event.kind is not standing.kind and self._is_over_for(key):
            self._stage.go_on(standing.actor, what)
            return
        if event.kind is Kind.END and standing.work != event.work:
            raise self._parted(f"worker:{event.worker} ends work {standing.work}")
        self._check_marks(event, standing)
        self._consume(standing.kind)
        self._stage.go_on(standing.actor, what)

    def _is_over_for(self, key: tuple[int, int]) -> bool:
        """Whether what a worker runs was called off: it learns that before its next event."""
        worker = self.worker(*key)
        return worker is None or self._is_called_off(worker)

    def _act(self, event: Event) -> None:
        """Carries out an event of the driver itself."""
        worker = self._workers.get(event.worker)
        dispatch = self.session.dispatch
        if event.kind is Kind.EXPIRE:
            self._carry_out(dispatch.expire(event.time))
        elif event.kind is Kind.RELEASE:
            super().release()
        elif event.kind is Kind.BACK:
            self._absent.discard(event.worker)
            self._bring_back(event.worker)
        elif worker is None or worker.incarnation != event.incarnation:
            raise self._parted(f"there is no such worker:{event.worker}")
        elif event.kind is Kind.GONE:
            self._absent.add(event.worker)
            self._take_away(worker, dispatch.lost(event.worker, worker.incarnation, "was lost"))
            self._note_progress(event.time)
        elif event.kind is Kind.ABANDON:
            self._replace(worker, dispatch.abandon(event.worker, worker.incarnation))
        else:
            self._take(worker, event)

    def _take(self, worker: Worker, event: Event) -> None:
        work = self.take(worker)
        number = -1 if work is None else work.number
        if number != event.work:
            raise self._parted(f"worker:{worker.index} gets work {number}")
        if work is not None:
            self._unlocked(lambda: self._stage.play(lambda: self._serve(worker, work), work))

    def _serve(self, worker: Worker, work: Work) -> None:
        with context.working(worker), jax.default_device(worker.device):
            self.run(worker, work)

    def _next(self, worker: Worker) -> Work | None:
        return None  # the trace says when it takes more

    def _peek(self) -> Event:
        if self._failure is not None:
            raise self._failure
        events = self._trace.events
        if self._place == len(events):
            how = "whole" if self._trace.is_whole else "cut off"
            raise ReplayError(
                "A trace is replayed up to its last event. Received: "
                f"{str(self._trace.path)!r}, {how}, after all of its {len(events)} events."
            )
        return events[self._place]

    def _consume(self, kind: Kind) -> None:
        event = self._peek()
        if event.kind is not kind:
            raise self._parted(f"the program does this: {kind.name.lower()}")
        if event.version != self.session.exchange.store.version:
            raise self._parted(f"the store is at version {self.session.exchange.store.version}")
        self._now = event.time
        self._place += 1

    def _check_marks(self, event: Event, standing: _Standing) -> None:
        program, data = standing.marks
        if program != event.program:
            raise self._parted("the program of the step is another one")
        if data != event.data:
            what = "pushes other values" if event.kind is Kind.PUSH else "got another batch"
            raise self._parted(f"worker:{event.worker} {what}. Are all seeds set?")

    def _parted(self, what: str) -> ReplayError:
        """The error for a program that does something else; from then on it is raised for all."""
        self._failure = self._failure or ReplayError(
            "A run is replayed by the program, with the data, that it was recorded with. "
            f"Received: event {self._place} of {str(self._trace.path)!r}, "
            f"{' '.join(self._peek().as_text().split())}; but here {what}."
        )
        return self._failure

    # What workers are -----------------------------------------------------------------------------

    def _start(self, index: int) -> Worker:
        return self._new_worker(index)

    def _ring(self, *, for_one: bool = False) -> None:
        """Nobody looks for work but when the trace says so."""
