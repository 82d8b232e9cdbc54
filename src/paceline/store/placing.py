"""Which server holds which array (pure), and a report of it that a person can read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class ServerLoad:
    """What one server holds.

    Attributes:
        names: of its arrays, in the order in which they were made.
        num_bytes: of all of them together.
    """

    names: tuple[str, ...] = ()
    num_bytes: int = 0


class Placing:
    """The rule by which arrays are given to servers: a base class."""

    def order(self, sizes: Sequence[int]) -> Sequence[int]:
        """The indices of arrays that are known together, in the order in which they are placed.

        Args:
            sizes: bytes of each array, in the order in which they were made.
        """
        return range(len(sizes))

    def next_server(self, counts: Sequence[int], sizes: Sequence[int]) -> int:
        """The server of the next array.

        Args:
            counts: how many arrays each server holds by now.
            sizes: how many bytes.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class RoundRobin(Placing):
    """One server after the other, in the order in which the arrays are made; each shard counts.

    Semantics:
        The rule of tf.distribute's ParameterServerStrategy.
    """

    def next_server(self, counts: Sequence[int], sizes: Sequence[int]) -> int:
        """The server after the one that got the last array."""
        return sum(counts) % len(counts)


@dataclasses.dataclass(frozen=True)
class BySize(Placing):
    """The largest array to the server with the fewest bytes, then the next largest.

    The fullest server gets at most 4/3 of the bytes it would have in the best placement. Arrays
    that become known one by one go to the server that is emptiest by then, without that promise.
    """

    def order(self, sizes: Sequence[int]) -> Sequence[int]:
        """From the largest to the smallest; equal ones as they were made."""
        return sorted(range(len(sizes)), key=lambda i: -sizes[i])

    def next_server(self, counts: Sequence[int], sizes: Sequence[int]) -> int:
        """The emptiest server; of several, the one with the fewest arrays, then the first."""
        return min(range(len(sizes)), key=lambda i: (sizes[i], counts[i]))


@dataclasses.dataclass(frozen=True)
class PlacementReport:
    """What every server holds.

    Attributes:
        servers: one load per server.
        assignment: the server of each array, in the order in which the arrays were made.
    """

    servers: tuple[ServerLoad, ...]
    assignment: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of all servers together."""
        return sum(server.num_bytes for server in self.servers)

    @property
    def imbalance(self) -> float:
        """The bytes of the fullest server over their mean: 1 is even, the number of servers worst.

        Where every server answers alike fast, this is how much longer a pull of everything takes
        than it has to.
        """
        if not self.num_bytes:
            return 1.0
        fullest = max(server.num_bytes for server in self.servers)
        return fullest * len(self.servers) / self.num_bytes

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {
            "servers": [
                {"names": list(server.names), "num_bytes": server.num_bytes}
                for server in self.servers
            ],
            "num_bytes": self.num_bytes,
            "imbalance": self.imbalance,
        }

    def as_text(self, max_names: int = 4) -> str:
        """The report as a table.

        Args:
            max_names: how many arrays to name per server.
        """
        head = ("server", "arrays", "bytes", "share", "holds")
        rows = [head, *(self._row(i, max_names) for i in range(len(self.servers)))]
        server, *numbers, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = []
        for first, *middle, last in rows:
            aligned = [cell.rjust(width) for cell, width in zip(middle, numbers, strict=True)]
            lines.append("  ".join([first.ljust(server), *aligned, last]).rstrip())
        lines.append(f"imbalance: {self.imbalance:.2f} (fullest server / mean)")
        return "\n".join(lines)

    def _row(self, index: int, max_names: int) -> tuple[str, ...]:
        server = self.servers[index]
        shown = ", ".join(server.names[:max_names])
        hidden = len(server.names) - max_names
        return (
            f"ps:{index}",
            str(len(server.names)),
            f"{server.num_bytes:,}",
            f"{server.num_bytes / max(1, self.num_bytes):.1%}",
            f"{shown} and {hidden} more" if hidden > 0 else shown,
        )


def place(
    arrays: Iterable[tuple[str, int]], num_servers: int, placing: Placing | None = None
) -> PlacementReport:
    """Gives named arrays to servers.

    Args:
        arrays: name and bytes of each, in the order in which they were made.
        num_servers: how many servers there are.
        placing: the rule; default `RoundRobin()`.

    Raises:
        InvalidArgument: no server, or a negative size.
    """
    names, sizes = [], []
    for name, num_bytes in arrays:
        names.append(name)
        sizes.append(num_bytes)
    if num_servers < 1 or min(sizes, default=0) < 0:
        raise InvalidArgument(
            "Arrays of zero or more bytes are placed on one or more servers. Received: "
            f"num_servers={num_servers}, and sizes of at least {min(sizes, default=0)} bytes."
        )
    placing = placing or RoundRobin()
    counts, loads = [0] * num_servers, [0] * num_servers
    assignment = [0] * len(names)
    for i in placing.order(sizes):
        server = placing.next_server(counts, loads)
        assignment[i] = server
        counts[server] += 1
        loads[server] += sizes[i]
    held: list[list[str]] = [[] for _ in range(num_servers)]
    for name, server in zip(names, assignment, strict=True):
        held[server].append(name)
    servers = (ServerLoad(tuple(own), load) for own, load in zip(held, loads, strict=True))
    return PlacementReport(tuple(servers), tuple(assignment))
