"""Threads of which one runs at a time: code of many workers, in an order that somebody decides.

Whoever has the stage runs; everybody else waits for a lock of his own. So a worker's code can stand
still in the midst of a step, as a coroutine does, without being written as one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from paceline.errors import Cancelled, WaitTimeout

if TYPE_CHECKING:
    from collections.abc import Callable


class Actor:
    """A thread that plays when it is called, and waits in between. Made by a `Stage`."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.part: Callable[[], None] | None = None
        self.go = threading.Lock()
        self.go.acquire()
        threading.Thread(
            target=_play,
            args=(self, stage.returned, stage.idle),
            name=f"paceline simulated worker {number}",
            daemon=True,  # a worker's endless function must not hold up the exit
        ).start()


class Stage:
    """Gives one thread after the other the right to run.

    Args:
        deadline: real seconds that an actor may play before it lets others go on.

    Attributes:
        playing: who has the stage; None: the thread that calls the actors.
        returned: released when an actor gives the stage back.
        idle: actors without a part, the last one to be used again first.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._count = 0
        self._is_over = False
        self._standing: set[Actor] = set()
        self.playing: Actor | None = None
        self.idle: list[Actor] = []
        self.returned = threading.Lock()
        self.returned.acquire()

    def play(self, part: Callable[[], None], what: object) -> None:
        """Has an actor call `part`; returns when it has ended or stands still.

        Raises:
            WaitTimeout: it did neither within the deadline.
        """
        if self.idle:
            actor = self.idle.pop()
        else:
            self._count += 1
            actor = Actor(self, self._count)
        actor.part = part
        self.go_on(actor, what)

    def go_on(self, actor: Actor, what: object) -> None:
        """Lets an actor that stands still go on; returns when it has ended or stands still again.

        Raises:
            WaitTimeout: it did neither within the deadline.
        """
        self._standing.discard(actor)
        self.playing = actor
        actor.go.release()
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                is_back = self.returned.acquire(timeout=self._deadline)
                break
            except KeyboardInterrupt as error:  # the actor goes on: wait until it stands still
                if interrupt is not None:
                    raise
                interrupt = error
        self.playing = None
        if not is_back:
            raise WaitTimeout(
                f"A worker's code runs {self._deadline:g} s of real time at most before it pulls, "
                f"pushes or ends. Received: {what!r}, which goes on. If it may take so long, make "
                "the cluster with a longer deadline."
            )
        if interrupt is not None:
            raise interrupt

    def stand_still(self) -> None:
        """Called by the actor that plays: waits until it may go on.

        Raises:
            Cancelled: the stage was closed meanwhile.
        """
        actor = self.playing
        if actor is None:
            raise RuntimeError("only an actor stands still")
        self._standing.add(actor)
        self.returned.release()
        actor.go.acquire()
        if self._is_over:
            raise Cancelled("The strategy was stopped while its workers stood still.")

    def close(self) -> None:
        """Ends all threads; those that stand still get an error to let pass."""
        self._is_over = True
        idle, self.idle[:] = list(self.idle), []
        standing, self._standing = self._standing, set()
        for actor in idle:
            actor.part = None
            actor.go.release()
        for actor in standing:
            actor.go.release()


def _play(actor: Actor, returned: threading.Lock, idle: list[Actor]) -> None:
    """The thread of an actor; while it has no part it keeps nothing of the stage's owner."""
    while True:
        actor.go.acquire()
        part, actor.part = actor.part, None
        if part is None:
            return
        part()
        del part
        idle.append(actor)
        returned.release()
