"""`run`: one function on every replica, compiled or eager."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import keras
from jax.sharding import PartitionSpec

from paceline.errors import InvalidArgument, ReplicaMismatch, Unsupported
from paceline.program import context, meeting, nest
from paceline.program.compiled import Assembly, Variant
from paceline.program.context import Frame
from paceline.program.eager import Group, Member
from paceline.program.scope import is_traced
from paceline.program.step import StepProgram, trace_step
from paceline.strategies.replica_context import GatherLog, ReplicaContext
from paceline.types import PerReplica, Shape
from paceline.variables.replica_scope import EagerReplicaScope, ReplicaScope, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.program.scope import TraceScope

LossRule = Literal["sum", "mean"]
_MANY_ROUNDS = 8
_SPLIT = PartitionSpec(meeting.AXIS)
_SAME = PartitionSpec()


def run_inline(
    strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any, loss_rule: LossRule
) -> Any:
    """Runs the only replica of a strategy in place."""
    args, kwargs = jax.tree.map(_only, (args, kwargs), is_leaf=is_per_replica)
    size = _num_examples([jnp.shape(x) for x in jax.tree.leaves(args) if hasattr(x, "shape")])
    sizes = None if size is None else (size,)
    replica = ReplicaContext(strategy, 0, None, sizes, size, loss_rule)
    with context.entered(Frame(strategy, replica=replica)):
        return fn(*args, **kwargs)


def run_eager(
    strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any, loss_rule: LossRule
) -> Any:
    """Calls `fn` on every replica, as threads that meet."""
    leaves, tree = jax.tree.flatten(nest.opened((args, kwargs)), is_leaf=is_per_replica)
    parts = [leaf.values if is_per_replica(leaf) else None for leaf in leaves]
    sizes = _example_sizes([p for p in parts if p is not None], strategy.num_replicas_in_sync)
    scopes: list[EagerReplicaScope] = []
    frames = context.frames()

    def call(member: Member) -> Any:
        replica = ReplicaContext(
            strategy,
            member.index,
            member,
            sizes,
            None if sizes is None else sizes[member.index],
            loss_rule,
        )
        own = [
            _on(leaf if p is None else p[member.index], strategy.devices[member.index])
            for leaf, p in zip(leaves, parts, strict=True)
        ]
        own_args, own_kwargs = nest.closed(jax.tree.unflatten(tree, own))
        scope = EagerReplicaScope(replica)
        scopes.append(scope)
        with context.inherited(frames), _as_replica(strategy, replica), scope:
            return fn(*own_args, **own_kwargs)

    def merge(payloads: list[Any]) -> Sequence[Any]:
        collect(scopes)
        merge_fn = payloads[0][0]
        merged_args, merged_kwargs = regroup([payload[1:] for payload in payloads])
        with context.entered(Frame(strategy)):
            result = merge_fn(strategy, *merged_args, **merged_kwargs)
        return [
            jax.tree.map(lambda leaf, d=device: _on(leaf, d), part_of(result, index))
            for index, device in enumerate(strategy.devices)
        ]

    results = Group(strategy.devices, merge).run(call)
    collect(scopes)
    return regroup(results)


@contextlib.contextmanager
def _as_replica(strategy: Any, replica: ReplicaContext) -> Iterator[None]:
    """Runs the block as `replica`.

    Raises:
        Unsupported: the block wants the maximum of no examples.
    """
    try:
        with context.entered(Frame(strategy, replica=replica)), strategy._creation():
            yield
    except ValueError as error:
        if replica.local_examples != 0 or "zero-size array" not in str(error):
            raise
        raise Unsupported(
            "A replica without examples runs the step on empty arrays, which have no maximum or "
            f"minimum. Received: {replica.global_examples} examples for "
            f"{replica.num_replicas_in_sync} replicas, and a step that takes one over all of a "
            "replica's examples, as float8 layers do. Feed batches of at least "
            f"{replica.num_replicas_in_sync} examples, the last one too, or pass `initial` to the "
            "reduction."
        ) from error


def _places(of_replica: Sequence[int], kind: int) -> list[int]:
    return [replica for replica, k in enumerate(of_replica) if k == kind]


def _on(leaf: Any, device: Any) -> Any:
    """An array as a replica can use it; what lies there, or anywhere, stays the same object."""
    is_elsewhere = (
        isinstance(leaf, jax.Array)
        and not is_traced(leaf)
        and leaf.committed
        and leaf.devices() != {device}
    )
    return jax.device_put(leaf, device) if is_elsewhere else leaf


def part_of(nest: Any, index: int) -> Any:
    """Replica `index`'s part of a nest that may hold per-replica values."""
    return jax.tree.map(
        lambda leaf: leaf.values[index] if is_per_replica(leaf) else leaf,
        nest,
        is_leaf=is_per_replica,
    )


