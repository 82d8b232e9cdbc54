"""The compiled assembly: one XLA program for all replicas.

Under `jax.shard_map` over a mesh with the axis `replica`, meetings become collectives. Replicas
whose batches differ in size run different *variants* of the step, one per distinct size, which are
evaluated side by side on every device and meet at each collective, where every replica contributes
the value of its own variant. Equal batches are the case of one variant and pay nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.errors import ReplicaMismatch
from paceline.program import meeting
from paceline.program.step import (
    StepProgram,
    carry_over,
    evaluate,
    refuse_control_flow,
)
from paceline.types import PerReplica

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from paceline.types import Shape

_DONE = object()


@dataclasses.dataclass(frozen=True)
class Variant:
    """One traced form of the step and the shapes of its per-replica arguments."""

    program: StepProgram
    shapes: tuple[Shape, ...]


class Assembly:
    """Evaluates variants inside a `shard_map` body.

    Args:
        variants: one per distinct local batch, all of the same function.
        of_replica: index of each replica's variant.
    """

    def __init__(self, variants: Sequence[Variant], of_replica: Sequence[int]) -> None:
        self.variants = tuple(variants)
        self.of_replica = tuple(of_replica)
        self._check_alike()
        self.reads = _union(variant.program.reads for variant in self.variants)
        self.writes = _union(variant.program.writes for variant in self.variants)

    def _check_alike(self) -> None:
        first = self.variants[0].program
        for variant in self.variants[1:]:
            if _form(variant.program) != _form(first):
                raise ReplicaMismatch(
                    "The function given to run must return the same structure whatever the size "
                    f"of its batch. Received: {first.result_tree} and "
                    f"{variant.program.result_tree}."
                )

    def restore(self, arrays: Sequence[Any]) -> Any:
        """The result, given its array leaves for all replicas.

        What is no array, such as a number made from the batch size, comes back bare where the
        replicas agree and per replica where they do not.
        """
        remaining = iter(arrays)
        first = self.variants[0].program
        return first.joined(
            [
                next(remaining) if leaf is None else self._static(index)
                for index, leaf in enumerate(first.result)
            ]
        )

    def _static(self, index: int) -> Any:
        leaves = [self.variants[k].program.result[index] for k in self.of_replica]
        values = [leaf.value for leaf in leaves if leaf is not None]
        return values[0] if all(_is_same(v, values[0]) for v in values) else PerReplica(values)

    def output_shapes(self, index: int) -> tuple[Shape, ...]:
        """True shape of array output `index` on each replica."""
        shapes = []
        for k in self.of_replica:
            program = self.variants[k].program
            shapes.append(tuple(program.out_vars[len(program.writes) + index].aval.shape))
        return tuple(shapes)

    @property
    def num_outputs(self) -> int:
        """How many array leaves the result has."""
        program = self.variants[0].program
        return len(program.out_vars) - len(program.writes)

    def __call__(
        self, reads: Sequence[Any], args: Sequence[Any], consts: Sequence[Sequence[Any]]
    ) -> tuple[list[Any], list[Any]]:
        """Runs the step on this device.

        Args:
            reads: values of `self.reads`, as one replica sees them.
            args: this replica's arguments, padded to the largest replica's shape.
            consts: per variant, the values its function closed over.

        Returns:
            New values of `self.writes`, and the array outputs padded to the largest replica's.
        """
        values = dict(zip(map(id, self.reads), reads, strict=True))
        index = jax.lax.axis_index(meeting.AXIS)
        steps = []
        for variant, closed in zip(self.variants, consts, strict=True):
            own = [values[id(variable)] for variable in variant.program.reads]
            cut = [a[tuple(map(slice, s))] for a, s in zip(args, variant.shapes, strict=True)]
            steps.append(evaluate(variant.program, own, cut, closed))
        mine = jnp.asarray(self.of_replica)[index] if len(steps) > 1 else None
        results = self._drive(steps, index, mine)
        return self._select(results, values, mine)

    def _drive(self, steps: Sequence[Any], index: Any, mine: Any) -> list[list[Any]]:
        results: list[Any] = [None] * len(steps)
        answers: list[Any] = [None] * len(steps)
        while True:
            waiting = [_advance(step, answer) for step, answer in zip(steps, answers, strict=True)]
            finished = [state is _DONE for state, _ in waiting]
            if all(finished):
                for k, (_, result) in enumerate(waiting):
                    results[k] = result
                return results
            if any(finished) or len({_kind(request) for _, request in waiting}) > 1:
                raise ReplicaMismatch(
                    "All replicas must reach the same number of meeting points (collectives, "
                    "aggregated assignments, apply_gradients). Received: a function that reaches "
                    "a different number for another batch size. Do not let Python conditions on "
                    "the batch size skip a collective."
                )
            answers = self._meet([request for _, request in waiting], index, mine)

    def _meet(self, requests: Sequence[Any], index: Any, mine: Any) -> list[Any]:
        primitive, _params, _ = requests[0]
        if primitive is meeting.replica_id_p:
            return [index] * len(requests)
        if primitive is meeting.all_gather_p:
            return [self._gather(requests, mine)] * len(requests)
        if primitive not in meeting.MEETINGS:
            if len(requests) > 1:
                refuse_control_flow(primitive)
            return [carry_over(primitive, requests[0][2], lambda s: self._drive([s], index, None))]
        shares = [meeting.contribution(primitive, p, x, index) for _, p, x in requests]
        total = jax.lax.psum(_chosen(shares, mine), meeting.AXIS)
        return [total] * len(requests)

    def _gather(self, requests: Sequence[Any], mine: Any) -> Any:
        params = requests[0][1]
        axis, sizes = params["axis"], params["sizes"]
        padded = [_pad_axis(value, axis, max(sizes)) for _, _, value in requests]
        parts = jax.lax.all_gather(_chosen(padded, mine), meeting.AXIS, axis=0, tiled=False)
        cut = [jax.lax.slice_in_dim(parts[i], 0, size, axis=axis) for i, size in enumerate(sizes)]
        return jnp.concatenate(cut, axis=axis)

    def _select(
        self, results: Sequence[list[Any]], values: dict[int, Any], mine: Any
    ) -> tuple[list[Any], list[Any]]:
        written, outputs = [], []
        for variable in self.writes:
            options = []
            for variant, result in zip(self.variants, results, strict=True):
                places = {id(v): i for i, v in enumerate(variant.program.writes)}
                place = places.get(id(variable))
                options.append(values[id(variable)] if place is None else result[place])
            written.append(_chosen(options, mine))
        for i in range(self.num_outputs):
            largest = np.max(self.output_shapes(i), axis=0) if self.output_shapes(i)[0] else ()
            options = [
                _pad(result[len(variant.program.writes) + i], largest)
                for variant, result in zip(self.variants, results, strict=True)
            ]
            outputs.append(_chosen(options, mine))
        return written, outputs


def _advance(step: Generator[Any, Any, Any], answer: Any) -> tuple[Any, Any]:
    try:
        return None, step.send(answer)
    except StopIteration as stop:
        return _DONE, stop.value


def _form(program: StepProgram) -> Any:
    return program.result_tree, [leaf is None for leaf in program.result]


def _is_same(value: Any, other: Any) -> bool:
    is_plain = isinstance(value, (int, float, str, bytes)) and type(value) is type(other)
    return value is other or (is_plain and value == other)


def _kind(request: Any) -> Any:
    primitive = request[0]
    return primitive if primitive in (*meeting.MEETINGS, meeting.replica_id_p) else "control flow"


def _chosen(options: Sequence[Any], mine: Any) -> Any:
    """The option of this replica's variant."""
    if mine is None:
        return options[0]
    chosen = options[0]
    for k, option in enumerate(options[1:], 1):
        chosen = jnp.where(mine == k, option, chosen)
    return chosen


def _pad(value: Any, shape: Any) -> Any:
    value = jnp.asarray(value)  # an output can be a literal
    widths = [(0, int(full) - size) for size, full in zip(value.shape, shape, strict=True)]
    return jnp.pad(value, widths) if any(after for _, after in widths) else value


def _pad_axis(value: Any, axis: int, size: int) -> Any:
    shape = list(value.shape)
    shape[axis] = size
    return _pad(value, shape)


def _union(groups: Any) -> tuple[Any, ...]:
    return tuple({id(variable): variable for group in groups for variable in group}.values())
