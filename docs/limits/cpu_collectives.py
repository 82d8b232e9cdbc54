"""Shows that plain JAX locks up when many all-reduces are dispatched to CPU devices unread.

Run it with a time limit: `timeout 60 python docs/limits/cpu_collectives.py`. With `--wait 16` it
waits for the step before the last sixteen, and ends.
"""

from __future__ import annotations

import argparse
import collections

import jax

jax.config.update("jax_num_cpu_devices", 2)

import jax.numpy as jnp  # noqa: E402  (after the number of devices is set)
from jax.sharding import PartitionSpec  # noqa: E402


def main() -> None:
    """Dispatches steps with one all-reduce each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--wait", type=int, default=0, help="steps under way; 0 for no limit")
    options = parser.parse_args()
    mesh = jax.make_mesh((2,), ("replica",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    def step(x: jax.Array) -> jax.Array:
        return jax.lax.pmean(jnp.tanh(x @ x), "replica")

    x = jnp.eye(128)
    under_way: collections.deque[jax.Array] = collections.deque()
    for _ in range(options.steps):
        x = step(x)
        under_way.append(x)
        if options.wait and len(under_way) > options.wait:
            under_way.popleft().block_until_ready()
    print("ended:", float(x.sum()))


if __name__ == "__main__":
    main()
