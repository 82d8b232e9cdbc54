"""The places where replicas meet, as JAX primitives of our own.

They stay visible in a traced step, so that one trace serves every assembly: under `shard_map` they
become collectives, in eager replicas a rendezvous of threads, and the message path cuts at
`commit`. `all_reduce` and `all_gather` are linear and carry their transposes, N-way always,
whichever Python objects the replicas pass (tf.distribute skips the reduction when all replicas
pass the same tensor object; see the table of deviations).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from paceline.errors import ContextError
from paceline.program import context
from paceline.types import VariableAggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AXIS = "replica"

all_reduce_p = jex.Primitive("all_reduce")
all_gather_p = jex.Primitive("all_gather")
commit_p = jex.Primitive("commit")
replica_id_p = jex.Primitive("replica_id")

MEETINGS = (all_reduce_p, all_gather_p, commit_p)


def all_reduce(value: Any) -> Any:
    """Returns the sum of `value`, an array of one shape on every replica, over the replicas."""
    value = jnp.asarray(value)
    if value.dtype == jnp.bool_:
        return all_reduce_p.bind(value.astype(jnp.int32))
    return all_reduce_p.bind(value)


def all_gather(value: Any, axis: int, sizes: Sequence[int]) -> Any:
    """Concatenates `value` over the replicas along `axis`, where replica i has `sizes[i]`."""
    return all_gather_p.bind(jnp.asarray(value), axis=axis, sizes=tuple(sizes))


def commit(
    value: Any,
    aggregation: VariableAggregation = VariableAggregation.SUM,
    share: float | None = None,
    home: int | None = None,
) -> Any:
    """Passes `value` on its way to a variable's home, combined over the replicas.

    Args:
        value: array, the replica's contribution, of one shape on every replica.
        aggregation: SUM, MEAN (weighted by `share`) or ONLY_FIRST_REPLICA.
        share: this replica's share of the step's examples. A replica with share 0 contributes
            exact zeros, so that a NaN computed from no examples stays with it.
        home: `id` of the variable whose gradient this is, where it is one.
    """
    return commit_p.bind(jnp.asarray(value), aggregation=aggregation, share=share, home=home)


def balanced(replica: context.Replica, meet: Callable[[Any], Any], value: Any) -> Any:
    """`meet(value)`, for a collective in the forward pass of a step whose replicas are uneven.

    Where the loss is the mean of the replicas' losses weighed with their shares (fit), `commit`
    weighs a gradient with the share of the replica it arrives at. What comes back through a
    collective stems from all replicas' losses: it is weighed with the share of each of them where
    it enters, and freed of that of the replica where it leaves.
    """
    sizes = replica.example_sizes
    is_even = sizes is None or len(set(sizes)) == 1
    if replica.loss_rule != "mean" or is_even or not jnp.issubdtype(value.dtype, jnp.inexact):
        return meet(value)
    if replica.share:
        value = _gradient_times(1 / replica.share, value)
    return _gradient_times(replica.share, meet(value))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradient_times(factor: float, value: Any) -> Any:
    return value


@_gradient_times.defjvp
def _gradient_times_jvp(factor: float, primals: Any, tangents: Any) -> tuple[Any, Any]:
    return primals[0], tangents[0] * factor


def replica_id() -> Any:
    """The index of the replica, a scalar int32."""
    return replica_id_p.bind()


def contribution(primitive: Any, params: dict[str, Any], value: Any, index: Any) -> Any:
    """What one replica puts into the sum at a meeting that is a sum (all but `all_gather`)."""
    if primitive is all_reduce_p:
        return value
    aggregation, share = params["aggregation"], params["share"]
    if share == 0 and aggregation is not VariableAggregation.ONLY_FIRST_REPLICA:
        return jnp.zeros_like(value)
    if aggregation is VariableAggregation.MEAN:
        return value * jnp.asarray(share, value.dtype)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return jnp.where(index == 0, value, jnp.zeros_like(value))
    return value


def _group() -> Any:
    """The eager replicas that meet; the primitives reach Python only there."""
    replica = context.replica_context()
    if replica is None or replica.group is None:
        raise ContextError(
            "Replicas meet only inside strategy.run(...). Received: a collective outside of it, "
            "or inside a function compiled with jax.jit. Call it from the function given to "
            "strategy.run, and compile with paceline.function instead of jax.jit."
        )
    return replica.group


@all_reduce_p.def_impl
def _all_reduce_now(value: Any) -> Any:
    return _group().sum(value)


@all_gather_p.def_impl
def _all_gather_now(value: Any, *, axis: int, sizes: tuple[int, ...]) -> Any:
    return _group().concatenate(value, axis)


@commit_p.def_impl
def _commit_now(value: Any, **params: Any) -> Any:
    group = _group()
    return group.sum(contribution(commit_p, params, value, group.index))


@replica_id_p.def_impl
def _replica_id_now() -> Any:
    return jnp.asarray(_group().index, jnp.int32)


@all_reduce_p.def_abstract_eval
def _all_reduce_shape(value: Any) -> Any:
    return value


@commit_p.def_abstract_eval
def _commit_shape(value: Any, **_: Any) -> Any:
    return value


@all_gather_p.def_abstract_eval
def _all_gather_shape(value: Any, *, axis: int, sizes: tuple[int, ...]) -> Any:
    shape = list(value.shape)
    shape[axis] = sum(sizes)
    return ShapedArray(tuple(shape), value.dtype)


@replica_id_p.def_abstract_eval
def _replica_id_shape() -> Any:
    return ShapedArray((), np.dtype("int32"))


def _refuse_lowering(*_: Any, **__: Any) -> Any:
    raise ContextError(
        "Replicas that run eagerly cannot meet inside code that JAX compiles on its own (the body "
        "of scan, cond or while_loop, or a function under jax.jit). Received: a collective or an "
        "aggregated assignment there. Make the function given to strategy.run a paceline.function."
    )


for _primitive in (*MEETINGS, replica_id_p):
    mlir.register_lowering(_primitive, _refuse_lowering)


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, ad.Zero)


def _all_reduce_transpose(cotangent: Any, value: Any) -> list[Any]:
    return [ad.Zero(value.aval) if _is_zero(cotangent) else all_reduce_p.bind(cotangent)]


def _commit_transpose(
    cotangent: Any, value: Any, *, aggregation: Any, share: Any, home: Any
) -> list[Any]:
    if _is_zero(cotangent):
        return [ad.Zero(value.aval)]
    total = all_reduce_p.bind(cotangent)
    params = {"aggregation": aggregation, "share": share}
    index = replica_id() if aggregation is VariableAggregation.ONLY_FIRST_REPLICA else None
    return [contribution(commit_p, params, total, index)]


def _all_gather_transpose(cotangent: Any, value: Any, *, axis: int, sizes: Any) -> list[Any]:
    if _is_zero(cotangent):
        return [ad.Zero(value.aval)]
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
    start = jnp.asarray(offsets)[replica_id()]
    total = all_reduce_p.bind(cotangent)
    return [jax.lax.dynamic_slice_in_dim(total, start, value.aval.shape[axis], axis)]


ad.deflinear2(all_reduce_p, _all_reduce_transpose)
ad.deflinear2(commit_p, _commit_transpose)
ad.deflinear2(all_gather_p, _all_gather_transpose)


def _batch_elementwise(primitive: Any) -> None:
    def rule(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
        return primitive.bind(args[0], **params), dims[0]

    batching.primitive_batchers[primitive] = rule


def _batch_all_gather(args: Any, dims: Any, *, axis: int, sizes: Any) -> tuple[Any, Any]:
    moved = jnp.moveaxis(args[0], dims[0], 0)
    return all_gather_p.bind(moved, axis=axis + 1, sizes=sizes), 0


_batch_elementwise(all_reduce_p)
_batch_elementwise(commit_p)
batching.primitive_batchers[all_gather_p] = _batch_all_gather
