"""The update rules, against arithmetic written in NumPy from the papers' equations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from paceline.errors import InvalidArgument, InvalidType
from paceline.store.rules import (
    DelayCompensated,
    GapAware,
    Plain,
    StalenessScaled,
    UpdateRule,
    scaled,
)
from paceline.testing.tolerances import EXACT, GOLDEN, REFERENCE, assert_close

RULES = [
    Plain(),
    StalenessScaled(),
    StalenessScaled(slope=0.5),
    DelayCompensated(),
    DelayCompensated.adaptive(),
    GapAware(),
]


class Server:
    """Carries out an update as a store does: the rule, SGD, the scaled step, the rule's end."""

    def __init__(self, rule: UpdateRule, weights: list[Any], rate: float, *, jit: bool) -> None:
        self.rule, self.rate = rule, rate
        self.weights = [jnp.asarray(w) for w in weights]
        self.shared, self.own_at_first = rule.init(self.weights)
        self.own: dict[int, Any] = {}
        self.versions = [self.weights]
        self.update = jax.jit(self._update) if jit else self._update

    def push(self, grads: list[Any], *, read: int, worker: int = 0) -> None:
        """Applies gradients that `worker` computed on the weights of version `read`."""
        staleness = jnp.float32(len(self.versions) - 1 - read)
        backup = self.versions[read] if self.rule.needs_backup else None
        own = self.own.get(worker, self.own_at_first)
        gradients = [jnp.asarray(g) for g in grads]
        self.weights, self.shared, self.own[worker] = self.update(
            gradients, self.weights, backup, staleness, self.shared, own
        )
        self.versions.append(self.weights)

    def _update(
        self, grads: Any, weights: Any, backup: Any, staleness: Any, shared: Any, own: Any
    ) -> Any:
        rule = self.rule
        grads, shared, own = rule.gradients(grads, weights, backup, staleness, shared, own)
        moved = [w - self.rate * g for w, g in zip(weights, grads, strict=True)]
        moved = scaled(weights, moved, rule.scale(staleness))
        steps = [new - old for new, old in zip(moved, weights, strict=True)]
        return moved, rule.finish(shared, steps), own


