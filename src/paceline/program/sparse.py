"""Gradients that are zero but for some rows: recognised in a step, and kept as those rows.

What flows back to a table through a lookup is a scatter-add of rows into zeros. Where the commit of
a gradient is made like that, the rows can travel instead of an array of the table's size.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from paceline.program.flat import value_of
from paceline.program.step import bind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.program.flat import Node, Slot

_MODES = {
    jax.lax.GatherScatterMode.FILL_OR_DROP,
    jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    jax.lax.GatherScatterMode.CLIP,
}
# With one array and otherwise scalars these map zero to zero, so that they act on the rows alone.
_SCALINGS = {"mul", "neg", "convert_element_type", "copy", "reduce_precision", "reshape"}


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["indices", "values"],
    meta_fields=["num_rows"],
)
@dataclasses.dataclass(frozen=True)
class Rows:
    """An array that is zero but for some rows.

    Attributes:
        indices: integers `[row]`, ascending and distinct; those past the last row are padding.
        values: `[row, ...]`.
        num_rows: of the whole array.
    """

    indices: Any
    values: Any
    num_rows: int

    @property
    def dtype(self) -> Any:
        """The dtype of the rows."""
        return self.values.dtype

    def dense(self) -> Any:
        """The whole array."""
        zeros = jnp.zeros((self.num_rows, *self.values.shape[1:]), self.values.dtype)
        return replaced(zeros, self.indices, self.values)

    def of(self, values: Any) -> Rows:
        """Other values for the same rows."""
        return Rows(self.indices, values, self.num_rows)


def merged_rows(indices: Any, values: Any, num_rows: int) -> Rows:
    """The sum of rows for each index.

    A row's values are added in their order, as a scatter-add into zeros does. There are as many
    rows as indices, or as the whole array has if that is less; the rest is padding.

    Args:
        indices: integers `[index]`, in any order; those out of range are left out.
        values: `[index, ...]`.
        num_rows: of the whole array.
    """
    is_inside = (indices >= 0) & (indices < num_rows)
    if indices.dtype.itemsize < jnp.int32.dtype.itemsize:  # may not hold the numbers of padding
        indices = indices.astype(jnp.int32)
    indices = jnp.where(is_inside, indices, num_rows)
    size = min(indices.shape[0], num_rows)
    found, places = jnp.unique(indices, return_inverse=True, size=size, fill_value=num_rows)
    sums = jnp.zeros((size, *values.shape[1:]), values.dtype).at[places].add(values, mode="drop")
    padding = num_rows + jnp.arange(size, dtype=found.dtype)
    return Rows(jnp.where(found < num_rows, found, padding), sums, num_rows)


def taken(array: Any, indices: Any) -> Any:
    """The rows of `array` that the indices of a `Rows` name; for padding some row."""
    return array.at[indices].get(mode="clip", indices_are_sorted=True)


def replaced(array: Any, indices: Any, rows: Any) -> Any:
    """`array` with the rows that the indices of a `Rows` name replaced."""
    at = array.at[indices]
    return at.set(rows, mode="drop", indices_are_sorted=True, unique_indices=True)


@dataclasses.dataclass(frozen=True)
class _Term:
    """One scatter-add, and the scalings between it and the gradient, the first one first."""

    scatter: Node
    scalings: tuple[Node, ...] = ()


@dataclasses.dataclass(frozen=True)
class Scattered:
    """How a gradient is made of rows.

    Attributes:
        terms: scatters into zeros, whose sum it is.
        shape: of the whole gradient.
    """

    terms: tuple[_Term, ...]
    shape: tuple[int, ...]

    @property
    def needs(self) -> set[Slot]:
        """The slots that the rows are computed from."""
        atoms = [atom for term in self.terms for atom in term.scatter.inputs[1:]]
        for term in self.terms:
            for node in term.scalings:
                pairs = zip(node.equation.invars, node.inputs, strict=True)
                atoms += [atom for var, atom in pairs if not var.aval.shape]
        return {atom for atom in atoms if not isinstance(atom, jex.Literal)}

    def rows(self, env: dict[Slot, Any]) -> Rows:
        """The gradient, from the values of `needs`."""
        parts = [self._part(term, env) for term in self.terms]
        if len(parts) == 1:
            return parts[0]
        indices = jnp.concatenate([part.indices for part in parts])
        values = jnp.concatenate([part.values for part in parts])
        return merged_rows(indices, values, self.shape[0])

    def _part(self, term: _Term, env: dict[Slot, Any]) -> Rows:
        _, indices, updates = term.scatter.inputs
        indices = jnp.asarray(value_of(env, indices)).reshape(-1)
        if term.scatter.equation.params["mode"] is jax.lax.GatherScatterMode.CLIP:
            indices = jnp.clip(indices, 0, self.shape[0] - 1)
        values = jnp.asarray(value_of(env, updates)).reshape(-1, *self.shape[1:])
        rows = merged_rows(indices, values, self.shape[0])
        values = rows.values
        for node in term.scalings:
            operands = [
                values if var.aval.shape else value_of(env, atom)
                for var, atom in zip(node.equation.invars, node.inputs, strict=True)
            ]
            if node.equation.primitive.name != "reshape":  # which changes nothing
                (values,) = bind(node.equation, operands, node.equation.params)
        return rows.of(values)


def scattered(makers: Mapping[Slot, Node], atom: Any) -> Scattered | None:
    """How a gradient is made of rows, or None where it is not.

    Args:
        makers: the node that makes each slot.
        atom: slot or literal of the gradient.
    """
    terms = _terms(makers, atom)
    if not terms:
        return None
    return Scattered(tuple(terms), terms[0].scatter.equation.outvars[0].aval.shape)


def _terms(makers: Mapping[Slot, Node], atom: Any) -> list[_Term] | None:
    """The scatters whose sum a value is; an empty list for zeros, None if it is anything else."""
    node = None if isinstance(atom, jex.Literal) else makers.get(atom)
    if node is None:
        return None
    name = node.equation.primitive.name
    if name == "broadcast_in_dim":
        value = node.inputs[0]
        return [] if isinstance(value, jex.Literal) and not np.any(value.val) else None
    if name == "scatter-add":
        before = _terms(makers, node.inputs[0])
        return None if before is None or not _is_of_rows(node) else [*before, _Term(node)]
    if name in ("add", "add_any"):
        left, right = (_terms(makers, operand) for operand in node.inputs)
        return None if left is None or right is None else left + right
    scaled = _scaled_operand(node)
    terms = None if scaled is None else _terms(makers, scaled)
    return None if terms is None else [_Term(t.scatter, (*t.scalings, node)) for t in terms]


def _scaled_operand(node: Node) -> Any:
    """The one array among the operands of a scaling, or None for another operation."""
    name, equation = node.equation.primitive.name, node.equation
    pairs = zip(equation.invars, node.inputs, strict=True)
    arrays = [(var.aval.shape, atom) for var, atom in pairs if var.aval.shape]
    if len(arrays) != 1 or arrays[0][0] != equation.outvars[0].aval.shape:
        return None
    is_quotient = name == "div" and not equation.invars[1].aval.shape
    return arrays[0][1] if is_quotient or name in _SCALINGS else None


def _is_of_rows(scatter: Node) -> bool:
    """Whether a scatter-add adds whole rows, each at one index."""
    shape, indices, updates = (var.aval.shape for var in scatter.equation.invars)
    params, batch = scatter.equation.params, len(indices) - 1
    dims = params["dimension_numbers"]
    return (
        params["mode"] in _MODES
        and not dims.operand_batching_dims
        and tuple(dims.inserted_window_dims) == (0,)
        and tuple(dims.scatter_dims_to_operand_dims) == (0,)
        and tuple(dims.update_window_dims) == tuple(range(batch, len(updates)))
        and updates == (*indices[:-1], *shape[1:])
        and math.prod(shape) > 0
    )


def is_rows(value: Any) -> bool:
    """Whether a gradient came as rows."""
    return isinstance(value, Rows)


def densified(gradients: Sequence[Any]) -> list[Any]:
    """Gradients as whole arrays."""
    return [gradient.dense() if is_rows(gradient) else gradient for gradient in gradients]
