"""The steps of workers: each function traced once per form of its arguments, and cut in two."""

from __future__ import annotations

import collections
import threading
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from paceline.program import context
from paceline.program.function import is_array, signature, trace_call
from paceline.program.split import cut
from paceline.program.split_scope import FedIterator
from paceline.program.worker_half import WorkerHalf
from paceline.store.store_half import StoreHalf
from paceline.variables.worker_scope import WorkerScope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.program.function import Function
    from paceline.program.split_scope import Feed
    from paceline.store.rules import UpdateRule


class Step:
    """One form of a function, in two halves.

    Attributes:
        worker_half, store_half: the halves.
        feeds: the batches that it takes, in order.
        fed: for each input that a batch fills, the batch's place and the leaf's in it.
        examples: leading dim of its first batch-like argument; 0 where there is none.
        is_update: whether an optimizer updates variables in it: such steps keep the pace.
        has_writes: whether there is anything to push.
    """

    def __init__(self, function: Any, leaves: list[Any], tree: Any, scope: Any, rule: Any) -> None:
        self._static = [leaf for leaf in leaves if not is_array(leaf)]  # keeps ids in keys alive
        self._program = trace_call(function, leaves, tree, scope)
        halves = cut(self._program, scope.inputs)
        self.worker_half = WorkerHalf(halves)
        self.store_half = StoreHalf(halves, rule)
        self.feeds: list[Feed] = scope.feeds
        self.fed = [
            (self.feeds.index(source.source), source.leaf) for source in self.worker_half.fed
        ]
        shapes = [leaf.shape for leaf in leaves if is_array(leaf)]
        shapes += [shape for feed in self.feeds for shape, _ in feed.signature]
        self.examples = next((shape[0] for shape in shapes if len(shape)), 0)
        self.is_update = bool(self.store_half.updated)
        self.has_writes = bool(halves.writes)
        self._backup = [id(variable) for variable in self.store_half.homes]

    def result(self, arrays: Sequence[Any]) -> Any:
        """The function's result, from its array leaves."""
        return self._program.restore(arrays)

    def backup(self, snapshot: Sequence[Any]) -> list[Any]:
        """The weights behind the gradients, in their order, where the rule needs them."""
        if not self.store_half.needs_backup:
            return []
        read = dict(zip(map(id, self.worker_half.variables), snapshot, strict=True))
        return [read[key] for key in self._backup]


class Steps:
    """All steps of one strategy.

    Args:
        rule: the update rule that is traced into store halves.
    """

    def __init__(self, rule: UpdateRule) -> None:
        self._rule = rule
        self._forms: weakref.WeakKeyDictionary[Function, dict[Any, list[Step]]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.RLock()  # one thread traces, the others then find its step

    def find(
        self, function: Function, leaves: list[Any], tree: Any
    ) -> tuple[Step, list[list[Any]]]:
        """The step for a call, and the batches that this call takes, as leaves.

        Args:
            function: the function.
            leaves, tree: the flattened arguments.

        Raises:
            StopIteration: an iterator among the arguments is exhausted.
            TraceError: the function cannot be traced.
        """
        frame: Any = context.current()  # set: workers run under a strategy
        key = (tree, id(frame.strategy), frame.replica is None, *map(signature, leaves))
        own = {id(leaf.family): leaf for leaf in leaves if isinstance(leaf, FedIterator)}
        forms = self._forms.get(function)
        known = () if forms is None else forms.get(key, ())
        batches = _take(known[-1].feeds, own) if known else collections.deque()
        if (found := _matching(known, batches)) is not None:
            return found, [leaves for leaves, _ in batches]
        with self._lock:
            known = self._forms.setdefault(function, {}).setdefault(key, [])
            if known and not batches:  # another thread has traced it meanwhile
                batches = _take(known[-1].feeds, own)
            if (found := _matching(known, batches)) is not None:
                return found, [leaves for leaves, _ in batches]
            return self._trace(function, leaves, tree, known, batches)

    def _trace(
        self, function: Any, leaves: list[Any], tree: Any, known: list[Step], batches: Any
    ) -> tuple[Step, list[list[Any]]]:
        taken: list[list[Any]] = []

        def take(iterator: FedIterator) -> Any:
            flat, structure = batches.popleft() if batches else _flat(iterator.take())
            taken.append(flat)
            return jax.tree.unflatten(structure, flat)

        frame: Any = context.current()
        scope = WorkerScope(frame.strategy, take)
        step = Step(function.python_function, leaves, tree, scope, self._rule)
        known.append(step)
        return step, taken


def _flat(batch: Any) -> tuple[list[Any], Any]:
    leaves, tree = jax.tree.flatten(batch)
    return [leaf if is_array(leaf) else jnp.asarray(leaf) for leaf in leaves], tree


def _take(feeds: Sequence[Feed], own: dict[int, FedIterator]) -> collections.deque[Any]:
    return collections.deque(_flat(own[id(feed.iterator.family)].take()) for feed in feeds)


def _matching(known: Sequence[Step], batches: Any) -> Step | None:
    """The step that takes batches of these shapes."""
    for step in reversed(known):
        if len(step.feeds) == len(batches) and all(
            feed.tree == tree and feed.signature == shapes_of(leaves)
            for feed, (leaves, tree) in zip(step.feeds, batches, strict=True)
        ):
            return step
    return None


def shapes_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Shape and dtype of each leaf, as JAX will hold it."""
    return tuple((leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)) for leaf in leaves)
