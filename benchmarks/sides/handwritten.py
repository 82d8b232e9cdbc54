"""The reference: a data-parallel JAX loop by hand, `shard_map` with `pmean` and optax's Adam."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import common
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

if TYPE_CHECKING:
    import numpy as np

# JAX on CPU lets 32 computations per device be in flight. When a loop fills that, the devices wait
# for each other in the all-reduce for ever. So this loop, like any by hand, waits now and then.
IN_FLIGHT = 16

Params = list[jax.Array]

adam = optax.adam(common.LEARNING_RATE, eps=common.EPSILON)


def mean_loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Gives the mean loss of this replica's rows."""
    kernel_1, bias_1, kernel_2, bias_2 = params
    logits = jax.nn.relu(x @ kernel_1 + bias_1) @ kernel_2 + bias_2
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))


def replica_step(
    params: Params, state: optax.OptState, x: jax.Array, y: jax.Array
) -> tuple[optax.Params, optax.OptState, jax.Array]:
    """Trains one step on this replica's rows; params and state are replicated."""
    loss, gradients = jax.value_and_grad(mean_loss)(params, x, y)
    loss, gradients = jax.lax.pmean((loss, gradients), "replica")
    updates, state = adam.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    jax.config.update("jax_num_cpu_devices", common.REPLICAS)
    mesh = jax.make_mesh((common.REPLICAS,), ("replica",))
    replicated, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("replica"))
    compiled = jax.jit(
        jax.shard_map(
            replica_step,
            mesh=mesh,
            in_specs=(P(), P(), P("replica"), P("replica")),
            out_specs=P(),
            # With the check, gradients of replicated params would arrive already summed.
            check_vma=False,
        ),
        donate_argnums=(0, 1),
    )
    params = jax.device_put(common.weights(), replicated)
    state = jax.device_put(adam.init(params), replicated)
    in_flight: deque[jax.Array] = deque()

    def step(x: np.ndarray, y: np.ndarray) -> jax.Array:
        nonlocal params, state
        params, state, loss = compiled(params, state, *jax.device_put((x, y), by_rows))
        in_flight.append(loss)
        if len(in_flight) > IN_FLIGHT:
            in_flight.popleft().block_until_ready()
        return loss

    measurement = common.time_loop(step, common.batches(), steps=args.steps, read=float)
    common.report(measurement, "jax", "optax", "numpy")


if __name__ == "__main__":
    main()
