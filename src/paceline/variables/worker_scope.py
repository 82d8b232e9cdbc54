"""The scope that a worker's step is traced under: variables join the strategy, seeds differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.program.scope import combine
from paceline.program.split_scope import SplitScope
from paceline.variables.adoption import adopt
from paceline.variables.rules import shifted_seed

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkerScope(SplitScope):
    """Collects the reads and writes of one step of the message path.

    Of an ON_READ variable, which holds `[worker, ...]`, a worker sees and writes its own row.

    Args:
        strategy: the strategy whose variables the step uses.
        take: given an iterator, takes its next batch for the step that is traced.
    """

    def __init__(self, strategy: Any, take: Callable[[Any], Any] | None = None) -> None:
        super().__init__(take)
        self.strategy = strategy

    def prepare(self, variable: Any) -> None:
        """A variable made outside the scope joins the strategy when a worker first uses it."""
        adopt(variable, self.strategy)

    def to_value(self, variable: Any, storage: Any) -> Any:
        """What code sees: of a seed generator's state every worker sees another stream.

        The first worker reads the state itself, so one worker draws what a single device draws.
        """
        if variable.placement.is_stacked:
            return storage[self.worker_index()]
        return shifted_seed(storage, self.worker_index()) if variable.is_seed_state else storage

    def write(self, variable: Any, operation: str, value: Any) -> None:
        """Carries out a write; a seed generator's successor goes back to the common stream."""
        self.prepare(variable)
        if variable.placement.is_stacked:
            storage, index = self.storage(variable), self.worker_index()
            own = combine(operation, storage[index], value)
            self.set_storage(variable, storage.at[index].set(own))
            return
        if variable.is_seed_state and operation == "assign":
            value = shifted_seed(value, -self.worker_index())
        super().write(variable, operation, value)
