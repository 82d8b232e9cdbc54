"""Which server each variable of a strategy is on."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import jax

from paceline.errors import InvalidArgument
from paceline.store.placing import PlacementReport, ServerLoad

if TYPE_CHECKING:
    from paceline.store.placing import Placing

_SERVER = "_server"  # in a variable's __dict__


class Servers:
    """Gives variables to servers as they are made; an optimizer's slots go where their variable is.

    Args:
        count: how many servers there are.
        placing: the rule.
    """

    def __init__(self, count: int, placing: Placing) -> None:
        self._placing = placing
        self._counts = [0] * count
        self._loads = [0] * count
        self._known: list[weakref.ref[Any]] = []

    def add(self, variable: Any) -> None:
        """Gives `variable` to a server.

        Raises:
            InvalidArgument: the placing chose a server that does not exist.
        """
        own = _owner(variable, self._variables())
        if own is not None:
            server = self.of(own)
        else:
            server = self._placing.next_server(self._counts, self._loads)
            if server not in range(len(self._counts)):
                raise InvalidArgument(
                    f"A placing chooses one of the servers 0 to {len(self._counts) - 1}. Received: "
                    f"{server!r} for {variable.path!r} from {self._placing!r}. Correct its "
                    "`next_server`."
                )
            self._counts[server] += 1
        self._loads[server] += _num_bytes(variable)
        variable.__dict__[_SERVER] = server
        self._known.append(weakref.ref(variable))

    def of(self, variable: Any) -> int:
        """The index of the server that has `variable`; the first one's for one that none has."""
        return variable.__dict__.get(_SERVER, 0)

    def report(self) -> PlacementReport:
        """What every server holds now."""
        variables = self._variables()
        assignment = [self.of(variable) for variable in variables]
        loads = []
        for server in range(len(self._counts)):
            own = [v for v, place in zip(variables, assignment, strict=True) if place == server]
            names = tuple(variable.path for variable in own)
            loads.append(ServerLoad(names, sum(map(_num_bytes, own))))
        return PlacementReport(tuple(loads), tuple(assignment))

    def _variables(self) -> list[Any]:
        return [variable for known in self._known if (variable := known()) is not None]


def _owner(variable: Any, others: list[Any]) -> Any:
    """The variable that a slot belongs to: Keras names a slot after it."""
    if not variable.is_optimizer_state:
        return None
    alike = [
        other
        for other in others
        if variable.name.startswith(other.path.replace("/", "_") + "_")
        and tuple(other.shape) == tuple(variable.shape)
    ]
    return max(alike, key=lambda other: len(other.path), default=None)


def _num_bytes(variable: Any) -> int:
    itemsize = jax.dtypes.canonicalize_dtype(variable._dtype).itemsize
    return math.prod(variable.shape) * itemsize
