"""What a gradient tape records, and how a record is differentiated.

A tape is a `jax.core.Trace`. While it is the current trace, JAX hands it every operation; it runs
the operation in the trace that was current before it, so values stay what they would be without
a tape (arrays eagerly, tracers under `jax.jit`), and writes down which objects went in and which
came out. Objects are matched by identity, and a record keeps them alive, so that an `id` in use
never changes its meaning.

To differentiate, the operations between the sources and the targets are run again as an ordinary
function under `jax.vjp`; all others keep their recorded values and are not run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Trace
from jax.extend import core as jax_core

from paceline.program.rerun import Run, is_differentiable, rerunnable, rerunnable_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Operation(NamedTuple):
    """One recorded operation: `run(*inputs)` gives values equal to `outputs`."""

    run: Run
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


class Root(NamedTuple):
    """A value to differentiate with respect to.

    Attributes:
        value: The array or tracer.
        start: Operations before this index do not count as uses of `value`.
        cut: Whether a recorded operation that made `value` is ignored. Reading a variable starts
            afresh, whatever was assigned to it; an intermediate result passes its gradient on.
    """

    value: Any
    start: int
    cut: bool


class Record:
    """The operations and watched values of one tape.

    Args:
        record_all: Record every operation, because a value may turn out to be that of a variable;
            otherwise only those that depend on a watched value.
    """

    def __init__(self, record_all: bool) -> None:
        self.operations: list[Operation] = []
        self.roots: dict[int, Root] = {}
        self._record_all = record_all
        # Ids are of objects that `operations` and `roots` keep alive.
        self._made: set[int] = set()
        # Ids of watched values and of results that depend on them.
        self._reached: set[int] = set()

    def watch(self, value: object, cut: bool = False) -> None:
        """Starts to differentiate with respect to `value`; a second call changes nothing."""
        if id(value) not in self.roots:
            # A result of this record is differentiable from its beginning.
            start = 0 if self.made_here(value) and not cut else len(self.operations)
            self.roots[id(value)] = Root(value, start, cut)
            self._reached.add(id(value))

    def made_here(self, value: object) -> bool:
        """Whether `value` is the result of a recorded operation."""
        return id(value) in self._made

    def wants(self, inputs: Sequence[Any]) -> bool:
        """Whether an operation on `inputs` belongs in the record."""
        if self._record_all:
            return any(is_differentiable(value) for value in inputs)
        return any(id(value) in self._reached for value in inputs)

    def append(self, run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Adds an operation, unless no gradient can leave it (integer and boolean results)."""
        if not any(is_differentiable(out) for out in outputs):
            return
        self.operations.append(Operation(run, tuple(inputs), tuple(outputs)))
        made = [id(out) for out in outputs if is_differentiable(out)]
        self._made.update(made)
        if not self._record_all:
            self._reached.update(made)


class RecordingTrace(Trace):
    """Runs each operation in the trace below and records it.

    A trace may be opened again after it was closed. Eager tapes should do so: the current trace is
    part of the key of JAX's jit caches, and a new trace for each step would fill them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.close()

    def open(self, parent: Trace, record: Callable[[], Record | None]) -> None:
        """Starts to run operations in `parent`, and to record where `record()` is not None."""
        self.parent = parent
        self._record = record

    def close(self) -> None:
        """Lets go of the tape and of what it ran in."""
        self.parent: Any = None
        self._record: Callable[[], Record | None] = lambda: None

    def stage_value(self, val: Any) -> Any:
        with jax_core.set_current_trace(self.parent):
            return self.parent.stage_value(val)

    def process_primitive(self, primitive: Any, tracers: Sequence[Any], params: Any, /) -> Any:
        inputs, run = rerunnable(primitive, tracers, params)
        record = self._record()
        outputs = self._below(primitive, tracers, params)
        many = list(outputs) if primitive.multiple_results else [outputs]
        many = self._distinct(many, inputs)
        # Nothing passes `stop_gradient`; unrecorded, its result is a value without a history.
        if record is not None and primitive.name != "stop_gradient" and record.wants(inputs):
            record.append(run, inputs, many)
        return many if primitive.multiple_results else many[0]

    def process_call(self, call_primitive: Any, f: Any, tracers: Any, params: Any, /) -> Any:
        return self._process_functions(call_primitive, (f,), tracers, params)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any
    ) -> Any:
        return self._process_functions(primitive, (fun, jvp), tracers, params)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any
    ) -> Any:
        return self._process_functions(primitive, (fun, fwd, bwd), tracers, params)

    def process_shard_map(self, primitive: Any, fun: Any, tracers: Any, /, **params: Any) -> Any:
        return self._process_functions(primitive, (fun,), tracers, params)

    def _process_functions(
        self, primitive: Any, functions: tuple[Any, ...], args: Sequence[Any], params: Any
    ) -> Any:
        """Runs and records a call of Python functions, such as one with a custom gradient.

        JAX's function objects can be traced only once. So the call is first closed into a jaxpr,
        which keeps the custom rules and can be run again, and shows what the functions captured.
        """
        params = {**params, "subfuns": functions}
        record = self._record()
        if record is None:
            results = self._below(primitive, args, params)
            return _with_values(results, self._distinct(list(results), args))
        results: Any = None

        def call(*operands: Any) -> list[Any]:
            nonlocal results
            results = primitive.bind(*operands, **params)
            return list(results)

        with jax_core.set_current_trace(self.parent):
            closed = jax.make_jaxpr(call)(*args)
            outputs = list(jax_core.jaxpr_as_fun(closed)(*args))
        inputs, run = rerunnable_call(closed, args)
        outputs = self._distinct(outputs, inputs)
        if record.wants(inputs):
            record.append(run, inputs, outputs)
        return _with_values(results, outputs)

    def _below(self, primitive: Any, args: Sequence[Any], params: Any) -> Any:
        with jax_core.set_current_trace(self.parent):
            return primitive.bind(*args, **params)

    def _distinct(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Copies each output that is the very object of an input.

        Eagerly, `stop_gradient`, a custom gradient around the identity, or `device_put` may hand
        back their argument. As values are matched by identity, the operation would be lost.
        """
        given = {id(value) for value in inputs if is_differentiable(value)}
        if not any(id(out) in given for out in outputs):
            return list(outputs)
        with jax_core.set_current_trace(self.parent):
            return [jnp.array(out, copy=True) if id(out) in given else out for out in outputs]


