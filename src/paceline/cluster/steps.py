"""The steps of workers: each function traced once per form of its arguments, and cut in two."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import operator
import re
import threading
import weakref
import zlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.cluster.traffic import Traffic
from paceline.program import context
from paceline.program.function import is_array, signature, trace_call
from paceline.program.keras_state import outside_of_scopes
from paceline.program.split import cut
from paceline.program.split_scope import FedIterator
from paceline.program.worker_half import WorkerHalf
from paceline.store.store_half import StoreHalves, union
from paceline.variables.worker_scope import WorkerScope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.program.function import Function
    from paceline.program.split_scope import Feed
    from paceline.store.rules import UpdateRule


_NOTHING = contextlib.nullcontext()


class Step:
    """One form of a function, in two halves.

    Attributes:
        worker_half, store_halves: the halves; the store's in parts, one per server.
        feeds: the batches that it takes, in order.
        fed: for each input that a batch fills, the batch's place and the leaf's in it.
        examples: leading dim of its first batch-like argument; 0 where there is none.
        is_update: whether it trains, with an optimizer or by hand: such steps keep the pace.
        has_writes: whether there is anything to push.
        pulled: the variables that a worker pulls, those of its half first.
        traffic: the bytes that it moves, once they were asked for.
    """

    def __init__(self, function: Any, leaves: list[Any], tree: Any, scope: Any, rule: Any) -> None:
        self._static = [leaf for leaf in leaves if not is_array(leaf)]  # keeps ids in keys alive
        self._program = trace_call(function, leaves, tree, scope)
        halves = cut(self._program, scope.inputs, scope.updated, scope.whole)
        self.store_halves = StoreHalves(
            halves, rule, scope.strategy.server_of, scope.strategy.devices[0]
        )
        self.worker_half = WorkerHalf(halves)
        self.feeds: list[Feed] = scope.feeds
        self.fed = [
            (self.feeds.index(source.source), source.leaf) for source in self.worker_half.fed
        ]
        shapes = [leaf.shape for leaf in leaves if is_array(leaf)]
        shapes += [shape for feed in self.feeds for shape, _ in feed.signature]
        self.examples = next((shape[0] for shape in shapes if len(shape)), 0)
        written = [write.variable for write in halves.writes]
        is_optimized = any(part.updated for part in self.store_halves.parts)
        self.is_update = is_optimized or any(variable.trainable for variable in written)
        self.has_writes = bool(written)
        self.pulled = union([self.worker_half.variables, self.store_halves.homes])
        self.traffic: Traffic | None = None
        self._telltale: int | None = None
        self._given: frozenset[int] | None = None
        self._needs_backup = rule.needs_backup
        self._cut = halves
        self._servers = {
            id(variable): scope.strategy.server_of(variable)
            for variable in (*self.pulled, *written)
        }

    def measure_traffic(self, fed: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Finds out how many bytes it moves; takes what the worker half is called with."""
        residuals = self.worker_half.shapes(fed, arrays)
        self.traffic = Traffic.of(self._cut, residuals, self.pulled, self._servers)

    def given(
        self, residuals: Sequence[Any], fed: Sequence[Any], arrays: Sequence[Any]
    ) -> frozenset[int]:
        """Which of a push's arrays the store may have for good.

        Args:
            residuals: those of some push.
            fed, arrays: what the worker half was called with.
        """
        if self._given is None:
            are_new = self.worker_half.are_new(fed, arrays)
            self._given = self.store_halves.replaceable(residuals, are_new)
        return self._given

    @functools.cached_property
    def fingerprint(self) -> int:
        """A number that nearly always differs for another program."""
        # Addresses, which differ from process to process, do not count.
        texts = (re.sub(r"0x[0-9a-f]+|home=\d+", "", str(eqn)) for eqn in self._program.equations)
        return zlib.crc32("\n".join(texts).encode()) or 1

    def telltale(self, residuals: Sequence[Any]) -> Sequence[Any]:
        """That one of a push's arrays that costs least to look at, if there is one.

        What changes one gradient nearly always changes all.
        """
        leaves = jax.tree.leaves(residuals)
        if self._telltale is None:
            costs = map(_cost, leaves)
            self._telltale = min(enumerate(costs), key=operator.itemgetter(1), default=(0, None))[0]
        return leaves[self._telltale : self._telltale + 1]

    def result(self, arrays: Sequence[Any]) -> Any:
        """The function's result, from its array leaves."""
        return self._program.restore(arrays)

    def backups(self, snapshot: Sequence[Any]) -> list[list[Any]]:
        """For each part the weights behind its gradients, where the rule needs them."""
        if not self._needs_backup:
            return [[] for _ in self.store_halves.parts]
        read = iter(self.weights(snapshot))
        return [[next(read) for _ in part.homes] for part in self.store_halves.parts]

    def weights(self, snapshot: Sequence[Any]) -> list[Any]:
        """What the worker read of the variables that gradients are for."""
        read = dict(zip(map(id, self.pulled), snapshot, strict=True))
        return [read[id(variable)] for variable in self.store_halves.homes]


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
        self,
        function: Function,
        leaves: list[Any],
        tree: Any,
        note: Callable[[bool], None] = lambda is_alone: None,
        guard: Any = _NOTHING,
    ) -> tuple[Step, list[list[Any]]]:
        """The step for a call, and the batches that this call takes, as leaves.

        Args:
            function: the function.
            leaves, tree: the flattened arguments.
            note: called before anything is traced, and again when no other thread traces.
            guard: entered before the lock of traces, by whoever takes another lock under that.

        Raises:
            StopIteration: an iterator among the arguments is exhausted.
            TraceError: the function cannot be traced.
        """
        frame: Any = context.current()  # set: workers run under a strategy
        leaves, own = _placed(leaves)
        key = (tree, id(frame.strategy), frame.replica is None, *map(signature, leaves))
        forms = self._forms.get(function)
        known = () if forms is None else forms.get(key, ())
        batches = _take(known[-1].feeds, own) if known else collections.deque()
        if (found := _matching(known, batches)) is not None:
            return found, [leaves for leaves, _ in batches]
        note(False)
        with guard, self._lock:
            known = self._forms.setdefault(function, {}).setdefault(key, [])
            if known and not batches:  # another thread has traced it meanwhile
                batches = _take(known[-1].feeds, own)
            if (found := _matching(known, batches)) is not None:
                return found, [leaves for leaves, _ in batches]
            note(True)
            taken: list[list[Any]] = []

            def take(iterator: _Placed) -> Any:
                if batches:
                    flat, structure = batches.popleft()
                else:
                    with outside_of_scopes(), jax.ensure_compile_time_eval():
                        flat, structure = _flat(own[iterator.place].take())
                taken.append(flat)
                return jax.tree.unflatten(structure, flat)

            scope = WorkerScope(frame.strategy, take)
            with frame.strategy._creation():
                step = Step(function.python_function, leaves, tree, scope, self._rule)
            known.append(step)
            return step, taken


