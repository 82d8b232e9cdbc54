"""Free-running: nobody waits, and every push is an update."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from paceline.pace.base import Apply, Drop, Pace, PaceMachine, check_count

if TYPE_CHECKING:
    from paceline.pace.base import Decision


@dataclasses.dataclass(frozen=True)
class Asynchronous(Pace):
    """Every push is applied at once. Nobody waits.

    The mean staleness of n equal workers is n - 1. With `max_staleness`, a push that is staler is
    dropped, with a reason that names the worker; choose 2 to 4 times the mean, and watch the share
    that is dropped.

    Semantics:
        What `tf.distribute.ParameterServerStrategy` does, where nothing limits staleness: the
        asynchronous updates of Downpour SGD (Dean et al. 2012), each applied as a unit, so none is
        lost. The cap is the delay threshold R of Ringmaster ASGD (Maranjyan et al. 2025) with
        R = `max_staleness` + 1, except that a computation is not cancelled on its way.

    Args:
        max_staleness: the largest staleness of a push that is applied; None for no limit.

    Raises:
        InvalidArgument: neither None nor an integer of at least 0.
    """

    max_staleness: int | None = None

    def __post_init__(self) -> None:
        if self.max_staleness is not None:
            check_count(
                "max_staleness",
                self.max_staleness,
                least=0,
                rule="The largest staleness is None or an integer of at least 0.",
                remedy="Pass None for no limit.",
            )

    def machine(self) -> PaceMachine:
        return AsynchronousMachine(self.max_staleness)


class AsynchronousMachine(PaceMachine):
    """The pushes of one run."""

    holds_starts = False

    def __init__(self, max_staleness: int | None) -> None:
        super().__init__()
        self._max_staleness = max_staleness
        self._why_apply = (
            "A free-running pace applies every push at once."
            if max_staleness is None
            else f"Its staleness is within the largest allowed, {max_staleness}."
        )

    def _must_wait(self, worker: int) -> bool:
        return False

    def _why_wait(self, worker: int) -> str:
        return ""

    def _decide(self, worker: int, ticket: int, staleness: int) -> Decision:
        if self._max_staleness is None or staleness <= self._max_staleness:
            return Apply((ticket,), self._why_apply)
        return Drop(
            ticket,
            f"Worker {worker} pushed with staleness {staleness}, above the largest allowed, "
            f"{self._max_staleness}.",
        )