@pytest.fixture(params=[False, True], ids=["eager", "jit"])
def jit(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.mark.case("R89")
def test_steps_are_divided_by_their_staleness(jit: bool) -> None:
    server = Server(StalenessScaled(), [np.float32(0)], 0.1, jit=jit)
    for _ in range(4):
        server.push([np.float32(-1)], read=0)
    assert_close(server.weights[0], 0.1 + 0.1 + 0.1 / 2 + 0.1 / 3)
    assert_close(server.weights[0], 0.28333, GOLDEN)


def test_a_slope_divides_by_one_plus_its_multiple(jit: bool) -> None:
    server = Server(StalenessScaled(slope=0.5), [np.float32(0)], 0.1, jit=jit)
    for _ in range(3):
        server.push([np.float32(-1)], read=0)
    assert_close(server.weights[0], 0.1 + 0.1 / 1.5 + 0.1 / 2)


def test_plain_ignores_the_staleness(jit: bool) -> None:
    server = Server(Plain(), [np.float32(0)], 0.5, jit=jit)
    for _ in range(4):
        server.push([np.float32(-1)], read=0)
    assert_close(server.weights[0], np.float32(2), EXACT)


def test_adam_steps_are_scaled_and_its_slots_are_not() -> None:
    rate, first, second, epsilon = 0.1, 0.9, 0.999, 1e-7
    optimizer = keras.optimizers.Adam(rate, beta_1=first, beta_2=second, epsilon=epsilon)
    weight = keras.Variable(np.asarray([1.0, -2.0], np.float32))
    optimizer.build([weight])
    slots = [variable.value for variable in optimizer.variables]
    value, rule = weight.value, StalenessScaled()

    w = np.asarray([1.0, -2.0])
    m, v = np.zeros(2), np.zeros(2)
    pushes = [([0.5, -1.0], 0), ([2.0, 0.25], 1), ([-1.0, 3.0], 4)]
    for count, (grad, staleness) in enumerate(pushes, start=1):
        g = np.asarray(grad)
        grads = rule.gradients(
            [jnp.asarray(g, jnp.float32)], [value], None, jnp.float32(staleness), (), ()
        )[0]
        (new,), slots = optimizer.stateless_apply(slots, grads, [value])
        (value,) = scaled([value], [new], rule.scale(jnp.float32(staleness)))

        m = first * m + (1 - first) * g
        v = second * v + (1 - second) * g * g
        step = rate * (m / (1 - first**count)) / (np.sqrt(v / (1 - second**count)) + epsilon)
        w = w - step / max(1, staleness)
        assert_close(value, w)
    by_name = dict(zip([s.path for s in optimizer.variables], slots, strict=True))
    assert_close([x for name, x in by_name.items() if "momentum" in name], [m])
    assert_close([x for name, x in by_name.items() if "velocity" in name], [v])
    assert int(by_name["adam/iteration"]) == 3


def test_constant_delay_compensation_by_hand(jit: bool) -> None:
    server = Server(DelayCompensated(strength=0.5), [np.float32(1)], 0.1, jit=jit)
    server.push([np.float32(2)], read=0)
    assert_close(server.weights[0], 0.8)  # fresh: 1 - 0.1 * 2
    server.push([np.float32(2)], read=0)
    # g' = 2 + 0.5 * 4 * (0.8 - 1) = 1.6
    assert_close(server.weights[0], 0.64)
    server.push([np.float32(-1)], read=1)
    # g' = -1 + 0.5 * 1 * (0.64 - 0.8) = -1.08
    assert_close(server.weights[0], 0.748)


def test_adaptive_delay_compensation_by_hand(jit: bool) -> None:
    rule = DelayCompensated.adaptive(strength=2.0, decay=0.5, epsilon=1e-7)
    server = Server(rule, [np.float32(1)], 0.1, jit=jit)
    server.push([np.float32(2)], read=0)
    assert_close(server.own[0], {"mean_square": [2.0]})  # 0.5 * 0 + 0.5 * 4
    assert_close(server.weights[0], 0.8)
    server.push([np.float32(2)], read=0)
    # The mean square is 3, and g' = 2 + 2 / sqrt(3) * 4 * (0.8 - 1)
    assert_close(server.own[0], {"mean_square": [3.0]})
    second = 0.8 - 0.1 * (2 - 2 / np.sqrt(3 + 1e-7) * 4 * 0.2)
    assert_close(server.weights[0], second)
    server.push([np.float32(-1)], read=1)
    # The mean square is 0.5 * 3 + 0.5 * 1 = 2
    third = second - 0.1 * (-1 + 2 / np.sqrt(2 + 1e-7) * 1 * (second - 0.8))
    assert_close(server.weights[0], third)


def test_each_worker_has_a_mean_square_of_its_own(jit: bool) -> None:
    rule = DelayCompensated.adaptive(decay=0.5)
    server = Server(rule, [np.float32(1)], 0.1, jit=jit)
    server.push([np.float32(2)], read=0, worker=0)
    server.push([np.float32(4)], read=0, worker=1)
    server.push([np.float32(2)], read=1, worker=0)
    assert_close(server.own, {0: {"mean_square": [3.0]}, 1: {"mean_square": [8.0]}})


def test_adaptive_compensation_does_not_depend_on_the_scale_of_the_loss() -> None:
    """What the square root is for: gradients 100 times as large are corrected 100 times as much."""
    rule = DelayCompensated.adaptive(decay=0.0, epsilon=1e-30)
    weights, backup = [jnp.float32(1)], [jnp.float32(0.75)]
    for grad in (0.01, 1.0, 100.0):
        own = rule.init(weights)[1]
        (corrected,), _, _ = rule.gradients(
            [jnp.float32(grad)], weights, backup, jnp.float32(3), (), own
        )
        assert_close(corrected / grad, 1 + 2 * 0.25)  # g + 2 / |g| * g * g * (1 - 0.75)


def test_gap_aware_by_hand(jit: bool) -> None:
    server = Server(GapAware(), [np.float32(1)], 0.1, jit=jit)
    server.push([np.float32(2)], read=0)
    assert_close(server.weights[0], 0.8)
    assert_close(server.shared["mean_step"], [0.2])
    server.push([np.float32(2)], read=0)
    # gap = 1 + 0.2 / 0.2, so the step is 0.1
    assert_close(server.weights[0], 0.7)
    assert_close(server.shared["mean_step"], [(0.2 + 0.1) / 2])
    server.push([np.float32(-3)], read=0)
    third = 0.3 / (1 + 0.3 / 0.15)
    assert_close(server.weights[0], 0.7 + third)
    assert_close(server.shared["mean_step"], [(0.2 + 0.1 + third) / 3])


def test_a_fresh_push_has_no_gap() -> None:
    server = Server(GapAware(), [np.float32(0)], 0.5, jit=False)
    for version in range(3):
        server.push([np.float32(-2)], read=version)
    assert_close(server.weights[0], np.float32(3), EXACT)


def test_without_a_mean_step_the_gap_is_one(jit: bool) -> None:
    """At first, and for elements that no update has moved yet, whatever else wrote to them."""
    rule = GapAware()
    damp = jax.jit(rule.gradients) if jit else rule.gradients
    weights, backup = [jnp.asarray([3.0, 3.0])], [jnp.zeros(2)]
    shared, own = rule.init(weights)
    grads = [jnp.asarray([1.0, 1.0])]
    with jax.debug_nans(True):
        first, _, _ = damp(grads, weights, backup, jnp.float32(1), shared, own)
        moved = rule.finish(shared, [jnp.asarray([0.0, -1.5])])
        second, _, _ = damp(grads, weights, backup, jnp.float32(1), moved, own)
    assert_close(first, [np.asarray([1, 1], np.float32)], EXACT)
    assert_close(second, [[1.0, 1 / 3]])


def test_the_mean_step_forgets_what_lies_before_its_window() -> None:
    rule = GapAware(window=2)
    shared, _ = rule.init([jnp.float32(0)])
    wanted = []
    for step in (4.0, -2.0, 1.0, 0.0):
        shared = rule.finish(shared, [jnp.float32(step)])
        wanted.append(float(shared["mean_step"][0]))
    assert wanted == [4.0, 3.0, 2.0, 1.0]  # each time half of the old mean and half of the step
    assert int(shared["num_steps"]) == 2


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_compiled_and_eager_agree(rule: UpdateRule) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 2), (2,), ())]
    pushes = [[rng.normal(size=w.shape).astype(np.float32) for w in weights] for _ in range(6)]
    reads = [0, 0, 1, 3, 2, 5]
    servers = [Server(rule, weights, 0.1, jit=jit) for jit in (False, True)]
    for server in servers:
        for index, (grads, read) in enumerate(zip(pushes, reads, strict=True)):
            server.push(grads, read=read, worker=index % 2)
    eager, compiled = servers
    state = [(s.weights, s.shared, s.own) for s in (compiled, eager)]
    assert_close(*state, REFERENCE)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_rule_is_compiled_once(rule: UpdateRule) -> None:
    server = Server(rule, [np.ones(2, np.float32)], 0.1, jit=True)
    for read in (0, 0, 1):
        server.push([np.ones(2, np.float32)], read=read)
    assert server.update._cache_size() == 1  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtypes_and_what_is_not_floating_are_kept(rule: UpdateRule, dtype: str) -> None:
    weights = [jnp.ones(2, dtype), jnp.arange(2, dtype=jnp.int32), jnp.ones((), jnp.float32)]
    backup = [jnp.zeros(2, dtype), jnp.zeros(2, jnp.int32), jnp.zeros((), jnp.float32)]
    # 300 ** 2 is more than float16 holds.
    grads = [jnp.full(2, 300, dtype), jnp.arange(2, dtype=jnp.int32), jnp.ones((), dtype)]
    shared, own = rule.init(weights)
    result, new_shared, new_own = rule.gradients(
        grads, weights, backup, jnp.float32(2), shared, own
    )
    assert [g.dtype for g in result] == [g.dtype for g in grads]
    assert all(bool(jnp.isfinite(g).all()) for g in result)
    assert_close(result[1], np.arange(2), EXACT)
    after = rule.finish(new_shared, backup)
    before = jax.tree.map(lambda x: (x.shape, x.dtype), (shared, own))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), (after, new_own)) == before

    moved = [jnp.full(2, 3, dtype), jnp.arange(2, dtype=jnp.int32) + 1, jnp.float32(3)]
    stepped = scaled(weights, moved, jnp.float32(0.5))
    assert [w.dtype for w in stepped] == [w.dtype for w in weights]
    assert_close(stepped, [np.full(2, 2.0), np.arange(2) + 1, 2.0], EXACT)