@dataclasses.dataclass(frozen=True)
class _Placed(FedIterator):
    """Stands for the iterator at one place among those in the arguments: a form keeps no data."""

    place: int

    def take(self) -> Any:
        """Never called: a step that is traced asks its scope."""
        raise TypeError("a place holds no batches")


def _placed(leaves: list[Any]) -> tuple[list[Any], list[FedIterator]]:
    """The leaves with places for iterators, and the iterators."""
    own: dict[int, FedIterator] = {}
    for leaf in leaves:
        if isinstance(leaf, FedIterator):
            own.setdefault(id(leaf), leaf)
    if not own:
        return leaves, []
    places = {key: _Placed(place) for place, key in enumerate(own)}
    return [places.get(id(leaf), leaf) for leaf in leaves], list(own.values())


def _flat(batch: Any) -> tuple[list[Any], Any]:
    leaves, tree = jax.tree.flatten(batch)
    return [leaf if is_array(leaf) else jnp.asarray(leaf) for leaf in leaves], tree


def _take(feeds: Sequence[Feed], own: list[FedIterator]) -> collections.deque[Any]:
    if len(feeds) == 1:  # of several, one may lie where the next one is put
        return collections.deque([_flat(own[feeds[0].iterator.place].lend())])
    # A list: a generator would turn the end of the data into another error.
    return collections.deque([_flat(own[feed.iterator.place].take()) for feed in feeds])


def _matching(known: Sequence[Step], batches: Any) -> Step | None:
    """The step that takes batches of these shapes."""
    for step in reversed(known):
        if len(step.feeds) == len(batches) and all(
            feed.tree == tree and feed.signature == shapes_of(leaves)
            for feed, (leaves, tree) in zip(step.feeds, batches, strict=True)
        ):
            return step
    return None


def _cost(array: Any) -> tuple[bool, bool, int]:
    """What it costs to look at an array; last come seeds and counts, which may hardly change."""
    size, is_number = array.size, isinstance(array.dtype, np.dtype)  # else a typed key
    return not is_number or array.dtype.kind in "biu", size < 2, size


def shapes_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Shape and dtype of each leaf, as JAX will hold it."""
    return tuple((leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)) for leaf in leaves)
