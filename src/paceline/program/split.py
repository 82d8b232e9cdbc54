"""The split assembly: a step cut into what runs at the worker and what runs at the store.

The cut goes through every `commit`, and through the way from a variable's own read to its own
write. What a write needs of the current values is *late* and left to the store; everything else is
computed by the worker on its snapshot, and the values on the border, the *residuals*, travel.

Which part of `v.assign(f(v, batch))` is late is decided by cost: elementwise work on the current
value of v is left to the store, so that no concurrent write is lost; matrix products, convolutions
and loops stay at the worker, which computes them from its snapshot. If nothing is left to the
store, the last writer wins, and a warning names the variable.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import TYPE_CHECKING, Any

import jax
from jax.extend import core as jex

from paceline.program.flat import FlatProgram, Node, Slot, flatten, needed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.program.split_scope import Input
    from paceline.program.step import StepProgram

_HEAVY = {
    "dot_general", "conv_general_dilated", "scan", "while", "sort", "cholesky", "lu",
    "householder_product", "svd", "eigh", "triangular_solve", "fft",
}  # fmt: skip
# A write may ship this many times the variable's own bytes before it is computed at the worker.
_LARGEST_RESIDUALS, _SMALL = 4, 4096


@dataclasses.dataclass(frozen=True)
class Write:
    """How one variable gets its new value.

    Attributes:
        variable: the variable.
        result: slot or literal of the new value.
        own: slot of the variable's snapshot, to be filled with its current value; or None.
        nodes: late nodes that depend on the own read, in order.
        is_update: whether the write depends on a commit, as an optimizer's do.
    """

    variable: Any
    result: Any
    own: Slot | None
    nodes: tuple[Node, ...]
    is_update: bool


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


def cut(program: StepProgram, inputs: Sequence[Input]) -> Cut:
    """Cuts a step that was traced under a `SplitScope` with these inputs."""
    return _Cutter(program, inputs).cut()


class _Cutter:
    def __init__(self, program: StepProgram, inputs: Sequence[Input]) -> None:
        self._program = program
        self._flat = flatten(program)
        self._inputs = tuple(inputs)
        self._nodes = self._flat.nodes
        self._consts = {slot for slot, _ in self._flat.consts}
        pairs = list(zip(self._flat.reads, self._inputs, strict=True))
        self._currents = {slot: i.source for slot, i in pairs if i.kind == "current"}
        self._snapshots = {id(i.source): slot for slot, i in pairs if i.kind == "snapshot"}
        self._committed = {node.outputs[0] for node in self._nodes if node.is_commit}
        self._late = self._reached_from({*self._currents, *self._committed}, is_weighed=False)

    def cut(self) -> Cut:
        num_writes = len(self._program.writes)
        results = self._flat.outputs[num_writes:]
        plans = [
            self._plan(variable, result)
            for variable, result in zip(self._program.writes, self._flat.outputs, strict=False)
        ]
        residuals = sorted({slot for _, _, border in plans for slot in border})
        common = {id(node) for _, nodes, _ in plans for node in nodes}
        wanted = [*residuals, *_slots(results)]
        effects = [node for node in self._nodes if node.equation.effects]  # such as debug.print
        wanted += [slot for node in effects for slot in node.needs]
        at_worker = {id(node) for node in [*needed(self._nodes, wanted), *effects]}
        homes = {
            node.outputs[0]: node.equation.params["home"]
            for node in self._nodes
            if node.is_commit and node.equation.params["home"] is not None
        }
        return Cut(
            flat=self._flat,
            inputs=self._inputs,
            at_worker=tuple(node for node in self._nodes if id(node) in at_worker),
            residuals=tuple(residuals),
            results=tuple(results),
            at_store=tuple(node for node in self._nodes if id(node) in common),
            writes=tuple(write for write, _, _ in plans),
            currents=tuple(self._currents.items()),
            commits={slot: homes[slot] for slot in residuals if slot in homes},
        )

    def _plan(self, variable: Any, result: Any) -> tuple[Write, list[Node], set[Slot]]:
        """How `variable` is written, the late nodes it shares with others, and its border."""
        own = self._snapshots.get(id(variable))
        from_own: set[Slot] = set()
        if own is not None:
            from_own = self._reached_from({own}, is_weighed=True)
        kept, border = self._late_part(result, from_own)
        is_update = not border.isdisjoint(self._committed)
        if own is not None and not is_update and not isinstance(result, jex.Literal):
            uses_own = any(own in node.needs for node in kept) or result == own
            if not uses_own and result in self._reached_from({own}, is_weighed=False):
                _warn_of_last_writer(variable)
            elif uses_own and self._is_large(border, variable):
                kept, border = [], {result}
                _warn_of_last_writer(variable)
        own_nodes = [node for node in kept if not from_own.isdisjoint(node.outputs)]
        shared = [node for node in kept if from_own.isdisjoint(node.outputs)]
        used = own if own in from_own and border.isdisjoint({result}) else None
        write = Write(variable, result, used, tuple(own_nodes), is_update)
        return write, shared, border

    def _late_part(self, result: Any, from_own: set[Slot]) -> tuple[list[Node], set[Slot]]:
        """The late nodes behind `result`, and the slots that they take from the worker."""
        if isinstance(result, jex.Literal):
            return [], set()
        late = self._late | from_own
        if result not in late:
            return [], {result} - self._consts
        candidates = [
            node for node in self._nodes if not node.is_commit and not late.isdisjoint(node.outputs)
        ]
        kept = needed(candidates, [result])
        made = {slot for node in kept for slot in node.outputs}
        taken = {slot for node in kept for slot in node.needs} | {result}
        given = made | self._currents.keys() | self._consts | (from_own & set(self._flat.reads))
        return kept, taken - given

    def _reached_from(self, sources: Iterable[Slot], *, is_weighed: bool) -> set[Slot]:
        """The slots that depend on `sources`, not looking past a commit.

        Args:
            sources: slots.
            is_weighed: heavy nodes are computed at the worker and end the way.
        """
        reached = set(sources)
        for node in self._nodes:
            if node.is_commit or reached.isdisjoint(node.needs):
                continue
            if is_weighed and _is_heavy(node) and self._late.isdisjoint(node.outputs):
                continue
            reached.update(node.outputs)
        return reached

    def _is_large(self, border: set[Slot], variable: Any) -> bool:
        size = sum(_num_bytes(self._flat.avals[slot]) for slot in border)
        own = math.prod(variable.shape) * jax.dtypes.canonicalize_dtype(variable._dtype).itemsize
        return size > max(_LARGEST_RESIDUALS * own, _SMALL)


def _is_heavy(node: Node) -> bool:
    return node.equation.primitive.name in _HEAVY


def _slots(atoms: Iterable[Any]) -> list[Slot]:
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def _num_bytes(aval: Any) -> int:
    if not hasattr(aval.dtype, "itemsize"):
        return 0
    return math.prod(aval.shape) * aval.dtype.itemsize


def _warn_of_last_writer(variable: Any) -> None:
    warnings.warn(
        f"The new value of {variable.path!r} is computed from its old one by operations too heavy "
        "for the store, so each worker computes it from the value it has pulled, and of workers "
        "that overlap the last one wins. Use assign_add with the change, or compute the heavy part "
        "from other values.",
        stacklevel=2,
    )
