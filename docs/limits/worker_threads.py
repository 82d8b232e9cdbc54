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

import jax
import jax.numpy as jnp


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """Any loss of a small network."""
    return jnp.sum(jnp.tanh(x @ weights[0]) @ weights[1])


def main() -> None:
    """Prints steps a second for more and more threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    gradient = jax.jit(jax.grad(loss))
    weights = [jnp.ones((784, 128)) / 784, jnp.ones((128, 10)) / 128]
    x = jnp.ones((64, 784))
    jax.block_until_ready(gradient(weights, x))
    print(f"{os.cpu_count()} cores")
    for num_threads in (1, 2, 4, 8, 16):
        counts = [0] * num_threads
        end = time.monotonic() + options.seconds

        def work(i: int, counts: list[int] = counts, end: float = end) -> None:
            while time.monotonic() < end:
                jax.block_until_ready(gradient(weights, x))
                counts[i] += 1

        threads = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{num_threads:3} threads: {sum(counts) / options.seconds:8,.0f} steps a second")


if __name__ == "__main__":
    main()
