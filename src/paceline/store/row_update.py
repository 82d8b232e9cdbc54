"""Updates by gradients that came as rows: rules and optimizers see those rows, and nothing else.

Rows are taken from the table and its slots, the same operations run on them that would run on the
whole arrays, and the rows are put back. What a rule remembers of a table is treated alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from paceline.program.flat import evaluate_nodes
from paceline.program.sparse import is_rows, replaced, taken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.program.flat import Node, Slot
    from paceline.program.row_wise import RowPlan
    from paceline.store.rules import UpdateRule


def evaluate(nodes: Sequence[Node], plans: Mapping[Slot, RowPlan], env: dict[Slot, Any]) -> None:
    """Runs the late nodes, on rows where a gradient came as such; see `flat.evaluate_nodes`.

    Args:
        nodes: in order.
        plans: for the gradients that may come as rows.
        env: values by slot. The results are added: arrays, or the rows of new values.
    """
    here = [plan for slot, plan in plans.items() if is_rows(env.get(slot))]
    by_rows = {slot for plan in here for slot in plan.dependent}
    evaluate_nodes([node for node in nodes if by_rows.isdisjoint(node.outputs)], env)
    for plan in here:
        plan.evaluate(env)


def touched(plans: Mapping[Slot, RowPlan], env: Mapping[Slot, Any]) -> dict[int, Any]:
    """Which rows are updated of each variable that is updated by rows, by the variable's `id`."""
    return {
        variable: env[slot].indices
        for slot, plan in plans.items()
        if is_rows(env.get(slot))
        for variable in plan.variables
    }


# Rules -------------------------------------------------------------------------------------------


def corrected(
    rule: UpdateRule,
    grads: Sequence[Any],
    weights: Sequence[Any],
    backup: Sequence[Any],
    staleness: Any,
    shared: Any,
    own: Any,
) -> tuple[list[Any], Any, Any]:
    """What `UpdateRule.gradients` makes of gradients, some of which may have come as rows."""
    indices = [grad.indices if is_rows(grad) else None for grad in grads]
    if not any(map(is_rows, grads)):
        return rule.gradients(grads, weights, backup, staleness, shared, own)
    ours, theirs = _owners(rule, weights, indices)
    new, shared_rows, own_rows = rule.gradients(
        [grad.values if is_rows(grad) else grad for grad in grads],
        rows_of(weights, indices),
        rows_of(backup, indices) if rule.needs_backup else backup,
        staleness,
        _narrowed(shared, ours),
        _narrowed(own, theirs),
    )
    return (
        [old.of(value) if is_rows(old) else value for old, value in zip(grads, new, strict=True)],
        _widened(shared, ours, shared_rows),
        _widened(own, theirs, own_rows),
    )


def finished(
    rule: UpdateRule,
    shared: Any,
    steps: Sequence[Any],
    weights: Sequence[Any],
    indices: Sequence[Any],
) -> Any:
    """What `UpdateRule.finish` makes of steps, some of which may be those of rows.

    Args:
        rule: the rule.
        shared: its state, for whole arrays.
        steps: one per gradient.
        weights: whole arrays, one per gradient.
        indices: the rows of each step; None: it is whole.
    """
    if all(index is None for index in indices):
        return rule.finish(shared, steps)
    ours, _ = _owners(rule, weights, indices)
    return _widened(shared, ours, rule.finish(_narrowed(shared, ours), steps))


def rows_of(arrays: Sequence[Any], indices: Sequence[Any]) -> list[Any]:
    """The rows of each array; None for indices stands for all of them."""
    return [a if i is None else taken(a, i) for a, i in zip(arrays, indices, strict=True)]


def _put_back(array: Any, indices: Any, new: Any) -> Any:
    """`array` with new rows; None for indices stands for all of them."""
    return new if indices is None else replaced(array, indices, new)


def _owners(
    rule: UpdateRule, weights: Sequence[Any], indices: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The indices that go with each leaf of a rule's states, shared and own.

    Which leaf belongs to which weight is seen from states for weights of other sizes.
    """
    beyond = 1 + max((w.shape[0] for w in weights if w.shape), default=0)
    sizes = [
        w.shape if i is None else (beyond + k, *w.shape[1:])
        for k, (w, i) in enumerate(zip(weights, indices, strict=True))
    ]
    pairs = list(zip(weights, sizes, strict=True))
    marked = [jax.ShapeDtypeStruct(size, w.dtype) for w, size in pairs]
    real = jax.eval_shape(rule.init, [jax.ShapeDtypeStruct(w.shape, w.dtype) for w in weights])
    owners = []
    for state, forms in zip(real, jax.eval_shape(rule.init, marked), strict=True):
        leaves = zip(jax.tree.leaves(state), jax.tree.leaves(forms), strict=True)
        owners.append(
            [
                None if leaf.shape == form.shape else indices[form.shape[0] - beyond]
                for leaf, form in leaves
            ]
        )
    return owners[0], owners[1]


def _narrowed(state: Any, owners: Sequence[Any]) -> Any:
    leaves, tree = jax.tree.flatten(state)
    return tree.unflatten(rows_of(leaves, owners))


def _widened(state: Any, owners: Sequence[Any], new: Any) -> Any:
    leaves, tree = jax.tree.flatten(state)
    triples = zip(leaves, owners, jax.tree.leaves(new), strict=True)
    return tree.unflatten([_put_back(*triple) for triple in triples])
