"""The step program: a function traced once, with variables as inputs and outputs.

`trace_step` runs the function under a `TraceScope` and returns a `StepProgram`: the equations,
which variables they read and write, and where replicas meet. How it is executed is up to an
assembly (`compiled` for lockstep).
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.sharding import NamedSharding

from paceline.errors import Unsupported
from paceline.program import meeting, nest
from paceline.program.frozen import frozen
from paceline.program.scope import TraceScope, is_traced, read_p

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Sequence

# Primitives whose inner program can run in place of the call: they only group equations.
_INLINED = {
    "jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint",
    "custom_jvp_call", "custom_vjp_call",
}  # fmt: skip

_REMATERIALIZED = {"remat2", "checkpoint"}  # grouped for a purpose: what is computed twice

_SHARDINGS = ("sharding", "out_sharding")  # parameters that may be None


@dataclasses.dataclass(frozen=True)
class Static:
    """A leaf of a result that is no array: it comes back as it is, without a computation."""

    value: Any


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """A traced function.

    Attributes:
        equations: the traced equations, reads of variables taken out.
        read_vars, arg_vars, const_vars: the program's inputs, in this order of kind.
        consts: arrays and outer tracers the function closed over, matching `const_vars`.
        out_vars: new storages of `writes`, then the array leaves of the result.
        reads, writes: the variables read and written, every written one also read.
        result: the result as leaves, each None (an array, in order) or `Static`.
        result_tree: how the leaves form the result.
        is_open: whether the result holds nothing that `nest.opened` had to open.
    """

    equations: tuple[Any, ...]
    read_vars: tuple[Any, ...]
    arg_vars: tuple[Any, ...]
    const_vars: tuple[Any, ...]
    consts: tuple[Any, ...]
    out_vars: tuple[Any, ...]
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    result: tuple[Static | None, ...]
    result_tree: Any
    is_open: bool

    def restore(self, arrays: Sequence[Any]) -> Any:
        """Puts array leaves and static leaves back together."""
        remaining = iter(arrays)
        return self.joined(
            [next(remaining) if leaf is None else leaf.value for leaf in self.result]
        )

    def joined(self, leaves: Sequence[Any]) -> Any:
        """Makes the result's leaves the result."""
        result = jax.tree.unflatten(self.result_tree, leaves)
        return result if self.is_open else nest.closed(result)


def trace_step(fn: Callable[..., Any], avals: Sequence[Any], scope: TraceScope) -> StepProgram:
    """Traces `fn(*arrays)` under `scope`.

    Args:
        fn: takes arrays of the given abstract values and returns any nested structure.
        avals: `jax.ShapeDtypeStruct` per array argument.
        scope: a new scope; it is entered here.
    """
    found: dict[str, Any] = {}

    def flat(*arrays: Any) -> list[Any]:
        with jex.take_current_trace() as trace:
            pass
        scope.open(trace)
        result = fn(*arrays)
        found["is_open"] = nest.is_open(jax.tree.leaves(result))
        leaves, found["tree"] = nest.flattened(result)
        found["result"] = tuple(None if _is_array(leaf) else Static(leaf) for leaf in leaves)
        found["writes"] = tuple(variable for variable, _ in scope.writes.values())
        written = [value for _, value in scope.writes.values()]
        return written + [jnp.asarray(leaf) for leaf in leaves if _is_array(leaf)]

    with scope:
        closed = jax.make_jaxpr(flat)(*avals)
    read_vars = {e.params["key"]: e.outvars[0] for e in closed.jaxpr.eqns if e.primitive is read_p}
    return StepProgram(
        equations=tuple(e for e in closed.jaxpr.eqns if e.primitive is not read_p),
        read_vars=tuple(read_vars[key] for key in scope.reads),
        arg_vars=tuple(closed.jaxpr.invars),
        const_vars=tuple(closed.jaxpr.constvars),
        consts=tuple(map(frozen, closed.consts)),
        out_vars=tuple(closed.jaxpr.outvars),
        reads=tuple(variable for variable, _ in scope.reads.values()),
        writes=found["writes"],
        result=found["result"],
        result_tree=found["tree"],
        is_open=found["is_open"],
    )


