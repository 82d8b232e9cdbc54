"""How close two numbers must be: the only place where tests take their tolerances from."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """A named pair of relative and absolute bounds for each floating dtype.

    Attributes:
        name: what a failure message calls it.
        bounds: `(rtol, atol)` by dtype name. Values of every other dtype must be equal.
    """

    name: str
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def of(self, dtype: np.dtype[Any]) -> tuple[float, float]:
        """Returns `(rtol, atol)` for values of one dtype."""
        return self.bounds.get(dtype.name, (0.0, 0.0))


EXACT = Tolerance(name="EXACT")
"""For what moves or re-lays-out data, and for sums of small integers held in floats."""

REFERENCE = Tolerance(
    name="REFERENCE",
    bounds=MappingProxyType(
        {
            "bfloat16": (1e-2, 1e-2),
            "float16": (2e-3, 1e-3),
            "float32": (1e-5, 1e-6),
            "float64": (1e-12, 1e-12),
        }
    ),
)
"""For the same computation on one device, whose sums run in another order."""

GOLDEN = Tolerance(
    name="GOLDEN",
    bounds=MappingProxyType(
        {
            "bfloat16": (1e-2, 1e-2),
            "float16": (1e-2, 1e-2),
            "float32": (1e-5, 1e-5),
            "float64": (1e-5, 1e-5),
        }
    ),
)
"""For numbers written down earlier, and for weights after several steps."""

CONVERGENCE = Tolerance(
    name="CONVERGENCE",
    bounds=MappingProxyType(
        dict.fromkeys(("bfloat16", "float16", "float32", "float64"), (3e-2, 3e-2))
    ),
)
"""For where training ends up on a toy problem with a fixed seed."""


def assert_close(actual: Any, expected: Any, tolerance: Tolerance = REFERENCE) -> None:
    """Checks a nest of arrays, variables or numbers against the expected one.

    Shapes must agree. The dtype of each actual value decides how close it must be, and a
    Python number or a list stands for an array of any dtype.

    Args:
        actual: the nest to check.
        expected: the same nest, where a list of numbers may stand for an array.
        tolerance: one of the named tolerances of this module.

    Raises:
        AssertionError: the nests, shapes or values differ; says where and by how much.

    Example:
        ```python
        assert_close(variable, [0.5, 1.5])
        assert_close(sharded.get_weights(), single.get_weights(), GOLDEN)
        ```
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(actual)
    try:
        wanted = structure.flatten_up_to(expected)
    except ValueError as error:
        raise AssertionError(
            f"The nests differ. Actual: {actual!r}. Expected: {expected!r}."
        ) from error
    for (path, leaf), want in zip(leaves, wanted, strict=True):
        where = jax.tree_util.keystr(path) or "the value"
        _check(np.asarray(leaf), np.asarray(want), tolerance, where)


def _check(
    got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], tolerance: Tolerance, where: str
) -> None:
    if got.shape != want.shape:
        raise AssertionError(
            f"The shapes differ at {where}. Actual: {got.shape}, {got!r}. "
            f"Expected: {want.shape}, {want!r}."
        )
    message = f"{tolerance.name} at {where}"
    if not any(jnp.issubdtype(array.dtype, jnp.floating) for array in (got, want)):
        np.testing.assert_array_equal(got, want, err_msg=message)
        return
    rtol, atol = tolerance.of(got.dtype)
    # NumPy compares bfloat16 only after a conversion, and float64 holds every other float.
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, err_msg=message
    )