def regroup(results: Sequence[Any]) -> Any:
    """Joins the replicas' results leaf by leaf; one and the same object comes back bare.

    Raises:
        InvalidArgument: the structures differ.
    """
    flat = [jax.tree.flatten(nest.opened(result), is_leaf=_is_variable) for result in results]
    trees = [tree for _, tree in flat]
    if any(tree != trees[0] for tree in trees[1:]):
        raise InvalidArgument(
            "Every replica must return the same structure: lists of one length, dicts with the "
            f"same keys. Received: {[str(tree) for tree in trees]}."
        )
    joined = []
    for parts in zip(*[leaves for leaves, _ in flat], strict=True):
        is_same = all(part is parts[0] for part in parts[1:])
        joined.append(parts[0] if is_same or len(parts) == 1 else PerReplica(parts))
    return nest.closed(jax.tree.unflatten(trees[0], joined))


def run_compiled(
    strategy: Any,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    loss_rule: LossRule,
    scope: TraceScope,
    num_steps: int | None = None,
    is_result_alike: bool = False,
) -> Any:
    """Traces `fn` and adds its program, for all replicas, to the step being traced.

    Args:
        strategy, fn, args, kwargs, loss_rule: as for `run`.
        scope: the scope of the surrounding trace, in cross-replica context.
        num_steps: the per-replica arguments hold this many steps, `[replica, step, ...]`; they
            run in a loop and the result is the last step's.
        is_result_alike: all replicas return the same arrays, which then come back bare.
    """
    scope.strategies.append(strategy)
    leaves, tree = jax.tree.flatten(nest.opened((args, kwargs)), is_leaf=is_per_replica)
    batches = [leaf for leaf in leaves if is_per_replica(leaf)]
    num_replicas = strategy.num_replicas_in_sync
    lead = 1 if num_steps is None else 2
    shapes = [
        [b.array.shape[lead:]] * num_replicas if b.shapes is None else b.shapes for b in batches
    ]
    signatures = [tuple(tuple(s[i]) for s in shapes) for i in range(num_replicas)]
    kinds = sorted(set(signatures), reverse=True)
    of_replica = [kinds.index(signature) for signature in signatures]
    per_kind = [_num_examples(signature) for signature in kinds]
    sizes = _known([per_kind[k] for k in of_replica])

    def trace(kind: tuple[Shape, ...], local: int | None, gathers: GatherLog) -> StepProgram:
        def call(*own: Any) -> Any:
            remaining = iter(own)
            filled = [next(remaining) if is_per_replica(leaf) else leaf for leaf in leaves]
            own_args, own_kwargs = nest.closed(jax.tree.unflatten(tree, filled))
            index, own_size = meeting.replica_id(), local if sizes else None
            replica = ReplicaContext(strategy, index, None, sizes, own_size, loss_rule, gathers)
            replica_scope.replica = replica
            with _as_replica(strategy, replica):
                return fn(*own_args, **own_kwargs)

        replica_scope = ReplicaScope(ReplicaContext(strategy, None))
        avals = [jax.ShapeDtypeStruct(s, b.array.dtype) for s, b in zip(kind, batches, strict=True)]
        return trace_step(call, avals, replica_scope)

    def trace_all(known: Sequence[tuple[Any, ...]], rounds: int = 0) -> list[Variant]:
        logs = [GatherLog(_places(of_replica, k), known) for k in range(len(kinds))]
        variants = [
            Variant(trace(kind, n, log), kind)
            for kind, n, log in zip(kinds, per_kind, logs, strict=True)
        ]
        own = zip(*[log.own for log in logs], strict=False)
        truth = [tuple(of_kind[k] for k in of_replica) for of_kind in own]
        if all(log.assumed[: len(truth)] == truth for log in logs):
            return variants
        if rounds == _MANY_ROUNDS:
            raise ReplicaMismatch(
                "The function given to run must do the same each time it is traced. Received: one "
                f"whose replicas bring other sizes or numbers to a meeting every time: {truth}. "
                "Pass numbers that change, such as random ones, to run through args, as arrays."
            )
        return trace_all(truth, rounds + 1)

    assembly = Assembly(trace_all(()), of_replica)
    arrays = [batch.array for batch in batches]
    outputs = _emit(strategy, assembly, arrays, scope, num_steps, is_result_alike)
    if is_result_alike:
        return assembly.restore(outputs)
    results = [
        PerReplica.stacked(output, assembly.output_shapes(i)) for i, output in enumerate(outputs)
    ]
    return assembly.restore(results)


