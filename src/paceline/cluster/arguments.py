"""The arguments of scheduled work, which may hold values that only its worker can give."""

from __future__ import annotations

import abc
from typing import Any

import jax
import numpy as np

from paceline.program import nest
from paceline.program.frozen import frozen


class Deferred(abc.ABC):
    """Stands, anywhere in the arguments of scheduled work, for a value that its worker gets."""

    @abc.abstractmethod
    def on_worker(self, worker: Any) -> Any:
        """Returns the value; called on the worker's thread, before the work itself.

        Raises:
            ClosureInputError: there is none.
        """


class Arguments:
    """The arguments of one call, kept until a worker makes it, perhaps more than once.

    Args:
        args, kwargs: nests with `Deferred` values in them.
        is_kept: nobody writes to the NumPy arrays among them before the call has ended. Else they
            are copied here, as a loader may fill the same buffer for its next batch.

    Attributes:
        is_known: whether there is nothing deferred among them.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_kept: bool) -> None:
        self._call = args, kwargs
        self._leaves: list[Any] | None = None
        self.is_known = True
        if not args and not kwargs:
            return
        leaves, self._tree = nest.flattened((args, kwargs))
        self.is_known = not any(isinstance(leaf, Deferred) for leaf in leaves)
        kinds = Deferred if is_kept else (Deferred, np.ndarray)
        if any(isinstance(leaf, kinds) for leaf in leaves):
            self._leaves = leaves if is_kept else list(map(frozen, leaves))

    def on_worker(self, worker: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns `args, kwargs` for a call on `worker`, whose thread this is."""
        if self._leaves is None:
            return self._call
        leaves = [
            nest.Whole(leaf.on_worker(worker)) if isinstance(leaf, Deferred) else leaf
            for leaf in self._leaves
        ]
        return nest.closed(jax.tree.unflatten(self._tree, leaves))
