"""How many bytes a step pulls from each server, and pushes to it."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax

from paceline.program.flat import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from paceline.program.split import Cut


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes of one step.

    A table whose gradient is rows is only looked up in: of it as many rows are pulled as pushed.
    What travels for several variables goes to the server of one of them, as it would in one run.

    Attributes:
        pulled, pushed: bytes by server, up to the last one that has any.
    """

    pulled: tuple[int, ...]
    pushed: tuple[int, ...]

    @classmethod
    def of(
        cls,
        cut: Cut,
        residuals: Sequence[Any],
        pulled: Sequence[Any],
        servers: Mapping[int, int],
    ) -> Traffic:
        """Works out the bytes, without running the step.

        Args:
            cut: the cut step.
            residuals: shapes and dtypes of what the worker half yields.
            pulled: the variables that a worker pulls.
            servers: the server of each of these and of those that are written, by `id`.
        """
        homes = _servers_of_slots(cut, servers)
        pushed: dict[int, int] = {}
        rows: dict[int, int] = {}
        for slot, shapes in zip(cut.residuals, residuals, strict=True):
            home = cut.commits.get(slot, 0)
            server = servers.get(home, homes.get(slot, 0))
            size = sum(math.prod(s.shape) * s.dtype.itemsize for s in jax.tree.leaves(shapes))
            pushed[server] = pushed.get(server, 0) + size
            if slot in cut.rows:
                rows[home] = size
        read: dict[int, int] = {}
        for variable in pulled:
            server = servers[id(variable)]
            itemsize = jax.dtypes.canonicalize_dtype(variable._dtype).itemsize
            size = rows.get(id(variable), math.prod(variable.shape) * itemsize)
            read[server] = read.get(server, 0) + size
        return cls(_by_server(read), _by_server(pushed))


def _servers_of_slots(cut: Cut, servers: Mapping[int, int]) -> dict[Any, int]:
    """The server that needs each slot, for what it writes."""
    homes: dict[Any, int] = {}

    def note(slots: Iterable[Any], server: int) -> None:
        for slot in slots:
            homes.setdefault(slot, server)

    for write in cut.writes:
        server = servers[id(write.variable)]
        if isinstance(write.result, Slot):
            note([write.result], server)
        for node in write.nodes:
            note(node.needs, server)
    for node in reversed(cut.at_store):
        for slot in node.outputs:
            if slot in homes:
                note(node.needs, homes[slot])
    return homes


def _by_server(sizes: dict[int, int]) -> tuple[int, ...]:
    return tuple(sizes.get(server, 0) for server in range(max(sizes, default=-1) + 1))
