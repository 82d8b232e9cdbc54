"""The driver of `Replay`: whoever comes next in the trace goes on, and nobody else."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING

import jax

from paceline.cluster.driving import Driving
from paceline.cluster.staged import Staged
from paceline.cluster.trace import Kind
from paceline.errors import Cancelled, ReplayError, WaitTimeout
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

_DATA = {
    Kind.PUSH: "pushes other values",
    Kind.END: "returns other values",
}


@dataclasses.dataclass(eq=False)
class _Standing:
    """A worker's code that stands before an event; of no kind: that waits for whatever comes.

    Attributes:
        is_late: whether its wait was too long.
    """

    actor: Actor
    kind: Kind | None = None
    marks: tuple[int, int] = (0, 0)
    work: int = -1
    is_late: bool = False


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
        self._place_of_program = -1  # of the next event of the coordinator's program
        self._failure: ReplayError | None = None
        self._standing: dict[tuple[int, int], _Standing] = {}

    def now(self) -> float:
        return self._now

    def is_done(self) -> bool:
        return Driving.is_done(self)  # of those that asked in vain, each is in the trace

    def let_go_on(self, is_met: Callable[[], bool]) -> bool:
        super().let_go_on(is_met)
        with handover:
            if self._stage.here is None:  # workers who found nothing left may go home
                while self._is_next(Kind.LOOK, Kind.RELEASE):
                    self._let_happen()
        return True

    def release(self) -> None:
        """Does nothing: workers are let go when the trace says so."""

    def access(self) -> None:
        if self._stage.here is not None:
            return
        while self._failure is None and not self._is_over:
            following = self._next_of_program()
            if following is Kind.ACCESS:
                self._at(Kind.ACCESS)
                return
            # It was not recorded: all was settled, so it must be now.
            is_at_end = self._place == len(self._trace.events)
            if is_at_end or self._is_settled() or self._peek().kind.is_coordinators:
                return
            self._let_happen()

    def note_trace(self, worker: Worker, *, is_alone: bool) -> None:
        if not is_alone:  # who stands still must not hold a lock
            with handover:
                self._at(Kind.TRACE, worker)

    # The order of events --------------------------------------------------------------------------

    def _at(
        self, kind: Kind, worker: Worker | None = None, work: Work | None = None, mark: int = 0
    ) -> float:
        actor = self._stage.here
        if kind.is_coordinators and actor is not None:
            kind, worker = Kind.ACT, self._caller()
        if kind.is_coordinators:
            if not self._is_over:
                while not self._peek().kind.is_coordinators:
                    self._let_happen()
                self._consume(kind, mark)
        elif kind.is_workers and worker is not None and actor is not None:
            number = -1 if work is None else work.number
            marks = worker.take_marks()
            self._stand(worker, _Standing(actor, kind, marks, number))
        self._noted_at = self._now
        return self._now

    def _wait_until(self, is_met: Callable[[], bool], what: str) -> None:
        actor, worker = self._stage.here, self._caller()
        if actor is None or worker is None:
            super()._wait_until(is_met, what)
        elif not is_met():  # and is, when the trace says that this worker goes on
            standing = _Standing(actor)
            self._stand(worker, standing)
            if standing.is_late:
                raise self._late(what)

    def _stand(self, worker: Worker, standing: _Standing) -> None:
        self._standing[worker.index, worker.incarnation] = standing
        self._unlocked(self._stage.stand_still)

    def _let_happen(self) -> None:
        """Lets one thing happen; called by a thread of the program, with the lock held."""
        if self._is_conducted:
            self._listen()
        else:
            self._conduct(1)

    def _unblock(self, is_outside: bool = False) -> bool:
        # Whoever was given up is in the trace, which nobody follows after the end.
        return self._is_over and super()._unblock(is_outside)

    def _timeout(self, what: str) -> Exception:
        if self._peek().kind is Kind.TIMEOUT:
            self._consume(Kind.TIMEOUT)
            return self._late(what)
        return self._parted(f"the program still waits for {what}")

    def _note_stop(self) -> None:
        following = self._next_of_program()
        if following is None or self._failure is not None:
            return
        if following is Kind.STOP:
            with contextlib.suppress(ReplayError):  # this may be a finalizer
                self._at(Kind.STOP)
            return
        logging.getLogger("paceline").warning(
            "The program ended before the trace did: %d of %d events of %s were replayed.",
            self._place,
            len(self._trace.events),
            self._trace.path,
        )

    def _note_timeout(self) -> None:
        """Does nothing: `_timeout` finds it in the trace."""

    def _late(self, what: str) -> WaitTimeout:
        return WaitTimeout(
            "A replayed wait lasts as long as the recorded one. Received: a wait for "
            f"{what} that was too long when it was recorded; "
            f"{self.session.dispatch.explain(self._now)}."
        )

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
        if standing.kind is None and event.kind is Kind.LATE:
            self._consume(Kind.LATE)
            standing.is_late = True
        elif event.kind is standing.kind:
            if event.kind is Kind.END and standing.work != event.work:
                raise self._parted(f"worker:{event.worker} ends work {standing.work}")
            self._check_marks(event, standing)
            self._consume(event.kind)
        elif standing.kind is not None and not self._needs_no_event(standing, key):
            self._consume(standing.kind)  # which says what is wrong
        self._stage.go_on(standing.actor, what)

    def _needs_no_event(self, standing: _Standing, key: tuple[int, int]) -> bool:
        """Whether code stands before what it did not do in the recorded run, by right.

        Another worker has traced what it wants to trace, or what it runs was called off: it learns
        that before its next event.
        """
        worker = self.worker(*key)
        return standing.kind is Kind.TRACE or worker is None or self._is_called_off(worker)

    def _act(self, event: Event) -> None:
        """Carries out an event of the driver itself."""
        worker = self._workers.get(event.worker)
        dispatch = self.session.dispatch
        self._noted_at = event.time
        if event.kind is Kind.EXPIRE:
            self._carry_out(dispatch.expire(event.time))
        elif event.kind is Kind.RELEASE:
            super().release()
        elif event.kind is Kind.BACK:
            self._absent.discard(event.worker)
            self._bring_back(event.worker)
        elif worker is None or worker.incarnation != event.incarnation:
            raise self._parted(f"there is no such worker:{event.worker}", is_past=True)
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
            raise self._parted(f"worker:{worker.index} gets work {number}", is_past=True)
        if work is not None:
            self._unlocked(lambda: self._stage.play(lambda: self._serve(worker, work), work))

    def _serve(self, worker: Worker, work: Work) -> None:
        with (
            contextlib.suppress(Cancelled),  # told to code that stood before its end, by `stop`
            context.working(worker),
            jax.default_device(worker.device),
        ):
            self.run(worker, work)

    def _next(self, worker: Worker) -> Work | None:
        return None  # the trace says when it takes more

    def _peek(self) -> Event:
        if self._failure is not None:
            raise self._failure
        events = self._trace.events
        if self._place == len(events):
            how = "whole" if self._trace.is_whole else "cut off"
            raise self._at_end(f"{how}, after all of its {len(events)} events")
        return events[self._place]

    def _is_next(self, *kinds: Kind) -> bool:
        events = self._trace.events
        is_on = self._failure is None and not self._is_over and self._place < len(events)
        return is_on and events[self._place].kind in kinds

    def _next_of_program(self) -> Kind | None:
        """The kind of the next event of the coordinator's program; None: there is none."""
        events, place = self._trace.events, max(self._place, self._place_of_program)
        while place < len(events) and not events[place].kind.is_coordinators:
            place += 1
        self._place_of_program = place
        return events[place].kind if place < len(events) else None

    def _consume(self, kind: Kind, mark: int | None = None) -> None:
        event = self._peek()
        if event.kind is not kind:
            raise self._parted(f"the program does this: {kind.name.lower()}")
        if mark is not None and event.program != mark:
            raise self._parted(f"the program asks for something else with {kind.name.lower()}")
        if event.version != self.session.exchange.store.version:
            raise self._parted(f"the store is at version {self.session.exchange.store.version}")
        self._now = event.time
        self._place += 1

    def _check_marks(self, event: Event, standing: _Standing) -> None:
        program, data = standing.marks
        if program != event.program:
            raise self._parted("the program of the step is another one")
        if data != event.data:
            what = _DATA.get(event.kind, "got another batch")
            raise self._parted(f"worker:{event.worker} {what}. Are all seeds set?")

    def _parted(self, what: str, *, is_past: bool = False) -> ReplayError:
        """The error for a program that does something else; from then on it is raised for all.

        Args:
            what: what it does.
            is_past: at the last event that was taken; else at the next one.
        """
        if self._failure is not None:
            return self._failure
        place = self._place - is_past
        event = self._trace.events[place] if is_past else self._peek()
        if event.kind is Kind.STOP:  # after an error, perhaps
            self._failure = self._at_end(f"whose strategy was stopped or dropped; but here {what}")
        else:
            self._failure = ReplayError(
                "A run is replayed by the program, with the data, that it was recorded with. "
                f"Received: event {place} of {str(self._trace.path)!r}, "
                f"{' '.join(event.as_text().split())}; but here {what}."
            )
        return self._failure

    def _at_end(self, how: str) -> ReplayError:
        return ReplayError(
            f"A trace is replayed up to its last event. Received: {str(self._trace.path)!r}, {how}."
        )

    # What workers are -----------------------------------------------------------------------------

    def _start(self, index: int) -> Worker:
        return self._new_worker(index)

    def _ring(self, *, for_one: bool = False) -> None:
        """Nobody looks for work but when the trace says so."""

    def _is_anybody_free(self) -> bool:
        # Of a look for work that left it to others, or found none, the trace says so.
        return self._trace.events[self._place - 1].work < 0
