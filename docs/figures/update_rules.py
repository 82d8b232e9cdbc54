"""What the update rules do to training with stale gradients: digits, SGD, workers in virtual time.

    python docs/figures/update_rules.py

Workers pull, compute for a random time and push; so n of them have a mean staleness of n - 1. Every
setting makes the same 3,200 gradients of 16 examples. The order of pushes is drawn before, so that
a whole run is one compiled loop, and all learning rates and seeds run side by side. A few minutes.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import paceline as tf
from paceline.store.rules import scaled

if TYPE_CHECKING:
    from paceline.update_rules import UpdateRule

STEPS, BATCH, SEEDS = 3200, 16, 2
RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
RULES = (
    tf.update_rules.Plain(),
    tf.update_rules.StalenessScaled(),
    tf.update_rules.DelayCompensated(),
    tf.update_rules.DelayCompensated.adaptive(),
    tf.update_rules.GapAware(),
)


def order_of_pushes(workers: int) -> tuple[np.ndarray, np.ndarray]:
    """The worker and the staleness of every push, for steps of 1 s and a random while more."""
    chance = np.random.default_rng(0)
    clock = [(1 + chance.exponential(0.3), worker) for worker in range(workers)]
    heapq.heapify(clock)
    read, order = [0] * workers, []
    for version in range(STEPS):
        now, worker = heapq.heappop(clock)
        order.append((worker, version - read[worker]))
        read[worker] = version + 1
        heapq.heappush(clock, (now + 1 + chance.exponential(0.3), worker))
    pairs = np.array(order, np.int32)
    return pairs[:, 0], pairs[:, 1]


def loss_of(weights: list[Any], x: Any, y: Any) -> Any:
    """The mean cross-entropy of an MLP 64-64-10."""
    logits = logits_of(weights, x)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))


def logits_of(weights: list[Any], x: Any) -> Any:
    """Its outputs."""
    return jax.nn.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]


def accuracies(rule: UpdateRule, workers: int, data: Any) -> np.ndarray:
    """The test accuracy, `[seed, rate]`."""
    (x_train, y_train), (x_test, y_test) = data
    pushes = order_of_pushes(workers)

    def train(key: Any, rate: Any) -> Any:
        of_first, of_second, of_batches = jax.random.split(key, 3)
        he = jax.nn.initializers.he_normal()
        weights = [he(of_first, (64, 64)), jnp.zeros(64), he(of_second, (64, 10)), jnp.zeros(10)]
        shared, own = rule.init(weights)

        def repeated(x: Any) -> Any:
            return jnp.repeat(x[None], workers, axis=0)

        snapshots, owns = jax.tree.map(repeated, weights), jax.tree.map(repeated, own)
        batches = jax.random.randint(of_batches, (STEPS, BATCH), 0, len(x_train))

        def push(state: Any, event: Any) -> tuple[Any, None]:
            weights, snapshots, shared, owns = state
            (worker, staleness), rows = event
            staleness = staleness.astype(jnp.float32)
            read, own = jax.tree.map(lambda x: x[worker], (snapshots, owns))
            grads = jax.grad(loss_of)(read, x_train[rows], y_train[rows])
            grads, shared, own = rule.gradients(grads, weights, read, staleness, shared, own)
            stepped = [w - rate * g for w, g in zip(weights, grads, strict=True)]
            new = scaled(weights, stepped, rule.scale(staleness))
            shared = rule.finish(shared, [b - a for a, b in zip(weights, new, strict=True)])
            put = jax.tree.map(lambda x, y: x.at[worker].set(y), (snapshots, owns), (new, own))
            return (new, put[0], shared, put[1]), None

        state = weights, snapshots, shared, owns
        weights = jax.lax.scan(push, state, (pushes, batches))[0][0]
        return jnp.mean(jnp.argmax(logits_of(weights, x_test), axis=1) == y_test)

    keys = jax.random.split(jax.random.key(0), SEEDS)
    grid = jax.vmap(jax.vmap(train, in_axes=(None, 0)), in_axes=(0, None))
    return np.asarray(jax.jit(grid)(keys, jnp.array(RATES)))


def main() -> None:
    """Prints the tables."""
    (x_train, y_train), (x_test, y_test) = tf.datasets.digits.load_data()
    x_train, x_test = (x.reshape(-1, 64).astype("float32") / 16 for x in (x_train, x_test))
    data = (jnp.array(x_train), jnp.array(y_train)), (jnp.array(x_test), jnp.array(y_test))
    print("| workers | rule |", " | ".join(f"{rate:g}" for rate in RATES), "| best |")
    print("|---|---|" + "---|" * (len(RATES) + 1))
    for workers in (1, 8, 32):
        for rule in RULES if workers > 1 else RULES[:1]:
            mean = 100 * accuracies(rule, workers, data).mean(axis=0)
            cells = [f"{value:.1f}" for value in [*mean, mean.max()]]
            print(f"| {workers} | `{rule!r}` |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
