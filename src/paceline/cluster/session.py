"""What a strategy's workers work on: store, pace and queue, and what they remember."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.cluster.dispatch import Dispatch
from paceline.cluster.exchange import Exchange
from paceline.cluster.steps import Steps
from paceline.cluster.trace import header_of
from paceline.cluster.vigil import Vigil
from paceline.store.step_update import GroupUpdate, RuleStates
from paceline.store.store import Store
from paceline.variables.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.cluster.base import Cluster
    from paceline.cluster.instructions import Instruction
    from paceline.cluster.records import PushRecord
    from paceline.cluster.work import Work
    from paceline.pace import Pace
    from paceline.store.rules import UpdateRule
    from paceline.store.step_update import Merge
    from paceline.store.store import Push


class _Queue(Dispatch["Work"]):
    """A queue that tells whose leases it takes back."""

    def __init__(
        self, capacity: int, deadline: float | None, taken_back: Callable[[int], None]
    ) -> None:
        super().__init__(capacity=capacity, deadline_s=deadline)
        self._taken_back = taken_back
        self._told: dict[int, int] = {}

    def expire(self, now: float) -> Sequence[Instruction[Work]]:
        instructions = super().expire(now)
        for worker, counts in self.ledger.counts().items() if instructions else ():
            for _ in range(counts.expired - self._told.get(worker, 0)):
                self._taken_back(worker)
            self._told[worker] = counts.expired
        return instructions


class Session:
    """The machines of one strategy, without a driver.

    Args:
        pace: how far workers may drift apart.
        rule: how stale pushes are applied.
        merge: how the gradients of a group are combined.
        record: is told of every push that ended.
        device: where the store's arrays are.
        capacity: how much work may be queued.
        lease_deadline: seconds after which work is taken back from a worker; None: never.
        taken_back: is told of every worker from which work was taken back for that.
    """

    def __init__(
        self,
        pace: Pace,
        rule: UpdateRule,
        record: Callable[[PushRecord], None],
        *,
        device: Any,
        merge: Merge = "mean",
        capacity: int = 256 * 1024,
        lease_deadline: float | None = None,
        taken_back: Callable[[int], None] = lambda worker: None,
    ) -> None:
        def combine(group: Sequence[tuple[Push, int]]) -> GroupUpdate:
            return GroupUpdate(group, merge)

        self.device = device
        self._settings = pace, rule, merge
        self.states = RuleStates(rule)
        self.vigil = Vigil()
        self.steps = Steps(rule)
        store = Store(Shelf())  # pyright: ignore[reportArgumentType]
        self.exchange = Exchange(store, pace, combine, record)
        self.dispatch: Dispatch[Work] = _Queue(capacity, lease_deadline, taken_back)

    def header(self, cluster: Cluster) -> dict[str, Any]:
        """What the run is, for the header of its trace."""
        return header_of(cluster, *self._settings)
