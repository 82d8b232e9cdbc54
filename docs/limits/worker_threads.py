"""Shows that more threads than cores buy no steps a second on a CPU, in plain JAX.

Run it with `python docs/limits/worker_threads.py`, on a machine that does nothing else. Every
thread makes gradients of the same size with one compiled function, as workers do; they share
nothing.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from collections.abc import Callable


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """Any loss of a small network."""
    return jnp.sum(jnp.tanh(x @ weights[0]) @ weights[1])


def steps_per_second(gradient: Callable[..., object], num_threads: int, seconds: float) -> float:
    """Lets threads make gradients for a while."""
    weights = [jnp.ones((784, 128)) / 784, jnp.ones((128, 10)) / 128]
    x = jnp.ones((64, 784))
    jax.block_until_ready(gradient(weights, x))
    counts = [0] * num_threads
    end = time.monotonic() + seconds

    def work(i: int) -> None:
        while time.monotonic() < end:
            jax.block_until_ready(gradient(weights, x))
            counts[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def main() -> None:
    """Prints steps a second for more and more threads, the best of several rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    gradient = jax.jit(jax.grad(loss))
    best = dict.fromkeys((1, 2, 4, 8, 16), 0.0)
    for _ in range(options.rounds):
        for num_threads in best:
            speed = steps_per_second(gradient, num_threads, options.seconds)
            best[num_threads] = max(best[num_threads], speed)
    print(f"{os.cpu_count()} cores")
    for num_threads, speed in best.items():
        print(f"{num_threads:3} threads: {speed:8,.0f} steps a second")


if __name__ == "__main__":
    main()
