"""Contexts and scopes: items 41 to 47 of the contract."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import pytest

import paceline as tf
from replica_values import mirrored_strategy, replica_number

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_STATE = (True, False, False)
IN_SCOPE = (False, True, True)
IN_RUN = (True, False, True)

on_1_to_4_replicas = pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])


def state() -> tuple[bool, bool, bool]:
    """(a replica context is current, code runs across replicas, a strategy is current)."""
    return (
        tf.distribute.get_replica_context() is not None,
        tf.distribute.in_cross_replica_context(),
        tf.distribute.has_strategy(),
    )


@pytest.fixture(autouse=True)
def default_state_around_each_test() -> Iterator[None]:
    assert state() == DEFAULT_STATE
    yield
    tf.distribute.experimental_set_strategy(None)


@pytest.mark.contract(41)
@on_1_to_4_replicas
def test_each_place_has_its_context(run: Any, mirrored: Any) -> None:
    seen: dict[str, Any] = {}

    def merge_fn(merging: Any) -> None:
        seen["merge_fn"] = (*state(), merging, tf.distribute.get_strategy())

    def replica_fn() -> None:
        seen["run"] = (*state(), tf.distribute.get_strategy())
        tf.distribute.get_replica_context().merge_call(merge_fn)
        seen["after merge_call"] = (*state(), tf.distribute.get_strategy())

    with mirrored.scope() as entered:
        assert entered is mirrored
        assert (*state(), tf.distribute.get_strategy()) == (*IN_SCOPE, mirrored)
        run(mirrored, replica_fn)
        assert state() == IN_SCOPE

    assert seen["run"] == seen["after merge_call"] == (*IN_RUN, mirrored)
    assert seen["merge_fn"] == (*IN_SCOPE, mirrored, mirrored)
    assert state() == DEFAULT_STATE


@pytest.mark.contract(41)
def test_run_enters_the_scope_on_its_own(run: Any, mirrored: Any) -> None:
    seen: list[Any] = []
    run(mirrored, lambda: seen.append(state()))
    assert set(seen) == {IN_RUN}
    assert state() == DEFAULT_STATE


@pytest.mark.contract(41)
def test_the_default_replica_context_merges_reduces_and_gathers_alone() -> None:
    context = tf.distribute.get_replica_context()
    default = tf.distribute.get_strategy()
    assert context.strategy is default
    assert context.num_replicas_in_sync == 1
    assert context.replica_id_in_sync_group == 0

    merged = context.merge_call(lambda strategy, x: (strategy, x, *state()), args=(3.0,))
    assert merged == (default, 3.0, False, True, False)
    assert context.all_reduce("sum", 3.0) == 3
    assert context.all_gather(jnp.ones(2), axis=0).shape == (2,)
    assert state() == DEFAULT_STATE


@pytest.mark.contract(41)
def test_the_context_belongs_to_the_thread(mirrored: Any) -> None:
    seen: list[Any] = []
    with mirrored.scope():
        thread = threading.Thread(target=lambda: seen.append(state()))
        thread.start()
        thread.join()
    assert seen == [DEFAULT_STATE]


@pytest.mark.contract(42)
def test_the_same_scope_nests_and_is_used_again(mirrored: Any) -> None:
    scope = mirrored.scope()
    for _ in range(2):
        with scope:
            with scope, mirrored.scope():
                assert state() == IN_SCOPE
            assert state() == IN_SCOPE
        assert state() == DEFAULT_STATE


@pytest.mark.contract(42)
@pytest.mark.parametrize(
    "other", [lambda: mirrored_strategy(3), lambda: tf.distribute.OneDeviceStrategy("cpu:0")]
)
def test_two_strategies_do_not_mix(mirrored: Any, other: Any) -> None:
    other = other()
    with mirrored.scope():
        with pytest.raises(RuntimeError, match="Mixing strategies"), other.scope():
            pass
        with pytest.raises(RuntimeError, match="Mixing strategies"):
            other.run(lambda: None)
        with pytest.raises(RuntimeError, match="Mixing strategies"):
            other.reduce("mean", 1.0, axis=None)
        assert state() == IN_SCOPE
    assert state() == DEFAULT_STATE


@pytest.mark.contract(42)
def test_the_default_scope_does_not_nest_in_another(mirrored: Any) -> None:
    default = tf.distribute.get_strategy()
    with mirrored.scope(), pytest.raises(RuntimeError, match="must not nest"), default.scope():
        pass
    with default.scope() as entered:
        assert entered is default
        assert not tf.distribute.has_strategy()
    assert state() == DEFAULT_STATE


@pytest.mark.contract(42)
def test_an_error_in_the_scope_restores_the_state(mirrored: Any) -> None:
    with pytest.raises(KeyError, match="mine"), mirrored.scope():
        raise KeyError("mine")
    assert state() == DEFAULT_STATE


@pytest.mark.contract(43)
def test_set_strategy_is_a_scope_until_it_is_reset(mirrored: Any) -> None:
    tf.distribute.experimental_set_strategy(mirrored)
    assert state() == IN_SCOPE
    assert tf.distribute.get_strategy() is mirrored
    variable = tf.Variable(1.0)
    assert mirrored.extended.variable_created_in_scope(variable)
    assert mirrored.reduce("sum", mirrored.run(replica_number), axis=None) == 1
    tf.distribute.experimental_set_strategy(None)
    assert state() == DEFAULT_STATE


@pytest.mark.contract(43)
def test_set_strategy_replaces_the_strategy_set_before(mirrored: Any) -> None:
    first, second = mirrored, mirrored_strategy(3)
    tf.distribute.experimental_set_strategy(first)
    tf.distribute.experimental_set_strategy(second)
    assert tf.distribute.get_strategy() is second


@pytest.mark.contract(43)
def test_set_strategy_inside_a_scope_raises(mirrored: Any) -> None:
    for argument in (mirrored, mirrored_strategy(3), None):
        with (
            mirrored.scope(),
            pytest.raises(RuntimeError, match="must not be called inside a scope"),
        ):
            tf.distribute.experimental_set_strategy(argument)
    assert state() == DEFAULT_STATE


@pytest.mark.contract(44)
@on_1_to_4_replicas
@pytest.mark.parametrize("what", ["run", "reduce", "scope"])
def test_run_reduce_and_scope_inside_run_raise(run: Any, mirrored: Any, what: str) -> None:

    def replica_fn() -> None:
        if what == "run":
            mirrored.run(lambda: None)
        elif what == "reduce":
            mirrored.reduce("sum", replica_number(), axis=None)
        else:
            with mirrored.scope():
                pass

    with pytest.raises(RuntimeError, match=rf"{what}.* needs cross-replica context.*merge_call"):
        run(mirrored, replica_fn)
    assert state() == DEFAULT_STATE


@pytest.mark.contract(45)
def test_colocate_outside_the_scope_raises(mirrored: Any) -> None:
    with mirrored.scope():
        variable = tf.Variable(1.0)
    with (
        pytest.raises(RuntimeError, match="inside the strategy's scope"),
        mirrored.extended.colocate_vars_with(variable),
    ):
        pass


@pytest.mark.contract(45)
def test_colocate_with_a_foreign_variable_raises(mirrored: Any) -> None:
    foreign = tf.Variable(1.0)
    for argument in (foreign, 1.0):
        with (
            mirrored.scope(),
            pytest.raises(ValueError, match="must belong to this strategy"),
            mirrored.extended.colocate_vars_with(argument),
        ):
            pass


@pytest.mark.contract(45)
@on_1_to_4_replicas
def test_a_colocated_variable_lives_where_the_other_one_does(mirrored: Any) -> None:
    with mirrored.scope():
        first = tf.Variable(1.0)
        with mirrored.extended.colocate_vars_with(first):
            second = tf.Variable([2.0, 3.0])
    devices = [[value.device for value in variable.values] for variable in (first, second)]
    assert devices[0] == devices[1] == list(mirrored.devices)


@pytest.mark.contract(46)
def test_created_in_scope_tells_whose_a_variable_is(mirrored: Any) -> None:
    other = mirrored_strategy(3)
    outside = tf.Variable(1.0)
    with mirrored.scope():
        inside = tf.Variable(1.0)
    assert mirrored.extended.variable_created_in_scope(inside)
    assert not mirrored.extended.variable_created_in_scope(outside)
    assert not other.extended.variable_created_in_scope(inside)
    mirrored.run(lambda: outside + 1.0)
    assert not mirrored.extended.variable_created_in_scope(outside)


@pytest.mark.contract(46)
def test_one_device_and_default_strategies_know_their_variables(mirrored: Any) -> None:
    one_device = tf.distribute.OneDeviceStrategy("cpu:1")
    with one_device.scope():
        inside = tf.Variable(1.0)
    assert one_device.extended.variable_created_in_scope(inside)
    assert not one_device.extended.variable_created_in_scope(tf.Variable(1.0))
    assert tf.distribute.get_strategy().extended.variable_created_in_scope(tf.Variable(1.0))
    assert not tf.distribute.get_strategy().extended.variable_created_in_scope(inside)


@pytest.mark.contract(47)
@pytest.mark.parametrize(
    "make",
    [
        lambda: mirrored_strategy(2),
        lambda: tf.distribute.OneDeviceStrategy("cpu:0"),
        tf.distribute.get_strategy,
    ],
    ids=["mirrored", "one device", "default"],
)
def test_a_strategy_cannot_be_copied(make: Any) -> None:
    with pytest.raises(RuntimeError, match="cannot be copied"):
        copy.copy(make())


@pytest.mark.contract(47)
def test_deepcopy_is_allowed_but_for_the_default_strategy(mirrored: Any) -> None:
    assert copy.deepcopy(mirrored).num_replicas_in_sync == 2
    with pytest.raises(RuntimeError, match="cannot be copied"):
        copy.deepcopy(tf.distribute.get_strategy())


@pytest.mark.case("R9")
def test_mirrored_weights_are_read_across_replicas(run: Any, mirrored: Any) -> None:
    with mirrored.scope():
        weight = tf.Variable(3.0, aggregation=tf.VariableAggregation.MEAN)
        with tf.GradientTape() as tape:
            loss = weight * weight
        assert tape.gradient(loss, weight) == 6
        weight.assign(2.0)
    results = run(mirrored, lambda: weight * 1.0)
    assert [float(x) for x in mirrored.experimental_local_results(results)] == [2, 2]


@pytest.mark.case("R9")
def test_the_replica_context_across_replicas_is_none(mirrored: Any) -> None:
    with mirrored.scope():
        assert tf.distribute.get_replica_context() is None
