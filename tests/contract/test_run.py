"""`run`, `merge_call` and `extended.update`: items 48 to 57 of the contract."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.errors import ReplicaMismatch
from paceline.types import Mirrored, PerReplica
from replica_values import components, distributed, mirrored_strategy, per_replica, replica_number

Aggregation = tf.VariableAggregation
Synchronization = tf.VariableSynchronization

on_1_to_4_replicas = pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
on_2_to_4_replicas = pytest.mark.parametrize("num_replicas", [2, 3, 4])


class Pair(NamedTuple):
    first: Any
    second: Any


class MyDict(collections.OrderedDict):  # type: ignore[type-arg]
    pass


class MyError(Exception):
    pass


def context() -> Any:
    return tf.distribute.get_replica_context()


@pytest.mark.contract(48)
@on_1_to_4_replicas
def test_results_of_one_run_are_arguments_of_the_next(run: Any, mirrored: Any) -> None:
    ids = range(mirrored.num_replicas_in_sync)
    numbers = run(mirrored, lambda: replica_number() + 1)
    assert per_replica(mirrored, numbers) == [i + 1 for i in ids]

    nest = run(mirrored, lambda x: {"a": 2 * x, "b": x * x}, numbers)
    assert per_replica(mirrored, nest["a"]) == [2 * (i + 1) for i in ids]
    assert per_replica(mirrored, nest["b"]) == [(i + 1) ** 2 for i in ids]

    sums = run(mirrored, lambda named: named["a"] + 2 * named["b"] + 2, nest)
    assert per_replica(mirrored, sums) == [2 * (i + 1) + 2 * (i + 1) ** 2 + 2 for i in ids]


@pytest.mark.contract(48)
@pytest.mark.parametrize("compiled", [False, True])
def test_keyword_arguments_are_unpacked_as_well(mirrored: Any, compiled: bool) -> None:
    def total(a: Any, b: Any, plus: float) -> Any:
        return a + 2 * b + plus

    fn = tf.function(total) if compiled else total
    kwargs = {"b": distributed(mirrored, 1.0, 4.0), "plus": 2.0}
    result = mirrored.run(fn, args=[distributed(mirrored, 2.0, 4.0)], kwargs=kwargs)
    assert per_replica(mirrored, result) == [6, 14]


@pytest.mark.contract(48)
@pytest.mark.parametrize(
    "make", [lambda: tf.distribute.OneDeviceStrategy("cpu:1"), tf.distribute.get_strategy]
)
def test_one_replica_takes_and_gives_bare_values(run: Any, make: Any) -> None:
    strategy = make()
    nest = run(strategy, lambda x: {"a": 2 * x, "b": x * x}, jnp.asarray(4.0))
    assert (float(nest["a"]), float(nest["b"])) == (8, 16)
    assert run(strategy, lambda named: named["a"] + 2 * named["b"] + 2, nest) == 42


@pytest.mark.contract(48)
def test_a_variable_argument_is_passed_whole(run: Any, mirrored: Any) -> None:
    with mirrored.scope():
        variable = tf.Variable(1.0)
    seen: list[Any] = []

    def replica_fn(nest: Any) -> None:
        seen.append(nest["v"])

    run(mirrored, replica_fn, {"v": variable})
    assert all(argument is variable for argument in seen)
    assert seen


@pytest.mark.contract(48)
def test_parts_of_different_sizes_enter_the_same_run(run: Any) -> None:
    mirrored = mirrored_strategy(4)
    parts = ([1.0, 2.0, 3.0], [4.0], [], [5.0, 6.0])
    x = distributed(mirrored, *[np.float32(part) for part in parts])
    result = run(mirrored, lambda x: (2 * x, x.sum(), x.shape[0]), x)
    assert per_replica(mirrored, result[0]) == [[2, 4, 6], [8], [], [10, 12]]
    assert per_replica(mirrored, result[1]) == [6, 4, 0, 11]
    assert per_replica(mirrored, result[2]) == [3, 1, 0, 2]


@pytest.mark.contract(49)
@pytest.mark.parametrize("args", [1.0, {"x": 1.0}, "x", None, jnp.ones(2)])
@on_1_to_4_replicas
def test_positional_arguments_are_a_tuple_or_a_list(mirrored: Any, args: Any) -> None:
    with pytest.raises(ValueError, match=r"tuple or a list.*Received: args="):
        mirrored.run(lambda *_: None, args=args)
    assert not tf.distribute.has_strategy()


@pytest.mark.contract(50)
def test_what_is_the_same_for_all_replicas_comes_back_bare(run: Any, mirrored: Any) -> None:
    with mirrored.scope():
        variable = tf.Variable(1.0)
    result = run(mirrored, lambda: [replica_number(), 5, None, "text", variable])
    assert isinstance(result, list)
    assert per_replica(mirrored, result[0]) == [0, 1]
    assert result[1:4] == [5, None, "text"]
    assert result[4] is variable


@pytest.mark.contract(50)
def test_nothing_comes_back_as_none(run: Any, mirrored: Any) -> None:
    assert run(mirrored, lambda: None) is None


@pytest.mark.contract(50)
def test_a_captured_array_comes_back_itself(mirrored: Any) -> None:
    captured = jnp.asarray(3.0)
    assert mirrored.run(lambda: captured) is captured


@pytest.mark.contract(50)
def test_distinct_values_are_per_replica(run: Any, mirrored: Any) -> None:
    result = run(mirrored, replica_number)
    assert isinstance(result, tf.distribute.DistributedValues)
    assert isinstance(result, PerReplica)
    assert [float(value) for value in result.values] == [0, 1]


@pytest.mark.contract(50)
def test_each_value_lies_on_its_replicas_device(run: Any, mirrored: Any) -> None:
    result = run(mirrored, lambda: replica_number() + 1)
    assert [value.devices() for value in result.values] == [{d} for d in mirrored.devices]


@pytest.mark.contract(50)
@on_1_to_4_replicas
@pytest.mark.parametrize(
    "nest",
    [
        lambda x: [x, [x, None]],
        lambda x: (x,),
        lambda x: {"a": x, "b": {"c": x}},
        lambda x: Pair(x, [x]),
        lambda x: collections.OrderedDict(b=x, a=x),
        lambda x: collections.defaultdict(list, a=x),
        lambda x: MyDict(b=x, a=1),
    ],
)
def test_results_keep_their_structure(run: Any, mirrored: Any, nest: Any) -> None:
    result = run(mirrored, lambda: nest(replica_number()))
    plain = nest(jnp.float32(0))
    assert type(result) is type(plain)
    if isinstance(plain, dict):
        assert list(result) == list(plain)
    first = result["a"] if isinstance(plain, MyDict | dict) else result[0]
    if not isinstance(plain, MyDict):
        assert per_replica(mirrored, first) == list(range(mirrored.num_replicas_in_sync))


@pytest.mark.contract(51)
@pytest.mark.parametrize(
    "of_replica",
    [
        lambda i: [0.0] * (i + 1),
        lambda i: {f"key{i}": 0.0},
        lambda i: (0.0,) if i else [0.0],
        lambda i: None if i else 0.0,
    ],
)
def test_replicas_return_one_structure(mirrored: Any, of_replica: Any) -> None:
    with pytest.raises(ValueError, match=r"must return the same structure.*Received"):
        mirrored.run(lambda: of_replica(int(context().replica_id_in_sync_group)))
    assert not tf.distribute.has_strategy()


@pytest.mark.contract(51)
def test_a_structure_that_depends_on_the_batch_size_is_refused(run: Any, mirrored: Any) -> None:
    x = distributed(mirrored, np.ones(2), np.ones(1))
    with pytest.raises((ValueError, ReplicaMismatch), match="must return the same structure"):
        run(mirrored, lambda x: [x] * x.shape[0], x)


@pytest.mark.contract(52)
@on_1_to_4_replicas
def test_an_error_in_the_function_surfaces_unchanged(run: Any, mirrored: Any) -> None:
    error = MyError("mine")

    def replica_fn() -> None:
        raise error

    with pytest.raises(MyError) as caught:
        run(mirrored, replica_fn)
    assert caught.value is error
    assert not tf.distribute.has_strategy()
    assert run(mirrored, lambda: 1) == 1


@pytest.mark.contract(52)
@on_2_to_4_replicas
def test_an_error_of_one_replica_stops_the_others(mirrored: Any) -> None:
    last = mirrored.num_replicas_in_sync - 1
    finished: list[int] = []

    def replica_fn() -> None:
        index = int(context().replica_id_in_sync_group)
        if index == last:
            raise MyError(f"replica {index}")
        context().all_reduce("sum", jnp.ones(()))
        finished.append(index)

    with pytest.raises(MyError, match=f"replica {last}"):
        mirrored.run(replica_fn)
    assert finished == []


@pytest.mark.contract(52)
@on_1_to_4_replicas
@pytest.mark.parametrize("depth", ["merge_fn", "run in merge_fn", "merge_call in run in merge_fn"])
def test_an_error_below_merge_call_surfaces_unchanged(run: Any, mirrored: Any, depth: str) -> None:
    error = MyError("mine")

    def fail(*_: Any) -> None:
        raise error

    def merge_fn(strategy: Any) -> None:
        if depth == "merge_fn":
            fail()
        elif depth == "run in merge_fn":
            strategy.run(fail)
        else:
            strategy.run(lambda: context().merge_call(fail))

    with pytest.raises(MyError) as caught:
        run(mirrored, lambda: context().merge_call(merge_fn))
    assert caught.value is error
    assert not tf.distribute.has_strategy()


@pytest.mark.contract(53)
@on_1_to_4_replicas
def test_merge_fn_runs_once_on_all_values(run: Any, mirrored: Any) -> None:
    seen: list[Any] = []

    def merge_fn(strategy: Any, ids: Any, shared: str, scale: Any) -> Any:
        assert tf.distribute.in_cross_replica_context()
        seen.append((strategy, shared, strategy.experimental_local_results(ids)))
        return strategy.reduce("sum", ids, axis=None) * scale

    def replica_fn() -> Any:
        return context().merge_call(merge_fn, args=(replica_number(), "same"), kwargs={"scale": 10})

    count = mirrored.num_replicas_in_sync
    result = run(mirrored, replica_fn)
    assert per_replica(mirrored, result) == [10 * sum(range(count))] * count
    ((strategy, shared, ids),) = seen
    assert strategy is mirrored
    assert shared == "same"
    assert len(ids) == count


@pytest.mark.contract(53)
def test_merge_call_splits_what_merge_fn_returns(run: Any, mirrored: Any) -> None:
    def merge_fn(_: Any, ids: Any) -> Any:
        return {"own": ids, "plain": "text", "one": 3}

    def replica_fn() -> Any:
        result = context().merge_call(merge_fn, args=(replica_number() + 1,))
        return result["own"] * 2, result["plain"], result["one"]

    own, plain, one = run(mirrored, replica_fn)
    assert per_replica(mirrored, own) == [2, 4]
    assert (plain, one) == ("text", 3)


@pytest.mark.contract(53)
def test_merge_fn_assigns_across_replicas(run: Any, mirrored: Any) -> None:
    with mirrored.scope():
        plain = tf.Variable(1.0)
        on_read = tf.Variable(
            0.0, synchronization=Synchronization.ON_READ, aggregation=Aggregation.SUM
        )

    def merge_fn(strategy: Any, ids: Any) -> None:
        plain.assign_add(strategy.reduce("sum", ids, axis=None))
        on_read.assign(6.0)

    def replica_fn() -> Any:
        on_read.assign(replica_number() + 100)
        context().merge_call(merge_fn, args=(replica_number() + 1,))
        return plain + on_read

    result = run(mirrored, replica_fn)
    assert per_replica(mirrored, result) == [7, 7]
    assert components(plain) == [4, 4]
    assert components(on_read) == [3, 3]


@pytest.mark.contract(53)
@on_1_to_4_replicas
def test_run_inside_merge_fn_and_merge_call_inside_that(run: Any, mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync

    def inner_fn(x: Any) -> Any:
        total = context().merge_call(
            lambda strategy, x: strategy.reduce("sum", x, axis=None), args=(x,)
        )
        return total + replica_number()

    def merge_fn(strategy: Any, ids: Any) -> Any:
        return strategy.run(inner_fn, args=(ids,))

    def replica_fn() -> Any:
        return context().merge_call(merge_fn, args=(replica_number() + 1,))

    total = sum(range(1, count + 1))
    assert per_replica(mirrored, run(mirrored, replica_fn)) == [total + i for i in range(count)]


@pytest.mark.contract(54)
@on_2_to_4_replicas
def test_all_replicas_must_reach_merge_call(mirrored: Any) -> None:
    def replica_fn() -> None:
        if int(context().replica_id_in_sync_group) == 0:
            context().merge_call(lambda _: None)

    with pytest.raises(RuntimeError, match=r"different number of merge_call.*replica 0") as caught:
        mirrored.run(replica_fn)
    assert isinstance(caught.value, ReplicaMismatch)
    assert not tf.distribute.has_strategy()


@pytest.mark.contract(54)
@pytest.mark.case("R59")
def test_an_unequal_condition_around_a_meeting_names_the_replica(mirrored: Any) -> None:
    with mirrored.scope():
        weight = tf.Variable(0.0, aggregation=Aggregation.SUM)

    def replica_fn() -> None:
        if int(context().replica_id_in_sync_group) == 1:
            weight.assign_add(jnp.asarray(1.0))

    with pytest.raises(ReplicaMismatch, match=r"under a condition that\s+differs.*|replica 1"):
        mirrored.run(replica_fn)
    assert components(weight) == [0, 0]


@pytest.mark.contract(54)
@pytest.mark.case("R59")
def test_an_equal_condition_around_a_meeting_works(mirrored: Any) -> None:
    with mirrored.scope():
        weight = tf.Variable(0.0, aggregation=Aggregation.SUM)

    def replica_fn(step: int) -> None:
        if step % 2 == 0:
            weight.assign_sub(1.0 + 2 * replica_number())

    for step in range(4):
        mirrored.run(replica_fn, args=(step,))
    assert components(weight) == [-8, -8]


@pytest.mark.contract(55)
@on_1_to_4_replicas
def test_every_replica_has_its_id(run: Any, mirrored: Any) -> None:
    counts: list[int] = []

    def replica_fn() -> Any:
        counts.append(context().num_replicas_in_sync)
        assert context().strategy is mirrored
        return jnp.asarray(context().replica_id_in_sync_group)

    result = run(mirrored, replica_fn)
    values = mirrored.experimental_local_results(result)
    assert [int(value) for value in values] == list(range(mirrored.num_replicas_in_sync))
    assert {value.dtype for value in values} == {jnp.dtype("int32")}
    assert set(counts) == {mirrored.num_replicas_in_sync}


@pytest.mark.contract(55)
@on_1_to_4_replicas
def test_python_code_runs_per_replica_eagerly_and_once_compiled(mirrored: Any) -> None:
    calls: list[int] = []
    mirrored.run(lambda: calls.append(1))
    assert len(calls) == mirrored.num_replicas_in_sync

    calls.clear()
    compiled = tf.function(lambda: calls.append(1))
    mirrored.run(compiled)
    mirrored.run(compiled)
    assert len(calls) == 1


@pytest.mark.contract(56)
def test_update_groups_its_results(mirrored: Any) -> None:
    with mirrored.scope():
        variable = tf.Variable(1.0)

    def add(variable: Any, value: float) -> Any:
        variable.assign_add(value)
        return variable.value * 10

    grouped = mirrored.extended.update(variable, add, args=(2.0,))
    assert isinstance(grouped, Mirrored)
    assert per_replica(mirrored, grouped) == [30, 30]
    single = mirrored.extended.update(variable, add, kwargs={"value": 2.0}, group=False)
    assert isinstance(single, tuple)
    assert [float(value) for value in single] == [50, 50]
    assert components(variable) == [5, 5]


@pytest.mark.contract(56)
@pytest.mark.parametrize("num_replicas", [2, 3, 4])
def test_update_matches_components_of_per_replica_variables(mirrored: Any) -> None:
    count = mirrored.num_replicas_in_sync
    with mirrored.scope():
        variable = tf.Variable(
            0.0, synchronization=Synchronization.ON_READ, aggregation=Aggregation.MEAN
        )
    values = distributed(mirrored, *[float(i + 1) for i in range(count)])
    result = mirrored.extended.update(
        variable, lambda v, x: v.assign_add(x) and v.value, args=(values,), group=False
    )
    assert components(variable) == [i + 1 for i in range(count)]
    assert len(result) == count


@pytest.mark.contract(56)
def test_update_takes_no_per_replica_value_for_a_mirrored_variable(mirrored: Any) -> None:
    with mirrored.scope():
        variable = tf.Variable(1.0, aggregation=Aggregation.SUM)
    values = distributed(mirrored, 2.0, 3.0)
    with pytest.raises(ValueError, match=r"stay equal.*per-replica value for .*reduce"):
        mirrored.extended.update(variable, lambda v, x: v.assign(x), args=(values,))
    assert components(variable) == [1, 1]


@pytest.mark.contract(56)
def test_update_refuses_a_variable_that_is_not_the_strategys(mirrored: Any) -> None:
    plain = tf.Variable(1.0)
    with pytest.raises(ValueError, match=r"must belong to this strategy.*Received: .*Variable"):
        mirrored.extended.update(plain, lambda v: v.assign(2.0))
    assert float(plain.value) == 1


@pytest.mark.contract(56)
def test_update_inside_run_goes_through_merge_call(run: Any, mirrored: Any) -> None:
    with mirrored.scope():
        variable = tf.Variable(1.0)

    def replica_fn() -> None:
        total = context().all_reduce("sum", replica_number() + 1)
        mirrored.extended.update(variable, lambda v: v.assign_add(10.0))
        del total

    run(mirrored, replica_fn)
    assert components(variable) == [11, 11]


@pytest.mark.contract(56)
def test_update_on_one_replica_is_a_call(mirrored: Any) -> None:
    one_device = tf.distribute.OneDeviceStrategy("cpu:0")
    with one_device.scope():
        variable = tf.Variable(1.0)
    result = one_device.extended.update(variable, lambda v, x: v.assign_add(x), args=(2.0,))
    assert result == 3
    result = one_device.extended.update(variable, lambda v: v.assign_add(1.0), group=False)
    assert [float(value) for value in result] == [4]


@pytest.mark.contract(57)
@pytest.mark.parametrize(
    "devices",
    [["cpu:0", "cpu:0"], ["cpu:0", "/device:CPU:0"], ["/cpu:1", "CPU:1"]],
)
def test_a_device_serves_one_replica(devices: list[str]) -> None:
    with pytest.raises(ValueError, match=r"device of its own.*same device twice.*devices="):
        tf.distribute.MirroredStrategy(devices)


@pytest.mark.contract(57)
def test_unknown_devices_are_named() -> None:
    with pytest.raises(ValueError, match=r"no TPU devices.*'tpu:0'.*Available"):
        tf.distribute.MirroredStrategy(["tpu:0"])
    with pytest.raises(ValueError, match="cpu:9"):
        tf.distribute.MirroredStrategy(["cpu:0", "cpu:9"])
    with pytest.raises(ValueError, match=r"named like .*'cpu:0'.*Received: '0:cpu'"):
        tf.distribute.MirroredStrategy(["0:cpu"])
    with pytest.raises(TypeError, match=r"as a list.*devices=\['cpu:0'\]"):
        tf.distribute.MirroredStrategy("cpu:0")
    with pytest.raises(TypeError, match=r"or a jax\.Device.*3"):
        tf.distribute.MirroredStrategy([3])


@pytest.mark.contract(57)
@pytest.mark.parametrize("devices", [None, []])
def test_no_devices_means_all(devices: Any) -> None:
    strategy = tf.distribute.MirroredStrategy(devices)
    assert list(strategy.devices) == jax.local_devices()
    assert len(strategy.extended.worker_devices) == strategy.num_replicas_in_sync


@pytest.mark.contract(57)
def test_devices_are_spelt_as_in_tensorflow() -> None:
    names = ["/job:localhost/replica:0/task:0/device:CPU:0", "/cpu:1", "CPU:2"]
    strategy = tf.distribute.MirroredStrategy(names)
    assert [device.id for device in strategy.devices] == [0, 1, 2]
