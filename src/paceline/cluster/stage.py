"""Threads of which one runs at a time: code of many workers, in an order that somebody decides.

Whoever has the stage runs; everybody else waits for a lock of his own. So a worker's code can stand
still in the midst of a step, as a coroutine does, without being written as one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from typing import TYPE_CHECKING

from paceline.errors import Cancelled, WaitTimeout

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass
class _Wings:
    """All that an idle thread knows of its stage, and so keeps alive.

    Attributes:
        playing: who has the stage; None: whoever calls the actors.
        returned: holds something when an actor has given the stage back.
        idle: actors without a part, the last one to be used again first.
        is_over: whether the stage was closed.
    """

    playing: Actor | None = None
    returned: queue.SimpleQueue[None] = dataclasses.field(default_factory=queue.SimpleQueue)
    idle: list[Actor] = dataclasses.field(default_factory=list)
    is_over: bool = False


class Actor:
    """A thread that plays when it is called, and waits in between. Made by a `Stage`."""

    def __init__(self, wings: _Wings, number: int) -> None:
        self.part: Callable[[], None] | None = None
        self.what: object = None
        self.go = threading.Lock()
        self.go.acquire()
        self._thread = threading.Thread(
            target=_play,
            args=(self, wings),
            name=f"paceline simulated worker {number}",
            daemon=True,  # a worker's endless function must not hold up the exit
        )
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether this very thread is the actor's."""
        return self._thread.ident == threading.get_ident()


class Stage:
    """Gives one thread after the other the right to run.

    Args:
        deadline: real seconds that an actor may play before whoever called it is told.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._count = 0
        self._standing: dict[Actor, None] = {}
        self._wings = _Wings()

    @property
    def playing(self) -> Actor | None:
        """Who has the stage; None: nobody."""
        return self._wings.playing

    @property
    def here(self) -> Actor | None:
        """The actor that has the stage, if this is its thread."""
        actor = self._wings.playing
        return actor if actor is not None and actor.is_here else None

    def play(self, part: Callable[[], None], what: object) -> None:
        """Has an actor call `part`; returns when it has ended or stands still.

        Raises:
            WaitTimeout: it did neither within the deadline; see `settle`.
        """
        idle = self._wings.idle
        if idle:
            actor = idle.pop()
        else:
            self._count += 1
            actor = Actor(self._wings, self._count)
        actor.part = part
        self.go_on(actor, what)

    def go_on(self, actor: Actor, what: object) -> None:
        """Lets an actor that stands still go on; returns when it has ended or stands still again.

        Raises:
            WaitTimeout: it did neither within the deadline; see `settle`.
        """
        self._standing.pop(actor, None)
        actor.what = what
        self._wings.playing = actor
        actor.go.release()
        self.settle()

    def settle(self) -> None:
        """Returns when nobody plays: at once, or when who did has ended or stands still.

        Raises:
            WaitTimeout: it did neither within the deadline. It goes on, and nobody else may until
                it is done: this is called again before anything else.
        """
        # An interrupt may come when the actor has returned, and before this is noted here. So what
        # counts is who plays, and a queue, unlike a lock, bears having been told once too often.
        wings, interrupt = self._wings, None
        while (actor := wings.playing) is not None:
            try:
                wings.returned.get(timeout=self._deadline)
            except queue.Empty:
                if wings.playing is None:
                    break
                raise WaitTimeout(
                    f"A worker's code runs {self._deadline:g} s of real time at most before it "
                    f"pulls, pushes or ends. Received: {actor.what!r}, which goes on. If it may "
                    "take so long, make the cluster with a longer deadline."
                ) from interrupt
            except KeyboardInterrupt as error:  # the actor goes on: wait until it stands still
                if interrupt is not None:
                    raise
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def stand_still(self) -> None:
        """Called by the actor that plays: waits until it may go on.

        Raises:
            Cancelled: the stage was closed meanwhile.
        """
        actor = self.here
        if actor is None:
            raise RuntimeError("only an actor stands still")
        if not self._wings.is_over:
            self._standing[actor] = None
            self._wings.playing = None
            self._wings.returned.put(None)
            actor.go.acquire()
        if self._wings.is_over:
            raise Cancelled("The strategy was stopped while its workers stood still.")

    def dismiss(self) -> bool:
        """Ends the play: the next one of those that stand still gets an error to let pass.

        Returns:
            Whether there was one. Until then this is called again, before `close`.
        """
        self._wings.is_over = True
        self.settle()
        if not self._standing:
            return False
        self.go_on(next(iter(self._standing)), "a worker that was told to end")
        return True

    def close(self) -> None:
        """Ends the play: idle threads now, and whoever still plays by himself."""
        self._wings.is_over = True
        self.let_go()

    def let_go(self) -> None:
        """Ends the threads that do nothing; who plays later gets another one."""
        idle = self._wings.idle
        while idle:
            idle.pop().go.release()  # without a part


def _play(actor: Actor, wings: _Wings) -> None:
    """The thread of an actor; while it has no part it keeps nothing of the stage's owner."""
    while True:
        actor.go.acquire()
        part, actor.part = actor.part, None
        if part is None:
            return
        part()
        del part
        wings.idle.append(actor)
        is_over = wings.is_over
        if is_over:  # or nobody would end this thread
            with contextlib.suppress(ValueError):
                wings.idle.remove(actor)
        actor.what = wings.playing = None
        wings.returned.put(None)
        if is_over:
            return
