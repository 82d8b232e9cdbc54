"""Which gradients may travel as rows: those that the store's updates need no other rows for.

An update is *row-wise* if each row of what it writes follows from the same row of what it reads.
That is shown node by node: elementwise operations on scalars and on arrays of the table's shape.
Such an update can be carried out on the rows of the gradient alone. It then leaves the other rows
of the table and of its slots as they are, also where a zero gradient would move them, as Adam's
moments and weight decay do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.extend import core as jex

from paceline.program.flat import needed, value_of
from paceline.program.sparse import scattered, taken
from paceline.program.step import bind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from paceline.program.flat import FlatProgram, Node, Slot
    from paceline.program.sparse import Rows, Scattered
    from paceline.program.split import Write

_ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "cbrt", "ceil", "clamp", "convert_element_type", "copy", "cos", "cosh", "div", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite",
    "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter",
    "not", "or", "pow", "reduce_precision", "rem", "reread", "round", "rsqrt", "select_n", "sign",
    "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """How the updates that depend on one gradient are carried out on its rows.

    Attributes:
        gradient: how its rows are computed by the worker.
        slot: the gradient.
        variables: `id` of the variables that are updated.
        results: slots of their new values.
        nodes: what is computed on rows, in order.
        gathered: slots of whole arrays, whose rows the nodes take.
        dependent: slots that cannot be computed on whole arrays, as the gradient is not there.
    """

    gradient: Scattered
    slot: Slot
    variables: tuple[int, ...]
    results: tuple[Slot, ...]
    nodes: tuple[Node, ...]
    gathered: tuple[Slot, ...]
    dependent: frozenset[Slot]

    def evaluate(self, env: dict[Slot, Any]) -> None:
        """Adds the rows of the results to `env`, which holds everything else that is needed."""
        rows: Rows = env[self.slot]
        inside = {slot: taken(env[slot], rows.indices) for slot in self.gathered}
        inside[self.slot] = rows.values
        for node in self.nodes:
            operands = [
                inside[atom] if _is_in(atom, inside) else value_of(env, atom)
                for atom in node.inputs
            ]
            if _is_fill(node):
                aval = node.equation.outvars[0].aval
                value = jnp.asarray(operands[0], aval.dtype)
                results = [jnp.broadcast_to(value, rows.values.shape)]
            else:
                results = bind(node.equation, operands, node.equation.params)
            inside.update(zip(node.outputs, results, strict=True))
        env.update((slot, inside[slot]) for slot in self.results)


def row_plans(
    flat: FlatProgram,
    commits: Mapping[Slot, int],
    late: Sequence[Node],
    writes: Sequence[Write],
    currents: Mapping[Slot, Any],
    slots: Collection[int],
) -> dict[Slot, RowPlan]:
    """The gradients that can travel as rows.

    Args:
        flat: the step.
        commits: gradients that travel, and the `id` of the variable each belongs to.
        late: what the store computes, in order; not what follows a write's own read.
        writes: what the store writes.
        currents: slots of current values, and their variables.
        slots: `id` of the optimizers' variables that may be updated by rows.
    """
    if not any(node.equation.primitive.name == "scatter-add" for node in flat.nodes):
        return {}
    makers = {slot: node for node in flat.nodes for slot in node.outputs}
    plans = {}
    for commit, home in commits.items():
        gradient = scattered(makers, makers[commit].inputs[0])
        if gradient is not None:
            proof = _Proof(flat, gradient, commit, home)
            plans[commit] = proof.plan(late, writes, currents, {home, *slots})
    return {slot: plan for slot, plan in plans.items() if plan is not None}


class _Proof:
    def __init__(self, flat: FlatProgram, gradient: Scattered, commit: Slot, home: int) -> None:
        self._flat, self._gradient = flat, gradient
        self._commit, self._home = commit, home
        self._shape = gradient.shape

    def plan(
        self,
        late: Sequence[Node],
        writes: Sequence[Write],
        currents: Mapping[Slot, Any],
        allowed: Collection[int],
    ) -> RowPlan | None:
        dependent = self._dependent(late)
        if dependent is None:
            return None
        written = [w for w in writes if _is_in(w.result, dependent)]
        own = [node for write in writes for node in write.nodes]
        if any(not dependent.isdisjoint(node.needs) for node in own) or not written:
            return None
        if not all(self._is_allowed(write, allowed) for write in written):
            return None
        results = tuple(write.result for write in written)
        if not self._is_alone(needed(late, results), currents):
            return None
        nodes, gathered = self._on_rows(late, dependent)
        updated = tuple(id(write.variable) for write in written)
        read = {id(currents[slot]) for slot in gathered if slot in currents}
        # What is written regardless of what it was has no rows to keep.
        if self._home not in updated or not read.issuperset(updated):
            return None
        return RowPlan(
            gradient=self._gradient,
            slot=self._commit,
            variables=updated,
            results=results,
            nodes=nodes,
            gathered=gathered,
            dependent=frozenset(dependent),
        )

    def _dependent(self, late: Sequence[Node]) -> set[Slot] | None:
        """The slots that depend on the gradient, or None if one does by more than its own row."""
        dependent = {self._commit}
        handed_back: set[Slot] = set()
        for node in late:
            if dependent.isdisjoint(node.needs):
                continue
            # What a step goes on to compute from an updated value is meant for all of its rows.
            if not self._is_row_wise(node) or not handed_back.isdisjoint(node.needs):
                return None
            dependent.update(node.outputs)
            if node.is_reread:
                handed_back.update(node.outputs)
        return dependent

    def _is_allowed(self, write: Write, allowed: Collection[int]) -> bool:
        variable = write.variable
        return (
            write.homes == {self._home}
            and id(variable) in allowed
            and tuple(variable.shape) == self._shape
            and write.result != self._commit
        )

    def _is_alone(self, nodes: Sequence[Node], currents: Mapping[Slot, Any]) -> bool:
        """Whether no array but the gradient comes from the worker: it would be for all rows."""
        made = {slot for node in nodes for slot in node.outputs}
        made.update(currents, [slot for slot, _ in self._flat.consts])
        others = {slot for node in nodes for slot in node.needs} - made - {self._commit}
        return not any(self._flat.avals[slot].shape for slot in others)

    def _on_rows(
        self, late: Sequence[Node], dependent: set[Slot]
    ) -> tuple[tuple[Node, ...], tuple[Slot, ...]]:
        """What has to be computed on rows, and from which whole arrays."""
        wanted: set[Slot] = set()
        nodes = []
        for node in reversed(late):
            if dependent.isdisjoint(node.outputs):
                is_wanted = not wanted.isdisjoint(node.outputs)
                if not is_wanted or not (self._is_row_wise(node) or _is_fill(node)):
                    continue
            nodes.append(node)
            wanted.difference_update(node.outputs)
            wanted.update(
                slot
                for slot in node.needs
                if self._flat.avals[slot].shape == self._shape and slot not in dependent
            )
        return tuple(reversed(nodes)), tuple(sorted(wanted))

    def _is_row_wise(self, node: Node) -> bool:
        shapes = {var.aval.shape for var in node.equation.invars}
        return (
            node.equation.primitive.name in _ELEMENTWISE
            and self._shape in shapes
            and shapes <= {(), self._shape}
            and all(var.aval.shape == self._shape for var in node.equation.outvars)
        )


def _is_fill(node: Node) -> bool:
    """Whether a node fills an array with one number."""
    name = node.equation.primitive.name
    return name == "broadcast_in_dim" and not node.equation.invars[0].aval.shape


def _is_in(atom: Any, slots: Iterable[Slot]) -> bool:
    return not isinstance(atom, jex.Literal) and atom in slots