def test_a_scale_of_one_changes_no_bit(jit: bool) -> None:
    rng = np.random.default_rng(0)
    old = [jnp.asarray(rng.normal(size=1000), jnp.float32)]
    new = [jnp.asarray(rng.normal(size=1000) * 1e-3, jnp.float32)]
    step = jax.jit(scaled) if jit else scaled
    for staleness in (0, 1):
        scale = StalenessScaled().scale(jnp.float32(staleness))
        assert_close(step(old, new, scale), [np.asarray(new[0])], EXACT)
    assert_close(scaled(old, new, None), [np.asarray(new[0])], EXACT)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_number_for_reports_is_the_scale(rule: UpdateRule) -> None:
    for staleness in (0, 1, 2, 7.5, 31):
        scale = rule.scale(jnp.float32(staleness))
        if scale is not None:
            assert scale.dtype == jnp.float32
            assert_close(scale, rule.effective_scale(staleness))
    assert rule.effective_scale(0) == 1.0
    assert 0 < rule.effective_scale(100) <= 1.0


def test_a_gap_of_equal_steps_is_as_reported() -> None:
    server = Server(GapAware(), [np.float32(0)], 1.0, jit=False)
    for version in range(4):
        server.push([np.float32(-1)], read=version)
    server.push([np.float32(-1)], read=1)
    assert_close(server.weights[0] - 4, GapAware().effective_scale(3))


