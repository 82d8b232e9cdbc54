"""The reference with a store: asynchronous training with JAX by hand, workers as threads.

The weights and Adagrad's state are behind a lock. A worker takes a reference to the weights,
computes a gradient outside of the lock, waits for it, and applies it under the lock to what the
weights are by then.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import common
import jax
import jax.numpy as jnp
import numpy as np
import optax

if TYPE_CHECKING:
    from collections.abc import Iterator

Params = list[jax.Array]

adagrad = optax.adagrad(
    common.ADAGRAD_RATE, initial_accumulator_value=common.ADAGRAD_START, eps=common.EPSILON
)


def mean_loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Gives the mean loss of a batch."""
    kernel_1, bias_1, kernel_2, bias_2 = params
    logits = jax.nn.relu(x @ kernel_1 + bias_1) @ kernel_2 + bias_2
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))


loss_and_gradients = jax.jit(jax.value_and_grad(mean_loss))


@jax.jit
def update(params: Params, state: optax.OptState, gradients: Params) -> Any:
    """Applies gradients; nothing is donated, since workers may still read the old weights."""
    updates, state = adagrad.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


class Store:
    """The weights and the optimizer's state, for threads.

    Args:
        device: Where they are.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._lock = threading.Lock()  # guards the two below
        self._params: Any = jax.device_put(common.weights(), device)
        self._state: Any = jax.device_put(adagrad.init(self._params), device)

    def pull(self, device: Any) -> Params:
        """Gives the current weights, which is a copy only for another device."""
        with self._lock:
            params = self._params
        return params if device == self._device else jax.device_put(params, device)

    def push(self, gradients: Params) -> None:
        """Applies gradients, which a worker has waited for."""
        gradients = jax.device_put(gradients, self._device)
        with self._lock:
            self._params, self._state = update(self._params, self._state, gradients)

    def wait(self) -> None:
        """Waits for the last update."""
        jax.block_until_ready(self._params)


def train(
    store: Store, workers: list[Iterator[common.Batch]], num_cpu_devices: int, steps: int
) -> list[float]:
    """Takes so many steps, with a thread for each iterator; gives their losses."""
    left = iter(range(steps))  # whoever is free takes the next step
    losses: list[list[jax.Array]] = [[] for _ in workers]

    def work(index: int, batches: Iterator[common.Batch]) -> None:
        device = jax.devices()[index % num_cpu_devices]
        with jax.default_device(device):
            for _ in left:
                x, y = next(batches)
                loss, gradients = loss_and_gradients(store.pull(device), x, y)
                store.push(jax.block_until_ready(gradients))
                losses[index].append(loss)

    threads = [threading.Thread(target=work, args=item) for item in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.wait()
    return [float(loss) for loss in itertools.chain(*losses)]


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    jax.config.update("jax_num_cpu_devices", args.cpu_devices)
    store = Store(jax.devices()[0])
    workers = [iter(common.worker_batches(index)) for index in range(args.workers)]
    start = time.perf_counter()
    losses = train(store, workers[:1], args.cpu_devices, 1)
    compile_s = time.perf_counter() - start
    losses += train(store, workers, args.cpu_devices, common.STEPS_PER_EPOCH - 1)

    steps = common.whole_epochs(args.steps) * common.STEPS_PER_EPOCH
    start = time.perf_counter()
    train(store, workers, args.cpu_devices, steps)
    seconds = time.perf_counter() - start
    measurement = common.Measurement(
        steps_per_s=steps / seconds,
        compile_s=compile_s,
        first_epoch_loss=float(np.mean(losses)),
    )
    common.report(measurement, "jax", "optax", "numpy")


if __name__ == "__main__":
    main()
