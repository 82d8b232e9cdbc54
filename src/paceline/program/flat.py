"""A step program with its calls inlined: nodes that can be cut apart and evaluated in part.

`jit` and its like only group equations; inlined, every value of the step has a name (a *slot*, an
integer), so that a cut can go between any two equations. Control flow stays one node.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from jax.extend import core as jex

from paceline.program import meeting
from paceline.program.frozen import frozen
from paceline.program.reread import reread_p
from paceline.program.step import bind, inlined_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.program.step import StepProgram

Slot = int


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One equation.

    Attributes:
        equation: the traced equation.
        inputs: a slot or a literal for each operand.
        outputs: a slot for each result.
    """

    equation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Slot, ...]

    @property
    def needs(self) -> tuple[Slot, ...]:
        """The slots among the inputs."""
        return tuple(atom for atom in self.inputs if not isinstance(atom, jex.Literal))

    @property
    def is_commit(self) -> bool:
        """Whether a value passes here on its way to a variable's home."""
        return self.equation.primitive is meeting.commit_p

    @property
    def is_reread(self) -> bool:
        """Whether a value passes here that was written and is read again."""
        return self.equation.primitive is reread_p


@dataclasses.dataclass(frozen=True)
class FlatProgram:
    """The nodes of a step program in order of execution, and the slots of its inputs and outputs.

    Attributes:
        nodes: in order.
        reads, args, consts: slots of the inputs.
        outputs: slot or literal of each of `StepProgram.out_vars`.
        avals: shape and dtype of every slot.
    """

    nodes: tuple[Node, ...]
    reads: tuple[Slot, ...]
    args: tuple[Slot, ...]
    consts: tuple[tuple[Slot, Any], ...]
    outputs: tuple[Any, ...]
    avals: dict[Slot, Any]


def flatten(program: StepProgram) -> FlatProgram:
    """Inlines the calls of a step program."""
    fresh = itertools.count()
    avals: dict[Slot, Any] = {}
    consts: list[tuple[Slot, Any]] = []
    nodes: list[Node] = []

    def name(var: Any) -> Slot:
        slot = next(fresh)
        avals[slot] = var.aval
        return slot

    def inline(equations: Iterable[Any], env: dict[Any, Any]) -> None:
        for equation in equations:
            inputs = tuple(_atom(env, var) for var in equation.invars)
            inner = inlined_program(equation)
            if inner is None:
                outputs = tuple(name(var) for var in equation.outvars)
                nodes.append(Node(equation, inputs, outputs))
            else:
                inside = {}
                for var, const in zip(inner.jaxpr.constvars, inner.consts, strict=True):
                    inside[var] = name(var)
                    consts.append((inside[var], frozen(const)))
                inside.update(zip(inner.jaxpr.invars, inputs, strict=True))
                inline(inner.jaxpr.eqns, inside)
                outputs = tuple(_atom(inside, var) for var in inner.jaxpr.outvars)
            env.update(zip(equation.outvars, outputs, strict=True))

    env: dict[Any, Any] = {}
    for var in (*program.read_vars, *program.arg_vars, *program.const_vars):
        env[var] = name(var)
    consts += [(env[v], value) for v, value in zip(program.const_vars, program.consts, strict=True)]
    inline(program.equations, env)
    return FlatProgram(
        nodes=tuple(nodes),
        reads=tuple(env[var] for var in program.read_vars),
        args=tuple(env[var] for var in program.arg_vars),
        consts=tuple(consts),
        outputs=tuple(_atom(env, var) for var in program.out_vars),
        avals=avals,
    )


def _atom(env: dict[Any, Any], var: Any) -> Any:
    return var if isinstance(var, jex.Literal) else env[var]


def value_of(env: dict[Slot, Any], atom: Any) -> Any:
    """The value of a slot or a literal."""
    return atom.val if isinstance(atom, jex.Literal) else env[atom]


def evaluate_nodes(nodes: Iterable[Node], env: dict[Slot, Any]) -> None:
    """Runs `nodes`, adding their results to `env`. A commit passes its value on."""
    for node in nodes:
        operands = [value_of(env, atom) for atom in node.inputs]
        if node.is_commit:
            env[node.outputs[0]] = operands[0]
            continue
        results = bind(node.equation, operands, node.equation.params)
        env.update(zip(node.outputs, results, strict=True))


def needed(nodes: Sequence[Node], wanted: Iterable[Slot]) -> list[Node]:
    """Those of `nodes` that `wanted` depends on."""
    open_slots = set(wanted)
    kept = []
    for node in reversed(nodes):
        if not open_slots.isdisjoint(node.outputs):
            kept.append(node)
            open_slots.update(node.needs)
    kept.reverse()
    return kept
