"""Pushes merged into one update, and update rules, through real store halves."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.store.rules import DelayCompensated, GapAware, Plain, StalenessScaled
from paceline.testing.tolerances import EXACT, GOLDEN, assert_close
from store_rig import Computed, Rig, f32

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.steps import Step
    from paceline.store.rules import UpdateRule


def gradient_step(
    rig: Rig, optimizer: Any, start: Any = 0.0, extra: Callable[[Any], Any] = lambda g: None
) -> tuple[Any, Step]:
    """A weight, and a step whose arguments are its gradient and a batch that is only counted."""
    weight = tf.Variable(start, dtype="float32")

    def train(batch: Any, gradient: Any) -> None:
        optimizer.apply([gradient], [weight])
        extra(gradient)

    return weight, rig.step(train, np.zeros(1), np.zeros(np.shape(start), np.float32))


def pushes(rig: Rig, step: Step, *gradients: Any, sizes: tuple[int, ...] = ()) -> list[Computed]:
    """One push of each worker, of so many examples, all on one snapshot."""
    computed = []
    for worker, gradient in enumerate(gradients):
        one = rig.compute(step, np.zeros(1), f32(gradient), worker=worker)
        size = sizes[worker] if sizes else 1
        computed.append(Computed(rig.counted(one.push, size), one.result))
    return computed


# Merging ---------------------------------------------------------------------------------------


@pytest.mark.case("R98")
@pytest.mark.parametrize(("merge", "weight"), [("sum", -4.0), ("mean", -2.0)])
def test_gradients_are_added_or_averaged(merge: Any, weight: float) -> None:
    rig = Rig()
    variable, step = gradient_step(rig, tf.keras.optimizers.SGD(1.0))
    rig.apply_group(*pushes(rig, step, 1, 3), merge=merge)
    assert_close(variable, weight)
    assert rig.store.version == 1


@pytest.mark.parametrize(("sizes", "weight"), [((1, 3), -2.5), ((3, 1), -1.5), ((0, 0), -2.0)])
def test_the_mean_weighs_pushes_with_their_examples(sizes: tuple[int, ...], weight: float) -> None:
    rig = Rig()
    variable, step = gradient_step(rig, tf.keras.optimizers.SGD(1.0))
    rig.apply_group(*pushes(rig, step, 1, 3, sizes=sizes))
    assert_close(variable, weight)


def test_a_group_is_one_step_of_the_optimizer() -> None:
    rig, plain = Rig(), keras.optimizers.Adam(0.1)
    adam = tf.keras.optimizers.Adam(0.1)
    variable, step = gradient_step(rig, adam)
    expected = keras.Variable(0.0)
    plain.build([expected])
    for gradients in ((1, 3), (-5, 1), (2, 2)):
        rig.apply_group(*pushes(rig, step, *gradients))
        plain.apply([jnp.asarray(np.mean(gradients), jnp.float32)], [expected])
    assert int(adam.iterations.numpy()) == 3
    assert_close(
        [variable.value, *(v.value for v in adam.variables)],
        [expected.value, *(v.value for v in plain.variables)],
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda k: k.optimizers.Nadam(0.1),
        lambda k: k.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
        lambda k: k.optimizers.Adam(0.1, use_ema=True, ema_overwrite_frequency=2),
        lambda k: k.optimizers.LossScaleOptimizer(
            k.optimizers.SGD(0.1), initial_scale=2, dynamic_growth_steps=2
        ),
        lambda k: k.optimizers.Adam(k.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    ],
    ids=["nadam", "accumulation", "ema", "loss_scale", "schedule"],
)
def test_what_an_optimizer_counts_it_counts_once_for_a_group(make: Callable[[Any], Any]) -> None:
    rig, ours, plain = Rig(), make(tf.keras), make(keras)
    variable, step = gradient_step(rig, ours)
    expected = keras.Variable(0.0)
    plain.build([expected])
    for _ in range(4):
        rig.apply_group(*pushes(rig, step, 1, 3))
        (new,), own = plain.stateless_apply(
            [v.value for v in plain.variables], [jnp.float32(2)], [expected.value]
        )
        expected.assign(new)
        for slot, value in zip(plain.variables, own, strict=True):
            slot.assign(value)
    assert_close(
        [variable.value, *(v.value for v in ours.variables)],
        [expected.value, *(v.value for v in plain.variables)],
    )


def test_every_member_of_a_group_counts_in_metrics_and_statistics() -> None:
    rig = Rig()
    with rig.strategy.scope():
        mean = tf.keras.metrics.Mean()
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    total = tf.Variable(0.0, trainable=False)

    def extra(gradient: Any) -> None:
        mean.update_state(gradient)
        layer(jnp.full((4, 1), gradient), training=True)
        total.assign_add(gradient)
        total.assign_add(1.0)

    _, step = gradient_step(rig, tf.keras.optimizers.SGD(1.0), extra=extra)
    rig.apply_group(*pushes(rig, step, 2, 4))
    assert_close(mean.result(), 3.0)
    assert_close(mean.count.value, 2.0)
    assert_close(layer.moving_mean, [2.5])
    assert_close(total, 8.0)


def test_weights_changed_by_hand_add_up_in_a_group() -> None:
    rig = Rig()
    weight = tf.Variable(1.0)
    step = rig.step(lambda g: weight.assign(weight - g), f32(0))
    rig.apply_group(*[rig.compute(step, f32(g), worker=w) for w, g in enumerate((1, 3))])
    assert_close(weight, -3.0)


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("NONE", -3.0), ("SUM", -3.0), ("MEAN", -1.5), ("FIRST", 0.0)]
)
@pytest.mark.parametrize("operation", ["assign_sub", "assign"])
def test_a_group_combines_changes_by_hand_as_the_variable_declares(
    aggregation: str, expected: float, operation: str
) -> None:
    """1 - 1 and 1 - 3, of 1 and 3 examples: MEAN is 1 - (1 + 3 * 3) / 4."""
    rig = Rig()
    name = "ONLY_FIRST_REPLICA" if aggregation == "FIRST" else aggregation
    weight = tf.Variable(1.0, aggregation=tf.VariableAggregation[name])

    def change(g: Any) -> None:
        if operation == "assign_sub":
            weight.assign_sub(g)
        else:
            weight.assign(weight - g)

    step = rig.step(change, f32(0))
    first, second = (rig.compute(step, f32(g), worker=w) for w, g in enumerate((1, 3)))
    counted = [
        dataclasses.replace(one, push=rig.counted(one.push, examples))
        for one, examples in ((first, 1), (second, 3))
    ]
    rig.apply_group(*counted)
    assert_close(weight, expected)
    assert rig.store.version == 1
    rig.run(step, f32(2))  # a push that comes alone is what it is
    assert_close(weight, expected - 2)


def test_a_mean_of_assigned_values_and_of_moving_averages() -> None:
    rig = Rig()
    mean = tf.VariableAggregation.MEAN
    value, moving = tf.Variable(9.0, aggregation=mean), tf.Variable(0.0, aggregation=mean)

    def change(x: Any) -> None:
        value.assign(x)
        moving.assign(0.5 * moving + 0.5 * x)

    step = rig.step(change, f32(0))
    rig.apply_group(*[rig.compute(step, f32(x), worker=w) for w, x in enumerate((2, 4))])
    assert_close(value, 3.0)
    assert_close(moving, 1.5)


def test_a_mean_is_over_the_pushes_that_wrote() -> None:
    rig = Rig()
    weight = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    total = tf.Variable(0.0)
    writes = rig.step(lambda x: weight.assign_add(x), f32(0))
    counts = rig.step(lambda x: total.assign_add(x + weight), f32(0))
    calls = [(writes, 2), (counts, 1), (writes, 4), (counts, 1)]
    rig.apply_group(*[rig.compute(step, f32(x), worker=w) for w, (step, x) in enumerate(calls)])
    assert_close(weight, 3.0)
    assert_close(total, 2.0)


def test_a_copy_per_worker_is_its_own() -> None:
    """ON_READ says how copies combine when they are read, not how writes do."""
    rig = Rig()
    mean, on_read = tf.VariableAggregation.MEAN, tf.VariableSynchronization.ON_READ
    with rig.strategy.scope():
        own = tf.Variable(0.0, aggregation=mean, synchronization=on_read)
    step = rig.step(lambda x: own.assign_add(x), f32(0))
    rig.apply_group(*[rig.compute(step, f32(x), worker=w) for w, x in enumerate((2, 4))])
    assert_close(own, (2 + 4 + 0 + 0) / 4)  # the mean of four workers' copies


def test_pushes_of_different_steps_share_a_group() -> None:
    rig = Rig()
    weight = tf.Variable(0.0)
    fast, slow = tf.keras.optimizers.SGD(1.0), tf.keras.optimizers.SGD(0.5)
    steps = [
        rig.step(lambda g, own=optimizer: own.apply([g], [weight]), f32(0))
        for optimizer in (fast, slow)
    ]
    calls = [(0, 1), (1, 2), (0, 3)]
    rig.apply_group(*[rig.compute(steps[k], f32(g), worker=w) for w, (k, g) in enumerate(calls)])
    assert_close(weight, -(1 + 3) / 2 - 0.5 * 2)  # one update with each optimizer
    assert [int(o.iterations.numpy()) for o in (fast, slow)] == [1, 1]
    assert rig.store.version == 1


def test_batches_of_different_sizes_share_an_update() -> None:
    rig = Rig()
    weight, sgd = tf.Variable(0.0), tf.keras.optimizers.SGD(1.0)

    def train(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = jnp.mean(weight * x)
        sgd.apply([tape.gradient(loss, weight)], [weight])

    batches = np.full(3, 1, np.float32), np.full(1, 5, np.float32)
    computed = [
        rig.compute(rig.step(train, batch), batch, worker=worker)
        for worker, batch in enumerate(batches)
    ]
    rig.apply_group(*computed)
    assert_close(weight, -(3 * 1 + 5) / 4)
    assert int(sgd.iterations.numpy()) == 1


def test_a_group_that_fails_changes_nothing() -> None:
    values = []
    for fails_first in (False, True):
        rig = Rig(DelayCompensated.adaptive())
        variable, step = gradient_step(rig, tf.keras.optimizers.SGD(1.0), [0.0, 0.0])
        if fails_first:
            good, bad = pushes(rig, step, [1, 1], [3, 3])
            bad.push.update.residuals[0] = jnp.zeros(3)  # pyright: ignore[reportAttributeAccessIssue]
            with pytest.raises(TypeError):
                rig.apply_group(good, bad)
            assert rig.store.version == 0
            assert_close(variable, [0.0, 0.0])
        for _ in range(2):
            rig.apply_group(*pushes(rig, step, [1, 2], [3, 1]))
        values.append(variable.numpy())
    assert_close(values[1], values[0], EXACT)


# Rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_grouped", [False, True], ids=["alone", "grouped"])
def test_staleness_scales_the_step_and_not_the_slots(is_grouped: bool) -> None:
    rig = Rig(StalenessScaled())
    momentum = tf.keras.optimizers.SGD(1.0, momentum=0.5)
    variable, step = gradient_step(rig, momentum)
    stale = pushes(rig, step, 1, 1, 1, 2)  # all read version 0
    w, m = 0.0, 0.0
    for staleness, (one, g) in enumerate(zip(stale, (1, 1, 1, 2), strict=True)):
        rig.apply_group(one) if is_grouped else rig.apply(one)
        m = 0.5 * m - g
        w += m / max(1, staleness)
    assert_close(variable, w)
    slots = [v for v in momentum.variables if "momentum" in v.path]
    assert_close(slots[0], m)


@pytest.mark.parametrize("merge", ["mean", "sum"])
def test_a_group_of_unequal_staleness_moves_sgd_by_the_scaled_sum(merge: Any) -> None:
    rig = Rig(StalenessScaled())
    variable, step = gradient_step(rig, tf.keras.optimizers.SGD(0.5))
    old = pushes(rig, step, 1, 2, sizes=(2, 2))
    for _ in range(3):
        rig.run(step, np.zeros(1), f32(0))
    newer = pushes(rig, step, 3, sizes=(4,))
    rig.run(step, np.zeros(1), f32(0))
    rig.apply_group(*old, *newer, merge=merge)
    w = np.asarray([2, 2, 4]) / 8 if merge == "mean" else np.ones(3)
    scales = 1 / np.maximum(1, [4, 4, 1])
    assert_close(variable, -0.5 * np.sum(w * scales * [1, 2, 3]))


class ByHand:
    """The rules in NumPy, with SGD and the mean over a group of equal pushes."""

    def __init__(self, rule: UpdateRule, start: Any, rate: float) -> None:
        self.rule, self.rate = rule, rate
        self.w = np.asarray(start, np.float64)
        self.squares: dict[int, Any] = {}
        self.mean_step, self.num_steps = np.zeros_like(self.w), 0

    def corrected(self, g: Any, read: Any, worker: int) -> Any:
        g = np.asarray(g, np.float64)
        rule = self.rule
        if isinstance(rule, GapAware):
            step = np.where(self.mean_step > 0, self.mean_step, np.inf)
            return g / (1 + np.abs(self.w - read) / step)
        if not isinstance(rule, DelayCompensated):
            return g
        strength = rule.strength
        if rule.decay is not None:
            old = self.squares.get(worker, np.zeros_like(g))
            self.squares[worker] = rule.decay * old + (1 - rule.decay) * g * g
            strength = strength / np.sqrt(self.squares[worker] + rule.epsilon)
        return g + strength * g * g * (self.w - read)

    def apply(self, *group: tuple[Any, Any, int]) -> None:
        """Applies pushes of (gradient, weights that were read, worker)."""
        g = np.mean([self.corrected(*one) for one in group], axis=0)
        self.num_steps += 1
        self.mean_step = self.mean_step + (np.abs(self.rate * g) - self.mean_step) / self.num_steps
        self.w = self.w - self.rate * g


@pytest.mark.parametrize(
    "rule",
    [Plain(), DelayCompensated(strength=0.5), DelayCompensated.adaptive(), GapAware()],
    ids=["plain", "constant", "adaptive", "gap"],
)
@pytest.mark.parametrize("size", [1, 2], ids=["alone", "grouped"])
def test_rules_correct_each_push_for_what_its_worker_had_read(rule: Any, size: int) -> None:
    rig, start = Rig(rule), np.asarray([1.0, -2.0, 0.5])
    variable, step = gradient_step(rig, tf.keras.optimizers.SGD(0.1), start)
    expected = ByHand(rule, start, 0.1)
    rng = np.random.default_rng(0)
    waiting: list[tuple[Computed, Any]] = []
    for turn in range(12):
        worker, g = turn % 3, rng.normal(size=3)
        one = rig.compute(step, np.zeros(1), np.asarray(g, np.float32), worker=worker)
        waiting.append((one, (g, expected.w, worker)))
        if len(waiting) == 3 + size:  # pushes arrive three reads late, alone or in pairs
            group, waiting = waiting[:size], waiting[size:]
            if size == 1:
                rig.apply(group[0][0])
            else:
                rig.apply_group(*[computed for computed, _ in group])
            expected.apply(*[by_hand for _, by_hand in group])
    assert rig.store.version == 12 - 3 if size == 1 else 5
    assert_close(variable, expected.w, GOLDEN)


# Several servers -------------------------------------------------------------------------------


def two_weights(rig: Rig, optimizer: Any) -> tuple[list[Any], Step]:
    """Two weights, two counters that follow each other, and a step that writes them all."""
    with rig.strategy.scope():
        weights = [tf.Variable(f32(1, 2)), tf.Variable(f32(3, 4))]
        count, follower = [tf.Variable(0.0, trainable=False) for _ in range(2)]

    def train(first: Any, second: Any) -> None:
        optimizer.apply([first, second], weights)
        count.assign_add(1.0)
        follower.assign(follower + 2 * count)

    return [*weights, count, follower], rig.step(train, f32(0, 0), f32(0, 0))


@pytest.mark.parametrize("rule", [Plain(), DelayCompensated(), GapAware()], ids=repr)
@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.keras.optimizers.Adam(0.1),
        lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0),
        lambda: tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.Adam(0.1)),
    ],
    ids=["adam", "global_clipnorm", "loss_scale"],
)
def test_servers_divide_the_work_and_change_no_number(rule: Any, make: Callable[[], Any]) -> None:
    states = []
    for servers in (1, 2):
        rig, optimizer = Rig(rule, servers=servers), make()
        variables, step = two_weights(rig, optimizer)
        first, second = (f32(1, -1), f32(10, 0)), (f32(2, 5), f32(-3, 1))
        rig.overlap(step, first, second)
        rig.apply_group(*[rig.compute(step, *g, worker=w) for w, g in enumerate((first, second))])
        rig.run(step, *first)
        states.append([v.numpy() for v in (*variables, *optimizer.variables)])
    assert_close(states[1], states[0])
    assert_close(states[0][2:4], [5.0, 2 * (1 + 2 + 3 + 4 + 5)])


def test_each_server_has_its_part() -> None:
    rig = Rig(servers=2)
    variables, step = two_weights(rig, tf.keras.optimizers.Adam(0.1))
    assert [rig.strategy.server_of(variable) for variable in variables] == [0, 1, 0, 1]
    parts = step.store_halves.parts
    assert [[id(v) for v in part.homes] for part in parts] == [[id(v)] for v in variables[:2]]


def test_servers_that_need_each_others_gradients_are_one_part() -> None:
    rig = Rig(servers=2)
    _, step = two_weights(rig, tf.keras.optimizers.SGD(0.1, global_clipnorm=1.0))
    assert len(step.store_halves.parts) == 1
