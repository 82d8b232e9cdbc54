"""What every pace is: a configuration, and a machine that answers events with decisions."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, TypeAlias

from paceline.errors import InvalidArgument
from paceline.pace.members import Members

if TYPE_CHECKING:
    from collections.abc import Hashable


# Not frozen: there is a decision for every push, and a frozen one takes twice as long to make.
@dataclasses.dataclass(slots=True)
class Apply:
    """These pushes make one update.

    Attributes:
        tickets: the pushes, in the order in which they came. Several are merged.
        reason: why, as a sentence.
    """

    tickets: tuple[int, ...]
    reason: str


@dataclasses.dataclass(slots=True)
class Hold:
    """This push is kept for a group. A later decision applies it.

    Attributes:
        ticket: the push.
        reason: what the group waits for, as a sentence.
    """

    ticket: int
    reason: str


@dataclasses.dataclass(slots=True)
class Drop:
    """This push never reaches the store.

    Attributes:
        ticket: the push.
        reason: why, as a sentence that names the worker.
    """

    ticket: int
    reason: str


Decision: TypeAlias = Apply | Hold | Drop
"""What happens to pushes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Permission:
    """Whether a worker may pull now.

    Attributes:
        is_granted: whether it may.
        reason: what it waits for, as a sentence; empty when granted.
    """

    is_granted: bool
    reason: str = ""


_GRANTED = Permission(True)


class Pace(abc.ABC):
    """How far workers may drift apart. A pace holds settings only; its machine holds the state."""

    @abc.abstractmethod
    def machine(self) -> PaceMachine:
        """Returns a fresh machine, for one run or for the part of a run at this pace."""


class PaceMachine(abc.ABC):
    """The state of one run at one pace: events in, decisions out.

    It has no thread and no clock. A driver reports each event once, carries out the decisions in
    the order it gets them, and then asks again for every worker that waits. Workers are known by
    index, pushes by tickets that the driver numbers.

    What holds at every pace, in whatever order events come:

    - Each ticket gets exactly one `Apply` or `Drop`, at the latest in `close`. A `Hold` may precede
      an `Apply`, never a `Drop`.
    - When no live member computes, at least one of them may start: nobody waits forever.
    - A push never waits, and only live members are waited for.

    A policy answers the questions at the end of this class, and says why in a sentence.

    Attributes:
        holds_starts: whether `may_start` ever refuses a live member.
    """

    holds_starts = True

    def __init__(self) -> None:
        self._members = Members()

    def join(self, worker: int) -> None:
        """Makes a worker a live member, also one that had finished or left.

        Its clock starts at the minimum of the live members' clocks. After `finish` it keeps its own
        if that is larger.
        """
        self._members.join(worker)

    def leave(self, worker: int) -> list[Decision]:
        """Forgets a lost worker. Its held pushes still count; what it has yet to push does not."""
        self._members.leave(worker)
        return []

    def finish(self, worker: int) -> list[Decision]:
        """Waits no more for a worker that is out of data for now; `join` resumes it."""
        self._members.rest(worker)
        return []

    def may_start(self, worker: int) -> Permission:
        """Returns whether a worker may pull now. Changes nothing."""
        if not self.must_wait(worker):
            return _GRANTED
        return Permission(False, self._members.why_absent(worker) or self._why_wait(worker))

    def must_wait(self, worker: int) -> bool:
        """Whether `may_start` refuses a worker; finds it out in no time, and does not say why."""
        return worker not in self._members.live or self._must_wait(worker)

    @property
    def barrier(self) -> Hashable:
        """What the permission of live members depends on.

        While it stays equal, who had to wait has to wait. None: ask after each event.
        """
        return None

    def started(self, worker: int, version: int) -> None:
        """Notes that a worker with permission to start has pulled `version`."""
        del worker, version  # Most paces do not need to know.

    def push(self, worker: int, ticket: int, read_version: int, version: int) -> list[Decision]:
        """Decides about a push.

        Args:
            worker: who pushes.
            ticket: a number that no other push has.
            read_version: the version that the worker pulled.
            version: the version of the store now.

        Returns:
            What happens now. One decision names the ticket; if it is a `Hold`, a later `Apply`
            names it again.
        """
        if worker not in self._members.clocks:
            return [Drop(ticket, self._members.why_absent(worker))]
        return [self._decide(worker, ticket, version - read_version)]

    def close(self) -> list[Decision]:
        """Applies what is held as a last, smaller group: the data ends, or the pace changes.

        The machine can go on afterwards. Whoever changes the pace lets the members join the next
        machine.
        """
        return []

    @abc.abstractmethod
    def _must_wait(self, worker: int) -> bool:
        """Returns whether a live member may not start yet."""

    @abc.abstractmethod
    def _why_wait(self, worker: int) -> str:
        """Returns what a live member that may not start waits for."""

    @abc.abstractmethod
    def _decide(self, worker: int, ticket: int, staleness: int) -> Decision:
        """Returns what happens to a member's push."""


def check_count(name: str, value: object, *, least: int, rule: str, remedy: str) -> None:
    """Checks a setting that counts something.

    Raises:
        InvalidArgument: no integer, or below `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidArgument(f"{rule} Received: {name}={value!r}. {remedy}")
