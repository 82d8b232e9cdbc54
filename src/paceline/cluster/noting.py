"""What drivers note of a run where it is recorded: each event, in the order in which it happens."""

from __future__ import annotations

import abc
import weakref
import zlib
from typing import TYPE_CHECKING, Any

from paceline.cluster.base import ClusterDriver
from paceline.cluster.trace import Kind, TraceWriter
from paceline.errors import InvalidArgument
from paceline.program import context
from paceline.program.handover import handover

if TYPE_CHECKING:
    from paceline.cluster.base import Cluster
    from paceline.cluster.session import Session
    from paceline.cluster.work import Work
    from paceline.cluster.worker import Worker

_recorded: weakref.WeakSet[Cluster] = weakref.WeakSet()


class Noting(ClusterDriver):
    """Base of drivers whose runs can be recorded. All but `now` is called with the lock held.

    Args:
        cluster: the configuration, with the path of the trace.
        session: the machines.

    Attributes:
        session: as given.
        is_traced: whether workers mark what they do.

    Raises:
        InvalidArgument: another strategy's run is recorded with this very cluster.
    """

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self._cluster: Any = cluster
        self.session = session
        self.is_traced = cluster.record is not None
        self._noted_at = 0.0  # when the last event was
        self._recording: TraceWriter | None = None
        if cluster.record is None:
            return
        if cluster in _recorded:
            raise InvalidArgument(
                "A trace holds one run, of one strategy. Received: a second strategy for "
                f"{cluster!r} with record={str(cluster.record)!r}. Make another cluster, with "
                "another path, for it."
            )
        self._recording = TraceWriter(cluster.record, session.header(cluster))
        _recorded.add(cluster)

    @abc.abstractmethod
    def now(self) -> float:
        """Seconds by this driver's clock; needs no lock."""

    def access(self) -> None:
        if self._recording is not None and not self._is_settled():
            self._at(Kind.ACCESS)

    def _is_settled(self) -> bool:
        """Whether nothing changes any more before the program does something."""
        # What is held is applied when a worker has found no more work, or never.
        return self.session.dispatch.is_idle and not self.session.exchange.has_held

    def note_trace(self, worker: Worker, *, is_alone: bool) -> None:
        """Called, without the lock, before a worker traces a step: the order decides names and
        first values of the variables that steps make.

        Args:
            worker: the worker.
            is_alone: whether no other worker may trace now. Each is asked for twice, first without.
        """
        if is_alone:
            with handover:
                self._at(Kind.TRACE, worker)

    def _at(
        self, kind: Kind, worker: Worker | None = None, work: Work | None = None, mark: int = 0
    ) -> float:
        """Called wherever the order of events matters, before what happens; returns the time."""
        now = self._noted_at = self.now()
        if self._recording is not None:
            if kind.is_coordinators and (caller := self._caller()) is not None:
                kind, worker = Kind.ACT, caller
            self._note(kind, worker, work, self.session.exchange.store.version, now, mark)
        return now

    def _note(
        self, kind: Kind, worker: Worker | None, work: Work | None, version: int, now: float,
        mark: int = 0,
    ) -> None:  # fmt: skip
        """Writes an event to the trace, if there is one."""
        if self._recording is not None:
            index, incarnation = (0, 0) if worker is None else (worker.index, worker.incarnation)
            program, data = (mark, 0) if worker is None else worker.take_marks()
            number = -1 if work is None else work.number
            self._recording.write(kind, index, incarnation, number, version, program, data, now)

    def _caller(self) -> Worker | None:
        """The worker whose code asks for what only the coordinator's program usually does."""
        worker: Any = context.worker()
        return worker if worker is not None and worker.driver is self else None

    def _note_timeout(self) -> None:
        """Notes that a wait was too long."""
        caller = self._caller()
        self._at(Kind.TIMEOUT if caller is None else Kind.LATE, caller)

    def _note_stop(self) -> None:
        """Notes that no more is to come."""
        self._at(Kind.STOP)
        if self._recording is not None:
            self._recording.close()
            self._recording = None


def text_mark(text: str) -> int:
    """A fingerprint of a text, for an event."""
    return zlib.crc32(text.encode()) or 1
