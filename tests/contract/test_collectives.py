"""`all_reduce` and `all_gather` with their gradients: items 58 to 60 and 68 of the contract."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.testing import EXACT, REFERENCE, assert_close
from replica_values import distributed, mirrored_strategy, one_per_replica, per_replica
from replica_values import replica_number as number

ReduceOp = tf.distribute.ReduceOp

on_1_to_4_replicas = pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
SPELLINGS = [ReduceOp.SUM, "SUM", "sum", "Sum"]


def context() -> Any:
    return tf.distribute.get_replica_context()


@pytest.mark.contract(58)
def test_all_reduce_takes_and_gives_a_nest(run: Any, mirrored: Any) -> None:
    def replica_fn(op: Any) -> Any:
        nest = (one_per_replica([1.0, 3.0]), one_per_replica([[39.0, 2.0], [3.0, 41.0]]))
        return context().all_reduce(op, {"nest": [nest]})["nest"][0]

    total = run(mirrored, lambda: replica_fn("SUM"))
    assert per_replica(mirrored, total[0]) == [4, 4]
    assert per_replica(mirrored, total[1]) == [[42, 43]] * 2
    mean = run(mirrored, lambda: replica_fn(ReduceOp.MEAN))
    assert per_replica(mirrored, mean[0]) == [2, 2]
    assert per_replica(mirrored, mean[1]) == [[21, 21.5]] * 2


@pytest.mark.contract(58)
@on_1_to_4_replicas
def test_all_reduce_counts_every_replica(run: Any, mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    total = run(mirrored, lambda: context().all_reduce("sum", number() + 1))
    assert per_replica(mirrored, total) == [sum(range(1, count + 1))] * count
    mean = run(mirrored, lambda: context().all_reduce("mean", number() + 1))
    assert per_replica(mirrored, mean) == [(count + 1) / 2] * count


@pytest.mark.contract(58)
@pytest.mark.parametrize("op", SPELLINGS)
def test_the_operation_is_a_member_or_its_name(mirrored: Any, op: Any) -> None:
    assert per_replica(mirrored, mirrored.run(lambda: context().all_reduce(op, number()))) == [1, 1]


@pytest.mark.contract(58)
def test_an_unknown_operation_is_refused(run: Any, mirrored: Any) -> None:
    with pytest.raises(ValueError, match=r"must be one of SUM, MEAN.*'max'"):
        run(mirrored, lambda: context().all_reduce("max", number()))
    with pytest.raises(TypeError, match="must be a ReduceOp"):
        run(mirrored, lambda: context().all_reduce(None, number()))


@pytest.mark.contract(58)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "bfloat16", "float32"])
def test_a_sum_keeps_its_dtype_and_a_mean_is_a_float(run: Any, mirrored: Any, dtype: str) -> None:
    result = run(
        mirrored,
        lambda: [
            context().all_reduce(op, one_per_replica([1, 2], dtype)) for op in ("sum", "mean")
        ],
    )
    (total, *_), (mean, *_) = (mirrored.experimental_local_results(x) for x in result)
    assert total.dtype == dtype
    assert total == 3
    assert mean == 1.5
    assert mean.dtype == (dtype if "float" in dtype else "float32")


@pytest.mark.contract(58)
def test_different_shapes_are_refused(mirrored: Any) -> None:
    with pytest.raises(ValueError, match=r"must have one shape.*\(1,\), \(2,\).*all_gather"):
        mirrored.run(
            lambda: context().all_reduce(
                "sum", jnp.ones(int(context().replica_id_in_sync_group) + 1)
            )
        )


@pytest.mark.contract(58)
def test_a_per_replica_value_from_outside_is_refused(run: Any, mirrored: Any) -> None:
    captured = distributed(mirrored, 1.0, 2.0)
    with pytest.raises(ValueError, match=r"(?s)this replica's value.*through args"):
        run(mirrored, lambda: context().all_reduce("sum", captured))


@pytest.mark.contract(58)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_collectives_stand_inside_control_flow(run: Any, mirrored: Any, collective: str) -> None:
    def body(carry: Any, _: Any) -> Any:
        if collective == "all_reduce":
            new = context().all_reduce("sum", carry + number())
        else:
            new = context().all_gather((carry + number())[None], 0).sum()
        return new, None

    def replica_fn() -> Any:
        return jax.lax.scan(body, jnp.zeros(()), None, length=3)[0]

    if run.__name__ == "_run_eagerly":
        with pytest.raises(tf.errors.ContextError, match=r"paceline\.function"):
            run(mirrored, replica_fn)
    else:
        assert per_replica(mirrored, run(mirrored, replica_fn)) == [7, 7]


def _loss_gradient(reduce: Any, factors: Any, value: Any) -> Any:
    """The gradient of sum(reduce(x) * c), through the tape, where c differs per replica."""

    def replica_fn() -> Any:
        x = value()
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = jnp.sum(reduce(x) * one_per_replica(factors))
        return tape.gradient(loss, x)

    return replica_fn


@pytest.mark.contract(59)
@pytest.mark.parametrize(("op", "expected"), [("sum", [4, 4]), ("mean", [2, 2])])
def test_the_gradient_of_all_reduce(run: Any, mirrored: Any, op: str, expected: Any) -> None:
    replica_fn = _loss_gradient(
        lambda x: context().all_reduce(op, x), [1.0, 3.0], lambda: number() + 2
    )
    assert per_replica(mirrored, run(mirrored, replica_fn)) == expected


@pytest.mark.contract(59)
@pytest.mark.parametrize("num_replicas", [2, 3, 4])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_the_gradient_is_that_of_the_sum_of_all_losses(run: Any, mirrored: Any, op: str) -> None:
    count = mirrored.num_replicas_in_sync
    factors = [float(i + 1) for i in range(count)]

    def losses(x: Any) -> Any:
        reduced = x.sum() if op == "sum" else x.mean()
        return jnp.sum(reduced**2 * jnp.asarray(factors))

    expected = jax.grad(losses)(jnp.arange(float(count)) + 2)
    replica_fn = _loss_gradient(
        lambda x: context().all_reduce(op, x) ** 2, factors, lambda: number() + 2
    )
    assert_close(per_replica(mirrored, run(mirrored, replica_fn)), expected.tolist(), REFERENCE)


@pytest.mark.contract(59)
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_the_gradient_on_one_device(run: Any, op: str) -> None:
    strategy = tf.distribute.OneDeviceStrategy("cpu:0")
    replica_fn = _loss_gradient(
        lambda x: context().all_reduce(op, x), [4.0], lambda: jnp.asarray(2.0)
    )
    assert run(strategy, replica_fn) == 4


@pytest.mark.contract(59)
def test_jax_grad_differentiates_collectives(mirrored: Any) -> None:
    def loss(x: Any) -> Any:
        return context().all_reduce("sum", x) * one_per_replica([1.0, 3.0])

    gradients = mirrored.run(tf.function(lambda: jax.grad(loss)(number())))
    assert per_replica(mirrored, gradients) == [4, 4]


@pytest.mark.contract(60)
def test_all_reduce_reads_a_mirrored_variable(run: Any, mirrored: Any) -> None:
    with mirrored.scope():
        variable = tf.Variable(2.0)
    result = run(mirrored, lambda: context().all_reduce("SUM", variable) + number())
    assert per_replica(mirrored, result) == [4, 5]


@pytest.mark.contract(60)
@on_1_to_4_replicas
def test_all_reduce_is_n_way_whatever_the_objects(run: Any, mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    captured = jnp.asarray(3.0)

    def replica_fn(passed: Any) -> Any:
        values = [jnp.asarray(3.0), captured, passed, 3.0]
        return context().all_reduce("SUM", values)

    for result in run(mirrored, replica_fn, captured):
        assert per_replica(mirrored, result) == [3 * count] * count


@pytest.mark.contract(60, 68)
@on_1_to_4_replicas
def test_all_gather_is_n_way_whatever_the_objects(run: Any, mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    captured = jnp.ones(1)
    result = run(mirrored, lambda: context().all_gather([captured, jnp.ones(1)], axis=0))
    for gathered in result:
        assert per_replica(mirrored, gathered) == [[1] * count] * count


@pytest.mark.contract(68)
@on_1_to_4_replicas
def test_all_gather_concatenates_in_replica_order(run: Any, mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    same = run(mirrored, lambda: context().all_gather(jnp.asarray([1.0, 2.0, 3.0]), axis=0))
    assert per_replica(mirrored, same) == [[1, 2, 3] * count] * count
    own = run(mirrored, lambda: context().all_gather(number()[None, None], axis=-1))
    assert per_replica(mirrored, own) == [[list(range(count))]] * count


@pytest.mark.contract(68)
def test_all_gather_takes_and_gives_a_nest(run: Any, mirrored: Any) -> None:
    nest = run(
        mirrored,
        lambda: context().all_gather({"a": number()[None], "b": (jnp.ones([1, 2]),)}, axis=0),
    )
    assert per_replica(mirrored, nest["a"]) == [[0, 1]] * 2
    assert per_replica(mirrored, nest["b"][0]) == [[[1, 1], [1, 1]]] * 2


@pytest.mark.contract(68)
@pytest.mark.parametrize("num_replicas", [2, 3, 4])
def test_all_gather_takes_different_sizes_along_the_axis(run: Any, mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    parts = [np.full([i, 2], i, np.float32) for i in reversed(range(count))]
    x = distributed(mirrored, *parts)
    result = run(mirrored, lambda x: context().all_gather(x, axis=0), x)
    whole = np.concatenate(parts)
    assert per_replica(mirrored, result) == [whole.tolist()] * count


@pytest.mark.contract(68)
def test_all_gather_of_what_a_replica_made_in_its_own_size(run: Any, mirrored: Any) -> None:
    x = distributed(mirrored, np.ones(3), np.ones(1))
    result = run(mirrored, lambda x: context().all_gather(jnp.repeat(x, 2), axis=0), x)
    assert per_replica(mirrored, result) == [[1] * 8] * 2


@pytest.mark.contract(68)
def test_all_gather_needs_the_axis_and_equal_other_dims(run: Any, mirrored: Any) -> None:
    with pytest.raises(ValueError, match=r"a dim that they have.*\(\).*axis=0"):
        run(mirrored, lambda: context().all_gather(number(), axis=0))
    with pytest.raises(ValueError, match=r"a dim that they have.*\(2,\).*axis=1"):
        run(mirrored, lambda: context().all_gather(jnp.ones(2), axis=1))


@pytest.mark.contract(68)
@pytest.mark.parametrize("of_replica", [lambda i: (1, i + 1), lambda i: (1,) * (i + 1)])
def test_all_gather_refuses_other_shapes(mirrored: Any, of_replica: Any) -> None:
    def replica_fn() -> Any:
        shape = of_replica(int(context().replica_id_in_sync_group))
        return context().all_gather(jnp.ones(shape), axis=0)

    with pytest.raises(ValueError, match=r"must agree in rank and in all dims but the gathered"):
        mirrored.run(replica_fn)


@pytest.mark.contract(68)
def test_the_gradient_of_all_gather(run: Any, mirrored: Any) -> None:
    replica_fn = _loss_gradient(
        lambda x: context().all_gather(x, axis=0), [1.0, 2.0], lambda: jnp.asarray([[3.0], [5.0]])
    )
    assert per_replica(mirrored, run(mirrored, replica_fn)) == [[[3], [3]]] * 2


@pytest.mark.contract(68)
def test_the_gradient_of_all_gather_with_different_sizes(run: Any, mirrored: Any) -> None:
    x = distributed(mirrored, np.float32([1, 2, 3]), np.float32([4]))

    def replica_fn(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            weights = jnp.arange(1.0, 5.0) * one_per_replica([1.0, 10.0])
            loss = jnp.sum(context().all_gather(x, axis=0) * weights)
        return tape.gradient(loss, x)

    assert per_replica(mirrored, run(mirrored, replica_fn, x)) == [[11, 22, 33], [44]]


@pytest.mark.contract(58, 68)
def test_one_device_and_default_strategies_are_the_identity(run: Any) -> None:
    for strategy in (tf.distribute.OneDeviceStrategy("cpu:0"), tf.distribute.get_strategy()):
        x = jnp.asarray([1.0, 2.0])
        reduced = run(strategy, lambda x: context().all_reduce("mean", {"x": x}), x)
        assert_close(reduced["x"], [1, 2], EXACT)
        assert_close(run(strategy, lambda x: context().all_gather(x, axis=0), x), [1, 2], EXACT)


@pytest.mark.contract(58)
def test_collectives_outside_of_run_say_where_they_belong(mirrored: Any) -> None:
    kept: list[Any] = []
    mirrored.run(lambda: kept.append(context()))
    with pytest.raises(RuntimeError, match=r"only inside strategy\.run"):
        kept[0].all_reduce("sum", jnp.ones(()))


@pytest.mark.contract(54, 58)
def test_all_replicas_must_reach_a_collective() -> None:
    mirrored = mirrored_strategy(3)

    def replica_fn() -> None:
        if int(context().replica_id_in_sync_group) != 1:
            context().all_reduce("sum", jnp.ones(()))

    with pytest.raises(RuntimeError, match=r"same meeting points.*replica 1 at its end"):
        mirrored.run(replica_fn)
