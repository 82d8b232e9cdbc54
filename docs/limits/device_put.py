"""What it costs to move arrays from one CPU device to another: `jax.device_put`, and NumPy's views.

    python docs/limits/device_put.py

Plain JAX, without Paceline. Prints the microseconds until a compiled call on the second device has
taken four arrays of the first one: a Dense 784-128-10's weights.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

jax.config.update("jax_num_cpu_devices", 2)


def microseconds(call: Callable[[], Any], rounds: int = 15, count: int = 200) -> float:
    """The median over rounds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            jax.block_until_ready(call())
        found.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(found)


def main() -> None:
    """Measures and prints."""
    here, there = jax.devices()
    shapes = ((784, 128), (128,), (128, 10), (10,))
    weights = [jax.device_put(jnp.ones(shape), here) for shape in shapes]
    step = jax.jit(lambda arrays: [jnp.sum(array) for array in arrays])

    def by_views() -> Any:
        with jax.default_device(there):
            return step([np.asarray(weight) for weight in weights])

    print(f"where they are: {microseconds(lambda: step(weights)):.0f} us")
    print(f"device_put:     {microseconds(lambda: step(jax.device_put(weights, there))):.0f} us")
    print(f"views:          {microseconds(by_views):.0f} us")


if __name__ == "__main__":
    main()
