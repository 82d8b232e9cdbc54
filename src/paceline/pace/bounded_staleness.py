"""Bounded staleness: a fast worker waits when it is too far ahead of the slowest."""

from __future__ import annotations

import dataclasses

from paceline.pace.base import Apply, Pace, PaceMachine, check_count
from paceline.pace.members import name_workers
from paceline.pace.synchronous import Synchronous


@dataclasses.dataclass(frozen=True)
class BoundedStaleness(Pace):
    """A worker may start when it is at most `bound` clocks ahead of the slowest live worker.

    A worker's clock is the number of steps that it has finished. With `bound=2` and a slow worker
    at clock 0, a fast one finishes clocks 1, 2 and 3, and waits before its fourth step until the
    slow one finishes clock 1. Pushes are applied one by one, at once. `bound=0` is lockstep, in one
    update per round, as `Synchronous()`.

    A bound of 1 to 4 takes most of the gain when workers are slow now and then. It cannot help when
    one of them is always slow: then all keep its speed, `bound` clocks ahead.

    Semantics:
        Stale synchronous parallel (Ho et al. 2013, "More Effective Distributed ML via a Stale
        Synchronous Parallel Parameter Server"), with the minimum over the live workers: those that
        left or ran out of data hold nobody up. A pull gets the newest version, so it sees all that
        the paper guarantees, its own updates included, and often more. Some texts allow one clock
        less for the same bound. In `tf.distribute` nothing bounds staleness.

    Args:
        bound: how many clocks a worker may be ahead when it starts.

    Raises:
        InvalidArgument: not an integer of at least 0.
    """

    bound: int

    def __post_init__(self) -> None:
        check_count(
            "bound",
            self.bound,
            least=0,
            rule="The bound on staleness is an integer of at least 0.",
            remedy="Pass 0 for lockstep, or use Asynchronous() for no bound.",
        )

    def machine(self) -> PaceMachine:
        # One by one, the pushes of a round would each see the others' updates.
        return BoundedStalenessMachine(self.bound) if self.bound else Synchronous().machine()


class BoundedStalenessMachine(PaceMachine):
    """The clocks of one run, with a bound of at least 1."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self._bound = bound

    @property
    def barrier(self) -> int:
        return self._members.slowest_clock

    def _must_wait(self, worker: int) -> bool:
        return self._members.slowest_clock < self._members.clocks[worker] - self._bound

    def _why_wait(self, worker: int) -> str:
        clocks = self._members.clocks
        first = clocks[worker] - self._bound
        behind = name_workers([other for other in self._members.live if clocks[other] < first])
        return (
            f"Worker {worker} has finished clock {clocks[worker]} and may be at most "
            f"{self._bound} ahead: it waits for {behind} to finish clock {first}."
        )

    def _decide(self, worker: int, ticket: int, staleness: int) -> Apply:
        self._members.tick(worker)
        return Apply((ticket,), "Bounded staleness holds back starts, never pushes.")