def _is_array(leaf: Any) -> bool:
    return is_traced(leaf) or isinstance(leaf, (jax.Array, np.ndarray, np.generic))


Meeting = tuple[Any, dict[str, Any], Any]


def evaluate(
    program: StepProgram, reads: Sequence[Any], args: Sequence[Any], consts: Sequence[Any]
) -> Generator[Meeting, Any, list[Any]]:
    """Runs the equations; yields each meeting (primitive, params, operand) and is sent its result.

    Returns the values of `program.out_vars`.
    """
    env: dict[Any, Any] = {}
    env.update(zip(program.read_vars, reads, strict=True))
    env.update(zip(program.arg_vars, args, strict=True))
    env.update(zip(program.const_vars, consts, strict=True))
    yield from _run(program.equations, env)
    return [_read(env, var) for var in program.out_vars]


def _array(operand: Any, aval: Any) -> Any:
    """The operand of a meeting; a literal of the program is a bare number."""
    return operand if isinstance(operand, jax.Array) else jnp.asarray(operand, aval.dtype)


def _read(env: dict[Any, Any], var: Any) -> Any:
    return var.val if isinstance(var, jex.Literal) else env[var]


def _run(equations: Sequence[Any], env: dict[Any, Any]) -> Generator[Meeting, Any, None]:
    is_manual = _is_in_replica()
    for equation in equations:
        operands = [_read(env, var) for var in equation.invars]
        if equation.primitive in meeting.MEETINGS or equation.primitive is meeting.replica_id_p:
            operand = _array(operands[0], equation.invars[0].aval) if operands else None
            results = [(yield equation.primitive, equation.params, operand)]
        elif _count_meetings(equation):
            results = yield from _run_inner(equation, operands)
        elif is_manual and _names_mesh(equation):
            results = carry_over(equation, operands, _finish)
        else:
            results = bind(equation, operands, equation.params)
        env.update(zip(equation.outvars, results, strict=True))


