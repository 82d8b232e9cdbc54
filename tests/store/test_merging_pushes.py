"""Groups of pushes as one update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidArgument
from paceline.store.rules import StalenessScaled, group_scale, merge_weights, merged
from paceline.testing.tolerances import EXACT, REFERENCE, assert_close


@pytest.mark.case("R98")
@pytest.mark.parametrize(("merge", "expected"), [("sum", -4.0), ("mean", -2.0)])
def test_two_pushes_are_summed_or_averaged(merge: str, expected: float) -> None:
    (grad,) = merged([[jnp.float32(1)], [jnp.float32(3)]], merge_weights(merge, [5, 5]))
    assert_close(0 - grad, np.float32(expected), EXACT)  # SGD at rate 1


def test_a_mean_counts_examples() -> None:
    assert_close(merge_weights("mean", [6, 2, 0]), [0.75, 0.25, 0.0])
    assert_close(merge_weights("mean", [0, 0]), [0.5, 0.5])
    assert_close(merge_weights("sum", [6, 2, 0]), [1.0, 1.0, 1.0])


def test_softsync_with_scaled_steps() -> None:
    """Zhang et al.: w <- w - (1/c) * sum of rate / tau_i * g_i."""
    rule = StalenessScaled()
    scales = jnp.stack([rule.scale(jnp.float32(tau)) for tau in (1, 2, 4)])
    weights, scale = group_scale(merge_weights("mean", [8, 8, 8]), scales)
    (grad,) = merged([[jnp.float32(g)] for g in (3.0, -2.0, 8.0)], weights)
    assert_close(scale, (1 + 1 / 2 + 1 / 4) / 3)
    assert_close(scale * grad, (3.0 / 1 - 2.0 / 2 + 8.0 / 4) / 3)


FACTORS = st.lists(
    st.tuples(st.floats(0.01, 10), st.floats(0.01, 1), st.floats(-10, 10)), min_size=1, max_size=6
)


@settings(deadline=None)  # every new length is compiled
@given(FACTORS)
def test_the_step_of_a_group_is_that_of_its_pushes(pushes: list[tuple[float, ...]]) -> None:
    w, s, g = (np.asarray(column, np.float32) for column in zip(*pushes, strict=True))
    weights, scale = group_scale(w, s)
    (grad,) = merged([[jnp.asarray([x])] for x in g], weights)
    exact = [column.astype(np.float64) for column in (w, s, g)]
    size = float(np.prod(np.abs(exact), axis=0).sum())
    # Compared with the size of the terms, as they may cancel.
    assert_close(scale * grad[0] / (1 + size), np.prod(exact, axis=0).sum() / (1 + size))
    assert_close(jnp.sum(weights) / np.sum(w), 1.0)  # the size of a gradient stays what it was


def test_fresh_pushes_keep_their_weights_to_the_bit() -> None:
    wanted = merge_weights("mean", [3, 5, 11])
    weights, scale = group_scale(wanted, np.ones(3, np.float32))
    assert_close((weights, scale), (wanted, np.float32(1)), EXACT)


@pytest.mark.parametrize(("weights", "scales"), [([0.0, 0.0], [1.0, 0.5]), ([1.0, 1.0], [0, 0])])
def test_a_group_that_counts_nothing_moves_nothing(weights: Any, scales: Any) -> None:
    result, scale = group_scale(jnp.asarray(weights), jnp.asarray(scales, jnp.float32))
    assert_close((result, scale), (np.zeros(2, np.float32), np.float32(1)), EXACT)


def test_one_push_is_itself_to_the_bit() -> None:
    grad = jnp.asarray(np.random.default_rng(0).normal(size=1000), jnp.float32)
    assert_close(merged([[grad]], merge_weights("mean", [7])), [np.asarray(grad)], EXACT)


def test_compiled_and_eager_agree() -> None:
    rng = np.random.default_rng(0)
    pushes = [[jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((3, 2), ())] for _ in "123"]
    scales = jnp.asarray([1.0, 0.5, 0.2])

    def update(grads: Any, weights: Any, scales: Any) -> Any:
        weights, scale = group_scale(weights, scales)
        return merged(grads, weights), scale

    weights = merge_weights("mean", [1, 2, 3])
    got, want = jax.jit(update)(pushes, weights, scales), update(pushes, weights, scales)
    assert_close(got, want, REFERENCE)


def test_half_precision_is_summed_in_single() -> None:
    grads = [[jnp.asarray([2.0**11], jnp.float16)], *[[jnp.asarray([1.0], jnp.float16)]] * 2]
    (total,) = merged(grads, merge_weights("sum", [1, 1, 1]))
    assert total.dtype == jnp.float16
    assert_close(total, np.asarray([2.0**11 + 2], np.float16), EXACT)


def test_what_is_not_floating_comes_from_the_last_push() -> None:
    (last,) = merged([[jnp.int32(3)], [jnp.int32(4)]], merge_weights("sum", [1, 1]))
    assert_close(last, np.int32(4), EXACT)


def test_bad_groups_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"by 'sum' or by 'mean'\. Received: merge='max'"):
        merge_weights("max", [1])
    with pytest.raises(InvalidArgument, match=r"1 or more pushes.*Received: examples=\[\]"):
        merge_weights("sum", [])
    with pytest.raises(InvalidArgument, match=r"0 or more examples.*Received: examples=\[-1\]"):
        merge_weights("mean", [-1])
    with pytest.raises(InvalidArgument, match=r"1 or more pushes\. Received: an empty group"):
        merged([], [])
