"""Steps that close over arrays of the strategy, which lie on all of its devices as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import paceline as tf
from paceline.testing import REFERENCE, assert_close
from replica_values import mirrored_strategy

if TYPE_CHECKING:
    from collections.abc import Callable

# Functions of a replica's rows `x` [example, feature] and of an array `c` [feature].
FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "as it is": lambda x, c: x * c,
    "jit": lambda x, c: jax.jit(lambda y: y * c)(x),
    "argument of jit": lambda x, c: jax.jit(jnp.multiply)(x, c),
    "vmap": lambda x, c: jax.vmap(lambda y: y * c)(x),
    "checkpoint": lambda x, c: jax.checkpoint(lambda y: jnp.sin(y) * c)(x),
    "scan": lambda x, c: jax.lax.scan(lambda a, y: (a + y * c, y * c), c, x)[0],
    "fori_loop": lambda x, c: jax.lax.fori_loop(0, 3, lambda _, a: a * c, x),
    "cond": lambda x, c: jax.lax.cond(x.sum() > 0, lambda y: y * c, lambda y: y - c, x),
    "linear solver": lambda x, c: jnp.linalg.solve(jnp.diag(c), x.sum(axis=0)),
    "custom derivative": lambda x, c: jax.nn.relu(x * c) + jax.nn.softmax(c),
    "nested": lambda x, c: jax.jit(
        lambda y: jax.lax.cond(True, lambda z: jax.jit(lambda w: w * c)(z), lambda z: z, y)
    )(x),
}


def value_and_gradients(form: str, x: Any, c: Any) -> Any:
    def total(x: Any, factor: Any) -> Any:
        return (FORMS[form](x, c) * factor).sum()

    return FORMS[form](x, c).sum(), jax.grad(total)(x, c), jax.grad(total, 1)(x, c)


@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients(form: str) -> None:
    strategy = mirrored_strategy(2)
    with strategy.scope():
        array = tf.Variable([1.0, 2.0, 3.0]).value
    rows = np.arange(9, dtype="float32").reshape(3, 3)
    step = tf.function(lambda x: value_and_gradients(form, x, array))
    batch = next(iter(strategy.experimental_distribute_dataset([rows])))
    results = strategy.experimental_local_results(strategy.run(step, args=(batch,)))
    for own, part in zip((rows[:2], rows[2:]), results, strict=True):
        expected = value_and_gradients(form, jnp.asarray(own), jnp.asarray([1.0, 2.0, 3.0]))
        assert_close(part, expected, REFERENCE)
