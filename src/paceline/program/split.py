"""The split assembly: a step cut into what runs at the worker and what runs at the store.

The cut goes through every `commit`, and through the way from a variable's own read to its own
write. What a write needs of the current values is *late* and left to the store; everything else is
computed by the worker on its snapshot, and the values on the border, the *residuals*, travel.

Which part of `v.assign(f(v, batch))` is late is decided by cost: elementwise work on the current
value of v is left to the store, so that no concurrent write is lost; matrix products, convolutions
and loops stay at the worker, which computes them from its snapshot. If nothing is left to the
store, the last writer wins, and a warning names the variable. The same holds for what a step
computes from a value after it was written, as the second of two networks that train each other
does. An optimizer's own update is late whatever it costs.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import warnings
from typing import TYPE_CHECKING, Any

import jax
from jax.extend import core as jex

from paceline.program.flat import FlatProgram, Node, Slot, flatten, needed
from paceline.program.row_wise import row_plans
from paceline.program.step import has_any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from paceline.program.row_wise import RowPlan
    from paceline.program.split_scope import Input
    from paceline.program.step import StepProgram

_HEAVY = {
    "dot_general", "ragged_dot_general", "conv_general_dilated", "scan", "while", "sort", "top_k",
    "cholesky", "lu", "householder_product", "svd", "eig", "eigh", "schur", "triangular_solve",
    "tridiagonal_solve", "fft", "pallas_call", "ffi_call", "pure_callback", "io_callback",
    "buffer_callback",
}  # fmt: skip
# What is late may take this many times the bytes it is computed from before it is too large.
_LARGEST, _SMALL = 4, 4096


@dataclasses.dataclass(frozen=True)
class Write:
    """How one variable gets its new value.

    Attributes:
        variable: the variable.
        result: slot or literal of the new value.
        own: slot of the variable's snapshot, to be filled with its current value; or None.
        nodes: late nodes that depend on the own read, in order.
        is_update: whether it is part of an optimizer's update, and so carried out once for pushes
            that are merged.
        homes: `id` of the variables whose gradients it depends on.
    """

    variable: Any
    result: Any
    own: Slot | None
    nodes: tuple[Node, ...]
    is_update: bool
    homes: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Cut:
    """A step in two halves.

    Attributes:
        flat: the whole step.
        inputs: what fills each of its inputs.
        at_worker: nodes that the worker runs.
        residuals: slots that travel from the worker to the store.
        results: slots or literals of the step's results, computed by the worker.
        at_store: late nodes that depend on no own read, in order.
        writes: the written variables.
        currents: slots that are filled with current values, and their variables.
        commits: residuals that are gradients, and the `id` of the variable each belongs to.
        rows: those of the gradients that travel as rows, and what becomes of them.
    """

    flat: FlatProgram
    inputs: tuple[Input, ...]
    at_worker: tuple[Node, ...]
    residuals: tuple[Slot, ...]
    results: tuple[Any, ...]
    at_store: tuple[Node, ...]
    writes: tuple[Write, ...]
    currents: tuple[tuple[Slot, Any], ...]
    commits: dict[Slot, int]
    rows: dict[Slot, RowPlan]


def cut(
    program: StepProgram,
    inputs: Sequence[Input],
    updated: Collection[int] = (),
    whole: Collection[int] = (),
) -> Cut:
    """Cuts a step that was traced under a `SplitScope`.

    Args:
        program: the step.
        inputs: what fills its inputs.
        updated: `id` of the variables that belong to optimizers, such as their slots.
        whole: of those the ones that follow every row of their variable, like a moving average.
    """
    return _Cutter(program, inputs, updated, whole).cut()


class _Cutter:
    def __init__(
        self,
        program: StepProgram,
        inputs: Sequence[Input],
        updated: Collection[int],
        whole: Collection[int],
    ) -> None:
        self._program = program
        self._flat = flatten(program)
        self._inputs = tuple(inputs)
        self._updated = updated
        self._by_rows = set(updated) - set(whole)
        self._nodes = self._flat.nodes
        self._consts = {slot for slot, _ in self._flat.consts}
        pairs = list(zip(self._flat.reads, self._inputs, strict=True))
        self._currents = {slot: i.source for slot, i in pairs if i.kind == "current"}
        self._snapshots = {id(i.source): slot for slot, i in pairs if i.kind == "snapshot"}
        self._committed = {node.outputs[0] for node in self._nodes if node.is_commit}
        self._homes = {
            node.outputs[0]: node.equation.params["home"]
            for node in self._nodes
            if node.is_commit and node.equation.params["home"] is not None
        }
        self._makers: dict[Slot, int] = {}
        self._users: collections.defaultdict[Slot, list[int]] = collections.defaultdict(list)
        for place, node in enumerate(self._nodes):
            self._makers.update(dict.fromkeys(node.outputs, place))
            for slot in node.needs:
                self._users[slot].append(place)
        self._constant = self._constant_slots()
        self._late = self._late_slots()

    def cut(self) -> Cut:
        num_writes = len(self._program.writes)
        results = self._flat.outputs[num_writes:]
        plans = [
            self._plan(variable, result)
            for variable, result in zip(self._program.writes, self._flat.outputs, strict=False)
        ]
        residuals = sorted({slot for _, _, border in plans for slot in border})
        common = {id(node) for _, nodes, _ in plans for node in nodes}
        commits = {slot: self._homes[slot] for slot in residuals if slot in self._homes}
        at_store = tuple(node for node in self._nodes if id(node) in common)
        writes = tuple(write for write, _, _ in plans)
        rows = row_plans(self._flat, commits, at_store, writes, self._currents, self._by_rows)
        wanted = [slot for slot in residuals if slot not in rows] + _slots(results)
        wanted += [slot for plan in rows.values() for slot in plan.gradient.needs]
        effects = [node for node in self._nodes if node.equation.effects]  # such as debug.print
        wanted += [slot for node in effects for slot in node.needs]
        at_worker = {id(node) for node in [*needed(self._nodes, wanted), *effects]}
        return Cut(
            flat=self._flat,
            inputs=self._inputs,
            at_worker=tuple(node for node in self._nodes if id(node) in at_worker),
            residuals=tuple(residuals),
            results=tuple(results),
            at_store=at_store,
            writes=writes,
            currents=tuple(self._currents.items()),
            commits=commits,
            rows=rows,
        )

    def _plan(self, variable: Any, result: Any) -> tuple[Write, list[Node], set[Slot]]:
        """How `variable` is written, the late nodes it shares with others, and its border."""
        own = self._snapshots.get(id(variable))
        from_own: set[Slot] = set() if own is None else self._lightly_from(own, math.inf)
        kept, border = self._late_part(result, from_own)
        homes = frozenset(self._homes[slot] for slot in border if slot in self._homes)
        is_update = bool(homes) or id(variable) in self._updated
        if own is not None and not is_update and self._is_large(border, variable):
            # What blows the value up to the size of a batch stays at the worker, too.
            from_own = self._lightly_from(own, _LARGEST * _bytes_of(variable))
            kept, border = self._late_part(result, from_own)
            if self._is_large(border, variable):
                kept, border = [], {result}
        if self._is_lost(variable, result, kept):
            _warn_of_last_writer(variable)
        own_nodes = [node for node in kept if not from_own.isdisjoint(node.outputs)]
        shared = [node for node in kept if from_own.isdisjoint(node.outputs)]
        is_late = not isinstance(result, jex.Literal) and result not in border
        used = own if own in from_own and is_late else None
        homes = frozenset(self._homes[slot] for slot in border if slot in self._homes)
        write = Write(variable, result, used, tuple(own_nodes), is_update, homes)
        return write, shared, border

    def _late_part(self, result: Any, from_own: set[Slot]) -> tuple[list[Node], set[Slot]]:
        """The late nodes behind `result`, and the slots that they take from the worker."""
        if isinstance(result, jex.Literal):
            return [], set()
        places: set[int] = set()
        border: set[Slot] = set()
        waiting, seen = [result], {result}
        inputs = self._currents.keys() | self._consts | (from_own & set(self._flat.reads))
        while waiting:
            slot = waiting.pop()
            if slot in inputs:
                continue
            is_known = slot in self._late or slot in from_own or slot in self._constant
            if slot in self._committed or not is_known:
                border.add(slot)
                continue
            place = self._makers[slot]
            places.add(place)
            needs = set(self._nodes[place].needs) - seen
            seen |= needs
            waiting += needs
        return [self._nodes[place] for place in sorted(places)], border

    def _constant_slots(self) -> set[Slot]:
        """What depends on no input, and need not travel."""
        known = set(self._consts)
        for node in self._nodes:
            if node.is_commit or not known.issuperset(node.needs):
                continue
            if not node.equation.effects and not has_any(node.equation, _HEAVY):
                known.update(node.outputs)
        return known

    def _late_slots(self) -> set[Slot]:
        """What depends on current values and on what passed a commit.

        Of what is computed from a value after it was written, only what is light.
        """
        late = {*self._currents, *self._committed}
        reread: set[Slot] = set()
        for node in self._nodes:
            if node.is_commit or late.isdisjoint(node.needs):
                continue
            again = reread.intersection(node.needs)
            limit = _LARGEST * sum(_num_bytes(self._flat.avals[slot]) for slot in again)
            if again and self._is_heavy(node, limit):
                continue
            late.update(node.outputs)
            if again or node.is_reread:
                reread.update(node.outputs)
        return late

    def _lightly_from(self, own: Slot, limit: float) -> set[Slot]:
        """What depends on `own` by light operations, not looking past a commit."""
        return self._reached_from(
            [own],
            lambda node: self._is_heavy(node, limit) and self._late.isdisjoint(node.outputs),
        )

    def _reached_from(self, sources: Iterable[Slot], is_end: Callable[[Node], bool]) -> set[Slot]:
        """The slots that depend on `sources`, not looking past commits and where `is_end`."""
        reached, waiting = set(sources), list(sources)
        while waiting:
            for place in self._users[waiting.pop()]:
                node = self._nodes[place]
                if node.is_commit or is_end(node):
                    continue
                new = set(node.outputs) - reached
                reached |= new
                waiting += new
        return reached

    def _is_heavy(self, node: Node, limit: float) -> bool:
        """Whether a node is too heavy for the store; results above `limit` bytes are."""
        if has_any(node.equation, _HEAVY):
            return True
        size = sum(_num_bytes(self._flat.avals[slot]) for slot in node.outputs)
        return size > limit

    def _is_large(self, border: set[Slot], variable: Any) -> bool:
        size = sum(_num_bytes(self._flat.avals[slot]) for slot in border)
        return size > max(_LARGEST * _bytes_of(variable), _SMALL)

    def _is_lost(self, variable: Any, result: Any, kept: Sequence[Node]) -> bool:
        """Whether a variable's new value depends on its old one, but not at the store."""
        own = {slot for slot, source in self._currents.items() if source is variable}
        own |= {self._snapshots.get(id(variable), -1)}
        if isinstance(result, jex.Literal) or result in own:
            return False
        if any(not own.isdisjoint(node.needs) for node in kept):
            return False
        return result in self._reached_from(own, lambda node: False)


def _slots(atoms: Iterable[Any]) -> list[Slot]:
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def _num_bytes(aval: Any) -> int:
    if not hasattr(aval.dtype, "itemsize"):
        return 0
    return math.prod(aval.shape) * aval.dtype.itemsize


def _bytes_of(variable: Any) -> int:
    dtype = jax.dtypes.canonicalize_dtype(variable._dtype)
    return math.prod(variable.shape) * dtype.itemsize


def _warn_of_last_writer(variable: Any) -> None:
    warnings.warn(
        f"The new value of {variable.path!r} is computed from its old one by operations too heavy "
        "for the store, so each worker computes it from the value it has pulled, and of workers "
        "that overlap the last one wins. Use assign_add with the change, or compute the heavy part "
        "from other values.",
        stacklevel=2,
    )