def _with_values(results: Any, values: list[Any]) -> Any:
    """`values` in the container of `results`: a list, or the tree that `shard_map` returns."""
    return results.update(values) if hasattr(results, "update") else values


@jax.custom_jvp
def _tap(value: Any, nudge: Any) -> Any:
    """`value`, with a second input `nudge` (zeros) that receives the gradient at this point."""
    del nudge
    return value


@_tap.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[0], tangents[0] + tangents[1]


class Slice(NamedTuple):
    """The part of a record between some roots and some targets.

    Attributes:
        operations: (index in the record, operation), in order.
        leaves: The roots that reach a target and get their value from outside, by its id.
        made: Those that are results of `operations`, and pass their gradient on.
        end: The index after the last operation of the record.
    """

    operations: list[tuple[int, Operation]]
    leaves: dict[int, Root]
    made: dict[int, Root]
    end: int

    def is_leaf(self, value: object, index: int) -> bool:
        """Whether operation `index` gets `value` from outside."""
        root = self.leaves.get(id(value))
        return root is not None and index >= root.start


def slice_between(record: Record, roots: Iterable[Root], targets: Sequence[Any]) -> Slice:
    """Finds the operations on a path from a root to a target, and the roots with such a path."""
    wanted: dict[int, Root] = {}
    for root in roots:
        wanted.setdefault(id(root.value), root)
    used: dict[int, Root] = {}
    needed: set[int] = set()
    end = len(record.operations)

    def use(value: object, index: int) -> None:
        root = wanted.get(id(value))
        counts = root is not None and index >= root.start
        if root is not None and counts:
            used[id(value)] = root
        if root is None or not counts or not root.cut:
            needed.add(id(value))

    for target in targets:
        use(target, end)
    backward: list[tuple[int, Operation]] = []
    for index in range(end - 1, -1, -1):
        op = record.operations[index]
        if any(id(out) in needed for out in op.outputs):
            backward.append((index, op))
            for value in op.inputs:
                if is_differentiable(value):
                    use(value, index)
    part = Slice([], dict(used), {}, end)
    reached: set[int] = set()
    for index, op in reversed(backward):
        if not any(id(value) in reached or part.is_leaf(value, index) for value in op.inputs):
            continue
        part.operations.append((index, op))
        for out in op.outputs:
            if is_differentiable(out):
                reached.add(id(out))
                if id(out) in used and not used[id(out)].cut:
                    part.made[id(out)] = part.leaves.pop(id(out))
    return part


def replay(part: Slice, targets: Sequence[Any], inputs: dict[int, Any]) -> list[Any]:
    """Runs `part` again with `inputs` for its roots; gives the values of `targets`.

    The input for a root in `part.made` is zeros: its value comes from its operation, and the input
    marks the place where the gradient is wanted.
    """
    values: dict[int, Any] = {}

    def current(value: Any, index: int) -> Any:
        return inputs[id(value)] if part.is_leaf(value, index) else values.get(id(value), value)

    for index, op in part.operations:
        results = op.run(*[current(value, index) for value in op.inputs])
        for out, result in zip(op.outputs, results, strict=True):
            if is_differentiable(out):
                key = id(out)
                values[key] = _tap(result, inputs[key]) if key in part.made else result
    return [current(target, part.end) for target in targets]


def pullback(
    record: Record, roots: Iterable[Root], targets: Sequence[Any]
) -> tuple[set[int], Callable[[list[Any]], dict[int, Any]]]:
    """The reverse derivative of `targets` with respect to `roots`.

    Args:
        record: What a tape recorded.
        roots: The values to differentiate with respect to.
        targets: Floating arrays or tracers.

    Returns:
        The ids of the values of those roots that reach a target; and a function from one
        cotangent per target to the gradients, by the same ids.
    """
    part = slice_between(record, roots, targets)
    inputs = {key: root.value for key, root in part.leaves.items()}
    inputs.update((key, jnp.zeros_like(root.value)) for key, root in part.made.items())
    if not inputs:
        return set(), lambda _: {}
    keys = list(inputs)
    _, pull = jax.vjp(
        lambda *args: replay(part, targets, dict(zip(keys, args, strict=True))), *inputs.values()
    )
    return set(keys), lambda cotangents: dict(zip(keys, pull(cotangents), strict=True))
