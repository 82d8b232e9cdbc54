"""`Replay`: a recorded run once more, in one process, to the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.cluster.base import OnOneDevice
from paceline.cluster.replay_driver import ReplayDriver
from paceline.cluster.trace import Trace
from paceline.errors import ReplayError

if TYPE_CHECKING:
    import os

    from paceline.cluster.session import Session

_MUST_AGREE = (
    "libraries",
    "python",
    "platform",
    "workers",
    "servers",
    "pace",
    "update_rule",
    "merge",
)


class Replay(OnOneDevice):
    """Runs what another cluster recorded, event by event, on one device.

    The program that recorded the trace runs unchanged with this cluster in the place of the other
    one. Workers pull, push and end in the recorded order, at the recorded times, so that weights,
    metrics and reports are the recorded ones, bit by bit where the device computes the same bits.
    What differs is refused where it shows first: a library's version, the pace, the program of a
    step, the batch it got, what a worker pushed.

    Args:
        path: the trace, written with `record=`. One that a crash cut off runs up to its last whole
            event and then raises.
        device: where all is computed; default: the first device of the process.
        deadline: real seconds that a worker's code may run without meeting the store.

    Raises:
        ReplayError: no trace, a damaged one, or one of another format.

    Semantics:
        No counterpart in tf.distribute.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, device: Any = None, deadline: float = 600.0
    ) -> None:
        self.trace = Trace(path)
        self.workers = int(self.trace.header["workers"])
        self.servers = int(self.trace.header["servers"])
        self.lease_deadline = self.trace.header.get("lease_deadline")
        self.deadline = deadline
        self._place(device)

    def open(self, session: Session) -> ReplayDriver:
        """Returns a driver that stands before the first event.

        Raises:
            ReplayError: libraries, pace, update rule or device are not those of the recorded run.
        """
        now, then = session.header(self), self.trace.header
        for name in _MUST_AGREE:
            if now[name] != then.get(name):
                raise ReplayError(
                    f"A run is replayed with what it was recorded with. Received: {name} "
                    f"{now[name]!r}, where {str(self.trace.path)!r} was recorded with "
                    f"{then.get(name)!r}."
                )
        return ReplayDriver(self, session)

    def __repr__(self) -> str:
        return f"Replay({str(self.trace.path)!r})"
