"""`reduce`, `gather`, distributed values and scaled losses: items 61 to 67, 69 and 113."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.testing import REFERENCE, assert_close
from paceline.types import PerReplica
from replica_values import distributed, mirrored_strategy, per_replica
from replica_values import replica_number as number

ReduceOp = tf.distribute.ReduceOp

on_1_to_4_replicas = pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
on_2_to_4_replicas = pytest.mark.parametrize("num_replicas", [2, 3, 4])


def context() -> Any:
    return tf.distribute.get_replica_context()


@pytest.fixture(params=["outside", "in scope", "in function"])
def reduce(request: pytest.FixtureRequest) -> Any:
    """`strategy.reduce` as `reduce(strategy, op, value, axis)`, in each place that allows it."""

    def call(strategy: Any, op: Any, value: Any, axis: Any) -> Any:
        if request.param == "in scope":
            with strategy.scope():
                return strategy.reduce(op, value, axis=axis)
        if request.param == "in function":
            compiled = tf.function(lambda value: strategy.reduce(op, value, axis=axis))
            return compiled(value)
        return strategy.reduce(op, value, axis=axis)

    return call


# reduce -----------------------------------------------------------------------------------------


@pytest.mark.contract(61)
@on_1_to_4_replicas
def test_reduce_adds_the_replicas_values(run: Any, reduce: Any, mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    ids = run(mirrored, number)
    assert reduce(mirrored, "sum", ids, None) == sum(range(count))
    assert reduce(mirrored, "mean", ids, None) == sum(range(count)) / count


@pytest.mark.contract(61)
@on_1_to_4_replicas
def test_reduce_over_an_axis(run: Any, reduce: Any, mirrored: Any) -> None:
    value = run(mirrored, lambda: jnp.asarray([1.0, 2.0]))
    assert reduce(mirrored, ReduceOp.MEAN, value, 0) == 1.5
    assert reduce(mirrored, ReduceOp.SUM, value, 0) == 3 * mirrored.num_replicas_in_sync


@pytest.mark.contract(61)
def test_reduce_inside_the_function_that_ran(mirrored: Any) -> None:
    @tf.function
    def step() -> Any:
        value = mirrored.run(lambda: {"x": number() + 1})
        return mirrored.reduce("sum", value["x"], axis=None)

    assert step() == 3


@pytest.mark.contract(61)
def test_reduce_takes_a_nest_where_the_axis_is_none(reduce: Any, mirrored: Any) -> None:
    nest = {"a": distributed(mirrored, 1.0, 2.0), "b": (distributed(mirrored, [1, 2], [3, 4]),)}
    result = reduce(mirrored, "sum", nest, None)
    assert_close(result, {"a": 3, "b": ([4, 6],)})


@pytest.mark.contract(62)
@on_1_to_4_replicas
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_reduce_weights_by_true_length(reduce: Any, mirrored: Any, dtype: str) -> None:
    ids = range(mirrored.num_replicas_in_sync)
    value = distributed(mirrored, *[np.full(i + 1, i, dtype) for i in ids])
    total, length = sum(i * (i + 1) for i in ids), sum(i + 1 for i in ids)
    assert reduce(mirrored, "SUM", value, 0) == total
    assert_close(reduce(mirrored, "MEAN", value, 0), np.float32(total / length), REFERENCE)


@pytest.mark.contract(62)
def test_reduce_takes_what_eager_replicas_of_their_own_length_return(mirrored: Any) -> None:
    def replica_fn() -> Any:
        index = int(context().replica_id_in_sync_group)
        return jnp.asarray([float(index)] * (index + 1))

    value = mirrored.run(replica_fn)
    assert mirrored.reduce("SUM", value, axis=0) == 2
    assert_close(mirrored.reduce("MEAN", value, axis=0), np.float32(2 / 3))


@pytest.mark.contract(63)
def test_reduce_of_different_lengths(reduce: Any, mirrored: Any) -> None:
    value = distributed(mirrored, [0.0, 1.0, 2.0, 3.0], [4.0, 5.0])
    with pytest.raises(ValueError, match=r"must have one shape.*\(4,\), \(2,\).*axis=0"):
        reduce(mirrored, "SUM", value, None)
    for axis in (0, -1):
        assert reduce(mirrored, "SUM", value, axis) == 15
        assert reduce(mirrored, "MEAN", value, axis) == 2.5
    with pytest.raises(ValueError, match=r"must be a dim of every replica's value.*axis=1"):
        reduce(mirrored, "SUM", value, 1)


@pytest.mark.contract(64)
def test_an_empty_replica_counts_nothing(reduce: Any, mirrored: Any) -> None:
    value = distributed(mirrored, np.float32([3, 5]), np.zeros(0, np.float32))
    assert reduce(mirrored, "MEAN", value, 0) == 4
    assert reduce(mirrored, "SUM", value, 0) == 8


@pytest.mark.contract(64)
@pytest.mark.parametrize("axis", [(0, 1), [0, 1], (-2, -1)])
def test_reduce_over_several_axes(reduce: Any, mirrored: Any, axis: Any) -> None:
    first = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = distributed(mirrored, first, first + 10)
    assert reduce(mirrored, "MEAN", value, axis) == 7.5
    assert reduce(mirrored, "SUM", value, axis) == 90
    assert_close(reduce(mirrored, "SUM", value, 1), [36, 54])


@pytest.mark.contract(65)
@pytest.mark.case("R13")
@on_2_to_4_replicas
def test_a_value_that_all_share_has_a_mean_and_no_sum(mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    shared = jnp.asarray(2.0)
    assert mirrored.reduce("MEAN", shared, axis=None) is shared
    assert mirrored.reduce("MEAN", 8.0, axis=None) == 8
    assert mirrored.reduce("SUM", np.zeros(()), axis=None) == 0
    with pytest.raises(ValueError, match="same on every replica"):
        mirrored.reduce("SUM", shared, axis=None)
    with pytest.raises(
        ValueError,
        match=rf"8\.0 is the same on every replica: did you mean {8.0 * count} or 8\.0\?",
    ):
        mirrored.reduce("SUM", 8.0, axis=None)


@pytest.mark.contract(65)
def test_a_mirrored_variable_has_a_mean_and_no_sum(mirrored: Any) -> None:
    with mirrored.scope():
        variable = tf.Variable(2.0)
    assert mirrored.reduce("MEAN", variable, axis=None) is variable
    with pytest.raises(ValueError, match="same on every replica"):
        mirrored.reduce("SUM", variable, axis=None)


@pytest.mark.contract(65)
@pytest.mark.parametrize(
    "make",
    [
        lambda: mirrored_strategy(1),
        lambda: tf.distribute.OneDeviceStrategy("cpu:0"),
        tf.distribute.get_strategy,
    ],
)
def test_one_replica_reduces_to_its_value(make: Any) -> None:
    strategy, value = make(), jnp.asarray(2.0)
    for op in ("SUM", "MEAN"):
        assert strategy.reduce(op, value, axis=None) is value
    assert strategy.reduce("SUM", jnp.asarray([1.0, 2.0]), axis=0) == 3
    assert strategy.reduce("MEAN", jnp.asarray([1.0, 2.0]), axis=0) == 1.5


@pytest.mark.contract(66)
@pytest.mark.parametrize("op", ["sum", "SUM", "Sum", ReduceOp.SUM])
def test_the_operation_is_a_member_or_its_name(mirrored: Any, op: Any) -> None:
    assert mirrored.reduce(op, distributed(mirrored, 1.0, 2.0), axis=None) == 3


@pytest.mark.contract(66)
def test_an_unknown_operation_is_refused(mirrored: Any) -> None:
    value = distributed(mirrored, 1.0, 2.0)
    with pytest.raises(ValueError, match=r"one of SUM, MEAN.*Received: 'max'"):
        mirrored.reduce("max", value, axis=None)
    with pytest.raises(TypeError, match=r"must be a ReduceOp.*Received: 3"):
        mirrored.reduce(3, value, axis=None)
    with pytest.raises(TypeError, match="axis"):
        mirrored.reduce("sum", value)


@pytest.mark.contract(66)
def test_the_mean_of_integers_is_a_float(reduce: Any, mirrored: Any) -> None:
    mean = reduce(mirrored, "mean", distributed(mirrored, np.int32(1), np.int32(2)), None)
    assert mean == 1.5
    assert jnp.issubdtype(mean.dtype, jnp.floating)
    along = reduce(mirrored, "mean", distributed(mirrored, np.int32([1]), np.int32([2])), 0)
    assert along == 1.5
    total = reduce(mirrored, "sum", distributed(mirrored, np.int32(1), np.int32(2)), None)
    assert total == 3
    assert total.dtype == "int32"


@pytest.mark.case("R17")
def test_parts_of_the_mean_are_summed(run: Any, mirrored: Any) -> None:
    losses = distributed(mirrored, [2.0, 3.0], [4.0, 5.0])
    parts = run(mirrored, lambda x: x.sum() / 4, losses)
    assert per_replica(mirrored, parts) == [1.25, 2.25]
    assert mirrored.reduce("SUM", parts, axis=None) == 3.5


# gather -----------------------------------------------------------------------------------------


@pytest.mark.contract(67)
@on_1_to_4_replicas
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_concatenates_in_replica_order(mirrored: Any, axis: int) -> None:
    count = mirrored.num_replicas_in_sync
    lengths = [(i + 1, 1) if axis == 0 else (1, i + 1) for i in range(count)]
    value = distributed(mirrored, *[np.full(s, i, np.float32) for i, s in enumerate(lengths)])
    expected = np.repeat(np.arange(count), np.arange(count) + 1)
    for along in (axis, axis - 2):
        whole = mirrored.gather(value, axis=along)
        assert_close(whole, expected[:, None] if axis == 0 else expected[None])


@pytest.mark.contract(67)
def test_gather_inside_a_function(run: Any, mirrored: Any) -> None:
    @tf.function
    def step() -> Any:
        return mirrored.gather(mirrored.run(lambda: number()[None]), axis=0)

    assert_close(step(), [0, 1])
    assert_close(mirrored.gather(run(mirrored, lambda: number()[None]), axis=0), [0, 1])


@pytest.mark.contract(67)
@pytest.mark.parametrize(
    "values",
    [
        (np.ones([1, 1]), np.ones([1, 2])),
        (np.ones([1]), np.ones([1, 1])),
        (np.ones([1, 2, 3]), np.ones([1, 3, 2])),
    ],
)
def test_gather_needs_equal_other_dims(mirrored: Any, values: Any) -> None:
    with pytest.raises(ValueError, match=r"must agree in rank and in all dims but the gathered"):
        mirrored.gather(distributed(mirrored, *values), axis=0)


@pytest.mark.contract(67)
def test_gather_needs_the_axis(mirrored: Any) -> None:
    with pytest.raises(ValueError, match=r"scalars have none.*axis=0"):
        mirrored.gather(distributed(mirrored, 1.0, 2.0), axis=0)
    with pytest.raises(ValueError, match=r"a dim that they have.*axis=1"):
        mirrored.gather(distributed(mirrored, [1.0], [2.0]), axis=1)


@pytest.mark.contract(67)
def test_gather_of_a_plain_array_is_itself(mirrored: Any) -> None:
    plain = jnp.ones(3)
    assert mirrored.gather(plain, axis=0) is plain


@pytest.mark.contract(67)
@on_1_to_4_replicas
def test_gather_inside_run_points_at_all_gather(run: Any, mirrored: Any) -> None:
    with pytest.raises(RuntimeError, match="all_gather"):
        run(mirrored, lambda: mirrored.gather(number()[None], axis=0))


# Distributed values -----------------------------------------------------------------------------


@pytest.mark.contract(69)
@on_2_to_4_replicas
def test_values_from_a_function(run: Any, mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    seen: list[Any] = []

    def value_fn(context: Any) -> Any:
        seen.append(context)
        return context.replica_id_in_sync_group

    ids = mirrored.experimental_distribute_values_from_function(value_fn)
    assert isinstance(ids, PerReplica)
    assert mirrored.experimental_local_results(ids) == tuple(range(count))
    assert all(isinstance(c, tf.distribute.experimental.ValueContext) for c in seen)
    assert {c.num_replicas_in_sync for c in seen} == {count}
    squares = run(mirrored, lambda x: jnp.asarray(x) * x, ids)
    assert per_replica(mirrored, squares) == [i * i for i in range(count)]


@pytest.mark.contract(69)
def test_values_from_a_function_keep_their_nest(mirrored: Any) -> None:
    nest = mirrored.experimental_distribute_values_from_function(
        lambda context: tuple(i * context.replica_id_in_sync_group for i in (1, 2, 3))
    )
    assert [x.values for x in nest] == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.contract(69)
def test_equal_values_are_still_per_replica(mirrored: Any) -> None:
    same = mirrored.experimental_distribute_values_from_function(lambda _: 5)
    assert isinstance(same, PerReplica)
    assert same.values == (5, 5)


@pytest.mark.contract(69)
@pytest.mark.parametrize(
    "make", [lambda: tf.distribute.OneDeviceStrategy("cpu:0"), tf.distribute.get_strategy]
)
def test_one_replica_gets_its_value_bare(make: Any) -> None:
    strategy = make()
    assert strategy.experimental_distribute_values_from_function(lambda _: "value") == "value"
    assert strategy.experimental_local_results("value") == ("value",)


@pytest.mark.contract(69)
def test_parts_lie_on_their_devices_and_combine_in_numpy() -> None:
    strategy = mirrored_strategy(2)
    first, second = strategy.experimental_local_results(distributed(strategy, 1.0, 2.0))
    assert [part.devices() for part in (first, second)] == [{d} for d in strategy.devices]
    with pytest.raises(ValueError, match="incompatible devices"):
        first + second
    assert np.add(first, second) == float(first) + float(second) == 3


@pytest.mark.contract(69)
def test_local_results_of_nests_and_plain_values(mirrored: Any) -> None:
    nest = {"a": distributed(mirrored, 1.0, 2.0), "b": [3]}
    assert mirrored.experimental_local_results(nest) == ({"a": 1, "b": [3]}, {"a": 2, "b": [3]})
    assert mirrored.experimental_local_results(7) == (7,)
    assert mirrored.experimental_local_results([7, 8]) == ([7, 8],)


@pytest.mark.contract(69)
def test_a_value_context_has_defaults() -> None:
    context = tf.distribute.experimental.ValueContext()
    assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (0, 1)


@pytest.mark.case("R128")
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_per_replica_values_explain_themselves(mirrored: Any, mode: str) -> None:
    fn = (lambda: number()) if mode == "eager" else tf.function(lambda: number())
    value = mirrored.run(fn)
    shown = repr(value)
    assert "PerReplica" in shown
    assert "0: " in shown
    assert "1: " in shown
    advice = r"(?s)experimental_local_results.*reduce.*gather.*strategy\.run"
    for use in (
        np.asarray,
        float,
        int,
        bool,
        len,
        list,
        lambda x: x + 1,
        lambda x: 1 + x,
        lambda x: x * x,
        lambda x: -x,
        lambda x: x[0],
        lambda x: x > 0,
        lambda x: x @ x,
        lambda x: x // 2,
        lambda x: x % 2,
        lambda x: abs(x),
        lambda x: jnp.asarray(1.0) + x,
        lambda x: np.ones(2) + x,
        jnp.asarray,
        jnp.sum,
    ):
        with pytest.raises(TypeError, match=advice):
            use(value)
    assert per_replica(mirrored, value) == [0, 1]
    rows = mirrored.run(lambda: number()[None, None])
    assert_close(mirrored.gather(rows, axis=0), [[0], [1]])


@pytest.mark.case("R128")
def test_one_replica_returns_plain_values() -> None:
    value = mirrored_strategy(1).run(number)
    assert float(value + 1) == 1


# Losses -----------------------------------------------------------------------------------------


@pytest.mark.contract(113)
def test_the_average_loss_is_this_replicas_part(run: Any, mirrored: Any) -> None:
    def replica_fn() -> Any:
        loss = jnp.asarray([2.0, 4.0])
        return [
            tf.nn.compute_average_loss(loss),
            tf.nn.compute_average_loss(loss, global_batch_size=8),
            tf.nn.compute_average_loss(loss, global_batch_size=jnp.asarray(8)),
            tf.nn.compute_average_loss(loss, sample_weight=jnp.asarray([1.0, 0.5])),
            tf.nn.compute_average_loss([2, 4], global_batch_size=0),
            tf.nn.scale_regularization_loss(6.0),
            tf.nn.scale_regularization_loss(jnp.asarray([2.0, 4.0])),
        ]

    parts = run(mirrored, replica_fn)
    values = [per_replica(mirrored, part) for part in parts]
    assert values == [[x, x] for x in (1.5, 0.75, 0.75, 1, 0, 3, 3)]


@pytest.mark.contract(113)
@on_1_to_4_replicas
def test_scaled_losses_add_up(run: Any, mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    result = run(
        mirrored,
        lambda: (
            tf.nn.compute_average_loss(jnp.asarray([2.0, 4.0]) * (number() + 1)),
            tf.nn.scale_regularization_loss(6.0),
        ),
    )
    mean, regularization = (mirrored.reduce("sum", part, axis=None) for part in result)
    assert_close(mean, np.float32(3 * (count + 1) / 2))
    assert_close(regularization, np.float32(6))


@pytest.mark.contract(113)
def test_scaled_losses_across_replicas_raise(mirrored: Any) -> None:
    one_device = tf.distribute.OneDeviceStrategy("cpu:0")
    for strategy in (mirrored, one_device):
        with strategy.scope():
            with pytest.raises(RuntimeError, match=r"compute_average_loss.*global_batch_size"):
                tf.nn.compute_average_loss([2.0, 4.0])
            assert tf.nn.compute_average_loss([2.0, 4.0], global_batch_size=4) == 1.5
            with pytest.raises(RuntimeError, match=r"scale_regularization_loss.*strategy\.run"):
                tf.nn.scale_regularization_loss(6.0)


@pytest.mark.contract(113)
def test_scaled_losses_without_a_strategy() -> None:
    assert tf.nn.compute_average_loss([2.0, 4.0]) == 3
    assert tf.nn.compute_average_loss(jnp.zeros(0)) == 0
    assert tf.nn.scale_regularization_loss([2.0, 4.0]) == 6


@pytest.mark.contract(113)
def test_wrong_losses_and_divisors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot be negative.*global_batch_size=-1"):
        tf.nn.compute_average_loss([2.0], global_batch_size=-1)
    with pytest.raises(ValueError, match=r"is one number.*shape \(2,\)"):
        tf.nn.compute_average_loss([2.0], global_batch_size=np.ones(2))
    with pytest.raises(ValueError, match=r"given per example.*scalar"):
        tf.nn.compute_average_loss(2.0)
    with pytest.raises(ValueError, match=r"Sample weights.*\(3,\).*\(2,\)"):
        tf.nn.compute_average_loss([2.0, 4.0], sample_weight=[1.0, 1.0, 1.0])


@pytest.mark.case("R22")
def test_the_divisor_says_what_is_averaged(run: Any) -> None:
    mirrored = mirrored_strategy(2)
    pixels = distributed(mirrored, np.ones([2, 2, 2]), np.ones([2, 2, 2]))

    def replica_fn(pixels: Any) -> Any:
        return [
            tf.nn.compute_average_loss(pixels),
            tf.nn.compute_average_loss(pixels, global_batch_size=4),
            tf.nn.compute_average_loss(pixels, global_batch_size=16),
            tf.nn.compute_average_loss(pixels.mean((1, 2))),
            tf.nn.compute_average_loss(pixels, sample_weight=jnp.asarray([1.0, 0.0])),
        ]

    parts = run(mirrored, replica_fn, pixels)
    totals = [float(mirrored.reduce("sum", part, axis=None)) for part in parts]
    assert totals == [4, 4, 1, 1, 2]


@pytest.mark.case("R24")
def test_a_short_batch_has_its_true_mean(run: Any, mirrored: Any) -> None:
    losses = distributed(mirrored, [2.0, 4.0], [9.0])

    def replica_fn(x: Any) -> Any:
        return (
            tf.nn.compute_average_loss(x),
            tf.nn.compute_average_loss(x, global_batch_size=4),
            tf.nn.compute_average_loss(jnp.repeat(x, 2)),
        )

    totals = [mirrored.reduce("sum", x, axis=None) for x in run(mirrored, replica_fn, losses)]
    assert_close(totals, [5, 3.75, 5])


@pytest.mark.case("R24")
def test_losses_that_replicas_made_themselves_have_their_true_mean(mirrored: Any) -> None:
    def replica_fn() -> Any:
        is_first = int(context().replica_id_in_sync_group) == 0
        return tf.nn.compute_average_loss([2.0, 4.0] if is_first else [9.0])

    assert mirrored.reduce("sum", mirrored.run(replica_fn), axis=None) == 5


@pytest.mark.contract(113)
def test_empty_replicas_contribute_nothing(run: Any) -> None:
    mirrored = mirrored_strategy(3)
    losses = distributed(mirrored, [3.0], *[np.zeros(0, np.float32)] * 2)
    parts = run(mirrored, tf.nn.compute_average_loss, losses)
    assert per_replica(mirrored, parts) == [3, 0, 0]
