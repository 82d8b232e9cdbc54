"""`assert_close` accepts what is close and says where the rest differs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from paceline.testing import CONVERGENCE, EXACT, GOLDEN, REFERENCE, Tolerance, assert_close


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (np.float32(1), 1),
        (jnp.arange(3), [0, 1, 2]),
        (jnp.float32([0.5, 1.5]), [0.5, 1.5]),
        (np.array([True, False]), [True, False]),
        (np.array(2**62 + 1), 2**62 + 1),
        (jnp.bfloat16([1, 2]), np.float32([1, 2])),
        ({"a": (np.ones(2), None)}, {"a": ([1, 1], None)}),
        ([], []),
    ],
)
def test_equal_values_pass_exactly(actual: Any, expected: Any) -> None:
    assert_close(actual, expected, EXACT)


def test_a_keras_variable_is_compared_by_value() -> None:
    assert_close({"v": keras.Variable([1.0, 2.0])}, {"v": [1, 2]}, EXACT)


@pytest.mark.parametrize("tolerance", [REFERENCE, GOLDEN, CONVERGENCE])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_the_dtype_of_the_actual_value_decides(tolerance: Tolerance, dtype: str) -> None:
    rtol, atol = tolerance.of(jnp.dtype(dtype))
    actual = np.array(100, jnp.dtype(dtype))
    bound = 100 * rtol + atol
    assert_close(actual, 100 + 0.9 * bound, tolerance)
    with pytest.raises(AssertionError, match=f"{tolerance.name} at the value"):
        assert_close(actual, 100 + 1.2 * bound, tolerance)


def test_integers_have_no_tolerance() -> None:
    with pytest.raises(AssertionError, match="CONVERGENCE at the value"):
        assert_close(np.int32(1000), 1001, CONVERGENCE)
    with pytest.raises(AssertionError, match="EXACT"):
        assert_close(np.array(2**62 + 1), 2**62, EXACT)


def test_a_failure_names_the_place_in_the_nest() -> None:
    with pytest.raises(AssertionError, match=r"REFERENCE at \['b'\]\[1\]"):
        assert_close({"a": np.ones(1), "b": [np.ones(1), np.ones(1)]}, {"a": [1], "b": [[1], [2]]})


def test_shapes_and_nests_must_agree() -> None:
    with pytest.raises(AssertionError, match=r"The shapes differ at \[0\].*\(2,\).*\(1,\)"):
        assert_close([np.ones(2)], [[1.0]])
    with pytest.raises(AssertionError, match="The nests differ"):
        assert_close({"a": np.ones(1)}, {"b": np.ones(1)})
