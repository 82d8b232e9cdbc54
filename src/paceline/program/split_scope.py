"""The scope that a step of the message path is traced under: which value a read means.

Inside `optimizer.apply` a read means the *current* value, at the store, when the update is carried
out; everywhere else the *snapshot* that the worker pulled. A written variable reads as written.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from paceline.errors import EndOfData
from paceline.program import context, meeting
from paceline.program.keras_state import active_scope
from paceline.program.reread import reread
from paceline.program.scope import TraceScope, combine
from paceline.program.tape import notify_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Kind = Literal["snapshot", "current", "fed", "worker"]


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """What an input of the traced step is filled with.

    Attributes:
        kind: the worker's snapshot of a variable, its current value, a leaf of a fed batch, or the
            worker's index.
        source: the variable, or the `Feed`; None for the worker's index.
        leaf: which leaf of the fed batch.
    """

    kind: Kind
    source: Any = None
    leaf: int = 0


class FedIterator(abc.ABC):
    """An iterator that a worker's step may take batches from while it is traced.

    Passed as an argument of a `paceline.function`, it is known by its place among the iterators
    that are passed: one trace serves every worker's iterator, and those of the next epoch.
    """

    @abc.abstractmethod
    def take(self) -> Any:
        """Returns the next batch.

        Raises:
            StopIteration: there is none.
        """

    def lend(self) -> Any:
        """Returns the next batch, for a step that is done with it before another one is taken.

        Raises:
            StopIteration: there is none.
        """
        return self.take()

    def __iter__(self) -> FedIterator:
        return self

    def __next__(self) -> Any:
        """The next batch; in a step that is traced, a placeholder for the next one of each run."""
        scope = active_split()
        return self.take() if scope is None else scope.feed(self)

    def get_next(self) -> Any:
        """The next batch, as `next`.

        Raises:
            EndOfData: there is none.
        """
        try:
            return next(self)
        except StopIteration:
            raise EndOfData(
                "The dataset has no more batches. Received: get_next() past the last one. Repeat "
                "the dataset, or schedule as many steps as it has batches."
            ) from None


@dataclasses.dataclass(frozen=True, eq=False)
class Feed:
    """One batch that the step takes from an iterator, each time it runs.

    Attributes:
        iterator: where it comes from.
        tree: its structure.
        signature: shape and dtype of its leaves.
    """

    iterator: Any
    tree: Any
    signature: tuple[Any, ...]


class SplitScope(TraceScope):
    """Collects the reads, writes and fed batches of one worker's step.

    Args:
        take: given an iterator, takes its next batch for the step that is traced.

    Attributes:
        feeds: the batches that the step takes.
        updated: `id` of the variables of the optimizers that are applied, such as their slots.
        whole: of those the ones that follow every row of their variable, like a moving average.
    """

    def __init__(self, take: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self._take = take
        self._rereads: dict[int, Any] = {}
        self.feeds: list[Feed] = []
        self.updated: set[int] = set()
        self.whole: set[int] = set()

    @property
    def inputs(self) -> list[Input]:
        """What each of the program's inputs is filled with, in their order."""
        return [source for source, _ in self.reads.values()]

    def storage(self, variable: Any) -> Any:
        """What the variable holds at this point: as written, at the store, or in the snapshot."""
        is_update = context.is_applying()
        if id(variable) in self.writes:
            return self.writes[id(variable)][1] if is_update else self._rereads[id(variable)]
        return self._read(variable, "current" if is_update else "snapshot")

    def _read(self, variable: Any, kind: Kind) -> Any:
        key = (kind, id(variable))
        if key not in self.reads:
            self.prepare(variable)
            source = Input(kind, variable)
            self.add_input(key, source, self.input_shape(variable), variable._dtype)
        return self.reads[key][1]

    def get_current_value(self, variable: Any) -> Any:
        """The value a read gives; a tape follows what was read before the update."""
        value = self.to_value(variable, self.storage(variable))
        if not context.is_applying():
            notify_read(variable, value)
        return value

    def current(self, variable: Any, value: Any) -> Any:
        """The current value for `value` if that is the snapshot's, as Keras's fit passes it on."""
        known = self.reads.get(("snapshot", id(variable)))
        if known is None or known[1] is not value or id(variable) in self.writes:
            return value
        return self._read(variable, "current")

    def note_update(self, variables: Iterable[Any], whole: Iterable[Any] = ()) -> None:
        """Says that an optimizer with these variables is applied in the step; see `whole`."""
        self.updated.update(map(id, variables))
        self.whole.update(map(id, whole))

    def write(self, variable: Any, operation: str, value: Any) -> None:
        """Carries out a write; what is added travels as it is, however it was computed."""
        if operation == "assign":
            new = combine(operation, self.storage(variable), value)
        else:
            with context.applying():
                current = self.storage(variable)
            delta = value if context.is_applying() else meeting.commit(value)
            new = combine(operation, current, delta)
        self.set_storage(variable, new)

    def set_storage(self, variable: Any, value: Any) -> None:
        """Makes `value` what the variable holds from here on."""
        self.check_reaches(variable, value)
        self.writes[id(variable)] = (variable, value)
        self._rereads[id(variable)] = reread(value)

    def worker_index(self) -> Any:
        """The index of the worker that runs the step, a scalar int32."""
        if "worker" not in self.reads:
            self.add_input("worker", Input("worker"), (), "int32")
        return self.reads["worker"][1]

    def feed(self, iterator: Any) -> Any:
        """Takes a batch from `iterator`; every run of the step will take its next one."""
        if self._take is None:
            raise TypeError("a scope that takes no batches was asked for one")
        leaves, tree = jax.tree.flatten(self._take(iterator))
        place = len(self.feeds)
        signature = tuple((x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in leaves)
        feed = Feed(iterator, tree, signature)
        self.feeds.append(feed)
        inputs = [
            self.add_input(("fed", place, i), Input("fed", feed, i), shape, dtype)
            for i, (shape, dtype) in enumerate(signature)
        ]
        return jax.tree.unflatten(tree, inputs)


def active_split() -> SplitScope | None:
    """The scope of the worker's step that is being traced, if one is."""
    scope = active_scope()
    while scope is not None and not isinstance(scope, SplitScope):
        scope = getattr(scope, "original_scope", None)
    return scope


def worker_index() -> Any:
    """The index of the worker that runs the code, traced in a step; None where no worker does."""
    worker = context.worker()
    if worker is None:
        return None
    scope = active_split()
    return np.int64(worker.index) if scope is None else scope.worker_index()


def committed(gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Gradients on their way to their variables; None stays None."""
    return [
        gradient if gradient is None else meeting.commit(gradient, home=id(variable))
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
