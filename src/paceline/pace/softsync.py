"""Softsync: nobody waits, and every so many pushes make one update."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from paceline.pace.base import Pace, check_count
from paceline.pace.gathering import GatheringMachine

if TYPE_CHECKING:
    from paceline.pace.base import Decision, PaceMachine


@dataclasses.dataclass(frozen=True)
class Softsync(Pace):
    """Every `pushes` pushes make one update, whoever they come from. Nobody waits.

    With `pushes=workers // n`, n equal workers' staleness is about n in the mean and rarely above
    2n. A group that no live worker is left to fill is applied as it is.

    Semantics:
        The n-softsync protocol of Zhang et al. 2016, "Staleness-aware Async-SGD for Distributed
        Deep Learning". Here the size of a group is given, not n. `tf.distribute` has no
        counterpart. 1-softsync is not lockstep: a fast worker may push twice into one group, and
        pushes computed on older versions count.

    Args:
        pushes: how many pushes make an update.

    Raises:
        InvalidArgument: not an integer of at least 1.
    """

    pushes: int

    def __post_init__(self) -> None:
        check_count(
            "pushes",
            self.pushes,
            least=1,
            rule="The number of pushes that make an update is an integer of at least 1.",
            remedy="Pass workers // n for n-softsync, at least 1.",
        )

    def machine(self) -> PaceMachine:
        return SoftsyncMachine(self.pushes)


class SoftsyncMachine(GatheringMachine):
    """The groups of one run."""

    holds_starts = False

    def __init__(self, pushes: int) -> None:
        super().__init__()
        self._pushes = pushes

    def _must_wait(self, worker: int) -> bool:
        return False

    def _why_wait(self, worker: int) -> str:
        return ""

    def _decide(self, worker: int, ticket: int, staleness: int) -> Decision:
        return self._gather(ticket)

    def _must_hold(self) -> bool:
        # Without a live member nobody would ever fill the group.
        return len(self._held) < self._pushes and bool(self._members.live)

    def _why_hold(self) -> str:
        return f"{self._count()}."

    def _why_apply(self) -> str:
        if len(self._held) >= self._pushes:
            return f"{self._count()}."
        return f"{self._count()}, and no worker is left to push more."

    def _count(self) -> str:
        return f"Update {self._round} has {len(self._held)} of {self._pushes} pushes"