def bind(equation: Any, operands: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    """Binds an equation's primitive to new operands and returns the results as a sequence."""
    primitive = equation.primitive
    inside = contextlib.nullcontext()
    if _is_in_replica():
        # A gradient is given the sharding of the array it belongs to, also of one that the function
        # closed over; a replica's own copy has none.
        if primitive.name == "reshard":
            return operands
        params = {k: v for k, v in params.items() if k not in _SHARDINGS} | {
            k: None for k in _SHARDINGS if k in params
        }
        # Such an array's mesh may also be the one that the equation was traced under.
        inside = jax.sharding.use_abstract_mesh(jax.sharding.get_abstract_mesh())
    with equation.ctx.manager, inside:
        results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return results if primitive.multiple_results else [results]


def _run_inner(equation: Any, operands: Sequence[Any]) -> Generator[Meeting, Any, Any]:
    """Runs an equation in whose inner programs replicas meet."""
    if equation.primitive.name in _INLINED:
        inner = next(iter(inner_programs(equation)))
        env = dict(zip(inner.jaxpr.constvars, map(_local, inner.consts), strict=True))
        env.update(zip(inner.jaxpr.invars, operands, strict=True))
        yield from _run(inner.jaxpr.eqns, env)
        return [_read(env, var) for var in inner.jaxpr.outvars]
    # Control flow: the driver is asked, with the equation itself, to carry the body over.
    return (yield equation, {}, operands)


def carry_over(equation: Any, operands: Sequence[Any], drive: Callable[..., Any]) -> Sequence[Any]:
    """Binds a control-flow equation with the meetings in its bodies resolved by `drive`.

    Args:
        equation: a scan, while or cond equation in whose body replicas meet.
        operands: its operands.
        drive: resolves all meetings of a generator such as `evaluate` and returns its result.
    """

    def resolved(inner: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
        def body(*args: Any) -> Any:
            env = dict(zip(inner.jaxpr.constvars, map(_local, inner.consts), strict=True))
            env.update(zip(inner.jaxpr.invars, args, strict=True))
            drive(_run(inner.jaxpr.eqns, env))
            return [_read(env, var) for var in inner.jaxpr.outvars]

        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inner.in_avals]
        return jax.make_jaxpr(body)(*avals)

    def carried(value: Any) -> Any:
        if isinstance(value, jex.ClosedJaxpr):
            return resolved(value)
        if not isinstance(value, tuple) or not any(isinstance(v, jex.ClosedJaxpr) for v in value):
            return value
        make = getattr(value, "_make", tuple)  # a named tuple stays one
        return make([carried(item) for item in value])

    params = {name: carried(value) for name, value in equation.params.items()}
    return bind(equation, operands, params)


def _finish(run: Generator[Meeting, Any, Any]) -> None:
    for _ in run:
        raise ValueError("an equation without meetings has met")  # unreachable by construction


def _is_in_replica() -> bool:
    """Whether the program is put together inside `shard_map`, as one replica sees it."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def _names_mesh(equation: Any) -> bool:
    """Whether inner programs carry the mesh of an array that the function closed over.

    Such an array lies on the strategy's devices as a whole, while each replica of the step sees
    its own copy: the inner program is traced again for that.
    """
    for inner in inner_programs(equation):
        variables = [*inner.jaxpr.invars, *inner.jaxpr.outvars]
        avals = [var.aval for var in variables if hasattr(var.aval, "sharding")]
        is_named = any(not aval.sharding.mesh.empty for aval in avals)
        if is_named or any(map(_is_spread, inner.consts)):
            return True
        if any(map(_names_mesh, inner.jaxpr.eqns)):
            return True
    return False


def _is_spread(const: Any) -> bool:
    is_concrete = isinstance(const, jax.Array) and not is_traced(const)
    return is_concrete and isinstance(const.sharding, NamedSharding)


def _local(const: Any) -> Any:
    """What an inner program closed over, as one replica sees it: without the strategy's mesh."""
    return np.asarray(const) if _is_in_replica() and _is_spread(const) else const


def inlined_program(equation: Any) -> Any:
    """The program of an equation that only groups others, as `jit` does, or None."""
    if equation.primitive.name not in _INLINED or equation.primitive.name in _REMATERIALIZED:
        return None
    return next(iter(inner_programs(equation)), None)


def inner_programs(equation: Any) -> list[Any]:
    """The programs among an equation's parameters, such as the body of a loop."""
    inner = []
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, jex.ClosedJaxpr):
                inner.append(item)
            elif isinstance(item, jex.Jaxpr):
                inner.append(jex.ClosedJaxpr(item, ()))
    return inner


def has_any(equation: Any, names: Collection[str]) -> bool:
    """Whether an equation is one of these operations, or has one inside."""
    if equation.primitive.name in names:
        return True
    return any(has_any(e, names) for inner in inner_programs(equation) for e in inner.jaxpr.eqns)


def _count_meetings(equation: Any) -> int:
    if equation.primitive in meeting.MEETINGS:
        return 1
    found = 0
    for inner in inner_programs(equation):
        found += sum(_count_meetings(e) for e in inner.jaxpr.eqns)
        found += sum(e.primitive is meeting.replica_id_p for e in inner.jaxpr.eqns)
    return found


def refuse_control_flow(equation: Any) -> None:
    """Raises where replicas with different batch sizes would have to meet inside control flow."""
    raise Unsupported(
        "Replicas that hold different numbers of examples cannot meet inside the body of a "
        f"control-flow operation. Received: a collective inside `{equation.primitive.name}`. Move "
        "the collective or the aggregated assignment out of the loop, or use batches whose size "
        "is a multiple of the number of replicas."
    )
