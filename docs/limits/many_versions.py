"""What it costs that asynchronous workers read old weights: a loop by hand, in plain JAX.

    python docs/limits/many_versions.py

Both loops make the same number of gradients and updates of a Dense 784-512-10. One reads the newest
weights and updates them in place. The other reads those of as many updates ago as there are
workers, less one, so that many versions are kept, and none can be updated in place. Prints the
second one's gradients a second as a part of the first one's.
"""

from __future__ import annotations

import collections
import functools
import statistics
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, COUNT, ROUNDS = 128, 128, 16


def loss_of(weights: Any, x: Any, y: Any) -> Any:
    """Mean cross-entropy."""
    kernel, bias, head, shift = weights
    logits = jax.nn.relu(x @ kernel + bias) @ head + shift
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


gradients_of = jax.jit(jax.grad(loss_of))


def changed(weights: Any, gradients: Any) -> Any:
    """One step of gradient descent."""
    return [weight - 1e-3 * grad for weight, grad in zip(weights, gradients, strict=True)]


in_place = functools.partial(jax.jit, donate_argnums=0)(changed)
beside = jax.jit(changed)


def start() -> list[Any]:
    """The first weights."""
    return [jnp.full(shape, 0.01) for shape in ((784, 512), (512,), (512, 10), (10,))]


def newest(data: list[Any]) -> None:
    """Reads the newest weights."""
    weights = start()
    for x, y in data:
        weights = in_place(weights, jax.block_until_ready(gradients_of(weights, x, y)))
    jax.block_until_ready(weights)


def old(data: list[Any], workers: int) -> None:
    """Reads those of `workers - 1` updates ago."""
    versions = collections.deque([start()] * workers, maxlen=workers)
    for x, y in data:
        gradients = jax.block_until_ready(gradients_of(versions[0], x, y))
        versions.append(beside(versions[-1], gradients))
    jax.block_until_ready(versions[-1])


def seconds(run: Callable[[], None]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def main() -> None:
    """Measures in turns and prints."""
    rng = np.random.default_rng(0)
    data = [
        (rng.normal(size=(BATCH, 784)).astype("float32"), rng.integers(0, 10, BATCH))
        for _ in range(COUNT)
    ]
    for workers in (1, 8, 64):
        runs = (lambda: newest(data), lambda w=workers: old(data, w))
        for run in runs:
            run()
        ratios = []
        for number in range(ROUNDS):
            order = (0, 1) if number % 2 else (1, 0)
            took = {which: seconds(runs[which]) for which in order}
            ratios.append(took[0] / took[1])
        print(f"{workers:3} workers: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
