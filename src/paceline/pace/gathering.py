"""Paces that make one update of several pushes: what is held for it, and when it is made."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from paceline.pace.base import Apply, Hold, PaceMachine

if TYPE_CHECKING:
    from paceline.pace.base import Decision


class GatheringMachine(PaceMachine):
    """Holds pushes until there are enough of them, or until nobody is left to wait for."""

    def __init__(self) -> None:
        super().__init__()
        # Number of the update that is being gathered, and the pushes gathered for it.
        self._round = 1
        self._held: list[int] = []

    def leave(self, worker: int) -> list[Decision]:
        super().leave(worker)
        return self._settle()

    def finish(self, worker: int) -> list[Decision]:
        super().finish(worker)
        return self._settle()

    def close(self) -> list[Decision]:
        if not self._held:
            return []
        return [self._apply(f"Update {self._round} is closed early, with what was held.")]

    def _settle(self) -> list[Decision]:
        if not self._held or self._must_hold():
            return []
        return [self._apply(self._why_apply())]

    def _gather(self, ticket: int) -> Decision:
        self._held.append(ticket)
        if self._must_hold():
            return Hold(ticket, self._why_hold())
        return self._apply(self._why_apply())

    def _apply(self, reason: str) -> Apply:
        decision = Apply(tuple(self._held), reason)
        self._held.clear()
        self._round += 1
        return decision

    @abc.abstractmethod
    def _must_hold(self) -> bool:
        """Returns whether the gathered pushes wait for more."""

    @abc.abstractmethod
    def _why_hold(self) -> str:
        """Returns what the gathered pushes wait for."""

    @abc.abstractmethod
    def _why_apply(self) -> str:
        """Returns why the gathered pushes make an update."""