def test_rules_compare_and_hash_by_their_options() -> None:
    assert len(set(RULES)) == len(RULES)
    assert DelayCompensated.adaptive() == DelayCompensated(strength=2.0, decay=0.95)
    assert [rule.needs_backup for rule in RULES] == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StalenessScaled(slope=-1), r"slope of StalenessScaled is 0 or more and finite"),
        (lambda: DelayCompensated(strength=-0.1), r"strength of .* Received: strength=-0\.1"),
        (lambda: DelayCompensated(strength=float("nan")), r"Received: strength=nan"),
        (lambda: DelayCompensated.adaptive(decay=1.0), r"decay of .* 0 or more and below 1\."),
        (lambda: DelayCompensated.adaptive(epsilon=0.0), r"epsilon of .* above 0 and finite"),
        (lambda: GapAware(window=0), r"window of GapAware is 1 or more and finite"),
    ],
)
def test_options_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: StalenessScaled(slope="fast"),  # pyright: ignore[reportArgumentType]
        lambda: DelayCompensated(strength=True),
        lambda: GapAware(window=1.5),  # pyright: ignore[reportArgumentType]
    ],
)
def test_options_of_another_type_are_refused(make: Any) -> None:
    with pytest.raises(InvalidType, match=r"Received: (slope='fast'|strength=True|window=1\.5)"):
        make()
