"""How many bytes a step pulls from each server, and pushes to it."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.program.split import Cut


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes of one step.

    A table whose gradient is rows is only looked up in: of it as many rows are pulled as pushed.

    Attributes:
        pulled, pushed: bytes by server, up to the last one that has any.
    """

    pulled: tuple[int, ...]
    pushed: tuple[int, ...]

    @classmethod
    def of(
        cls, cut: Cut, residuals: Sequence[Any], pulled: Sequence[Any], servers: Sequence[int]
    ) -> Traffic:
        """Works out the bytes, without running the step.

        Args:
            cut: the cut step.
            residuals: shapes and dtypes of what the worker half yields.
            pulled: the variables that a worker pulls.
            servers: the server of each of these.
        """
        places = {id(variable): place for place, variable in enumerate(pulled)}
        pushed: dict[int, int] = {}
        rows: dict[int, int] = {}
        for slot, shapes in zip(cut.residuals, residuals, strict=True):
            home = places.get(cut.commits.get(slot, 0))
            server = 0 if home is None else servers[home]
            size = sum(math.prod(s.shape) * s.dtype.itemsize for s in jax.tree.leaves(shapes))
            pushed[server] = pushed.get(server, 0) + size
            if slot in cut.rows and home is not None:
                rows[home] = size
        read: dict[int, int] = {}
        for place, (variable, server) in enumerate(zip(pulled, servers, strict=True)):
            itemsize = jax.dtypes.canonicalize_dtype(variable._dtype).itemsize
            size = rows.get(place, math.prod(variable.shape) * itemsize)
            read[server] = read.get(server, 0) + size
        return cls(_by_server(read), _by_server(pushed))


def _by_server(sizes: dict[int, int]) -> tuple[int, ...]:
    return tuple(sizes.get(server, 0) for server in range(max(sizes, default=-1) + 1))
