"""The scope a replica function is traced under: reads give the replica's component, writes follow
the variable's aggregation."""

from __future__ import annotations

from typing import Any

from paceline.program.keras_state import outside_of_scopes
from paceline.program.scope import TraceScope
from paceline.variables import rules
from paceline.variables.adoption import adopt
from paceline.variables.variable import Variable


class ReplicaScope(TraceScope):
    """Collects the reads and writes of one replica.

    Args:
        replica: the replica context.
    """

    def __init__(self, replica: Any) -> None:
        super().__init__()
        self.replica = replica

    def prepare(self, variable: Any) -> None:
        """A variable made outside the scope joins the strategy when a replica first uses it."""
        is_shared = isinstance(variable, Variable) and variable._value is not None
        adopt(variable, self.replica.strategy, is_shared=is_shared)

    def input_shape(self, variable: Any) -> tuple[int, ...]:
        """A replica sees one component."""
        return tuple(variable.shape)

    def to_value(self, variable: Any, storage: Any) -> Any:
        """A replica reads its own component; seed generators give every replica its own stream."""
        return rules.seen(variable, storage, self.replica)

    def write(self, variable: Any, operation: str, value: Any) -> None:
        """Aggregates the argument over the replicas and carries the operation out."""
        current = self.storage(variable)
        new = rules.write(variable, operation, value, self.replica, current)
        self.set_storage(variable, new)


class EagerReplicaScope(ReplicaScope):
    """Holds one eager replica's components until the replicas' writes are brought together."""

    def __init__(self, replica: Any) -> None:
        super().__init__(replica)
        self.initialize_variables = False
        self._components: dict[int, Any] = {}

    def storage(self, variable: Any) -> Any:
        """The component at this point of the replica's run."""
        key = id(variable)
        if key not in self._components:
            if variable._value is None:
                with outside_of_scopes():
                    variable._deferred_initialize()
            self.prepare(variable)
            self.reads[key] = (variable, None)
            self._components[key] = variable.component(self.replica.group.index)
        return self._components[key]

    def set_storage(self, variable: Any, value: Any) -> None:
        """Keeps the new component; `collect` makes it the variable's."""
        self.storage(variable)
        self._components[id(variable)] = value
        self.writes[id(variable)] = (variable, value)

    def forget(self) -> None:
        """Reads come from the variables again: code across replicas may have written them."""
        self._components.clear()
        self.writes.clear()


def collect(scopes: list[EagerReplicaScope]) -> None:
    """Makes the components that eager replicas wrote the values of their variables."""
    written = {key: entry[0] for scope in scopes for key, entry in scope.writes.items()}
    for variable in written.values():
        parts = [scope.storage(variable) for scope in scopes]
        strategy = variable.placement.home
        if variable.placement.is_stacked:
            variable._value = strategy.join_stacked(parts)
        else:
            variable._value = strategy.join(parts)
    for scope in scopes:
        scope.forget()