def _emit(
    strategy: Any,
    assembly: Assembly,
    arrays: Sequence[Any],
    scope: TraceScope,
    num_steps: int | None,
    is_result_alike: bool,
) -> list[Any]:
    reads = [scope.storage(variable) for variable in assembly.reads]
    consts = [list(variant.program.consts) for variant in assembly.variants]
    stacked = [variable.placement.is_stacked for variable in assembly.reads]
    stacked_writes = [variable.placement.is_stacked for variable in assembly.writes]

    def body(reads: Any, arrays: Any, consts: Any) -> Any:
        own = [r[0] if is_stacked else r for r, is_stacked in zip(reads, stacked, strict=True)]
        own_arrays = [array[0] for array in arrays]
        if num_steps is None:
            written, outputs = assembly(own, own_arrays, consts)
        else:
            written, outputs = _repeat(assembly, own, own_arrays, consts)
        written = [w[None] if s else w for w, s in zip(written, stacked_writes, strict=True)]
        return written, outputs if is_result_alike else [output[None] for output in outputs]

    written, outputs = jax.shard_map(
        body,
        mesh=strategy.mesh,
        in_specs=(
            [_SPLIT if is_stacked else _SAME for is_stacked in stacked],
            [_SPLIT] * len(arrays),
            [[_SAME] * len(closed) for closed in consts],
        ),
        out_specs=(
            [_SPLIT if is_stacked else _SAME for is_stacked in stacked_writes],
            [_SAME if is_result_alike else _SPLIT] * assembly.num_outputs,
        ),
        check_vma=False,
    )(reads, list(arrays), consts)
    for variable, value in zip(assembly.writes, written, strict=True):
        scope.set_storage(variable, value)
    return outputs


def _repeat(assembly: Assembly, own: Any, arrays: Any, consts: Any) -> tuple[Any, Any]:
    """Runs one step per leading index of `arrays`; the state goes from step to step."""
    places = {id(variable): i for i, variable in enumerate(assembly.reads)}
    slots = [places[id(variable)] for variable in assembly.writes]

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        values = list(own)
        for slot, value in zip(slots, state, strict=True):
            values[slot] = value
        return assembly(values, batch, consts)

    state, outputs = jax.lax.scan(step, [own[slot] for slot in slots], arrays)
    return state, [output[-1] for output in outputs]


def is_per_replica(leaf: Any) -> bool:
    """Whether `leaf` holds one value per replica."""
    return isinstance(leaf, PerReplica)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, keras.Variable)


def _only(leaf: Any) -> Any:
    return leaf.values[0] if is_per_replica(leaf) else leaf


def _num_examples(shapes: Sequence[Shape]) -> int | None:
    """Examples of one replica: the leading dim of its first batch-like argument."""
    return next((shape[0] for shape in shapes if len(shape)), None)


def _example_sizes(parts: Sequence[tuple[Any, ...]], num_replicas: int) -> tuple[int, ...] | None:
    return _known(
        [
            _num_examples([jnp.shape(part[i]) for part in parts if hasattr(part[i], "shape")])
            for i in range(num_replicas)
        ]
    )


def _known(sizes: Sequence[int | None]) -> tuple[int, ...] | None:
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else None
