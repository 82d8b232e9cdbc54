"""Whether the number of live JAX arrays stays constant over a long run.

    python benchmarks/live_arrays.py

Trains through an own loop and through `fit`, counts the arrays that JAX holds every 100 steps,
and exits with 1 when either count grows after the first epoch. (Keras keeps two arrays of an epoch
until the next one ends.)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

import paceline as tf

sys.path.insert(0, str(Path(__file__).resolve().parent / "sides"))
# The type checker does not see the path added above.
import common  # pyright: ignore[reportMissingImports]
import own_loop  # pyright: ignore[reportMissingImports]

EVERY = 100
SETTLED = 4  # counts until the first epoch, of 312 steps, is over


def count_in_own_loop(steps: int) -> list[int]:
    """Trains through the own loop and gives the counts, the first after `EVERY` steps."""
    strategy = tf.distribute.MirroredStrategy(list(common.DEVICES))
    step = own_loop.make_step(tf, strategy)
    epoch = strategy.experimental_distribute_dataset(common.batches())
    counts: list[int] = []
    done = 0
    while done < steps:
        for batch in epoch:
            loss = step(*batch)
            done += 1
            if done % EVERY == 0:
                float(loss)
                counts.append(len(jax.live_arrays()))
            if done == steps:
                break
    return counts


def count_in_fit(steps: int) -> list[int]:
    """Trains through `fit` and gives the counts, the first after `EVERY` steps."""
    counts: list[int] = []
    done = 0

    def count(batch: int, logs: Any = None) -> None:
        nonlocal done
        del batch, logs
        done += 1
        if done % EVERY == 0:
            counts.append(len(jax.live_arrays()))

    strategy = tf.distribute.MirroredStrategy(list(common.DEVICES))
    with strategy.scope():
        model = common.keras_model(tf.keras)
        model.compile(
            optimizer="adam",
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    x, y = common.data()
    model.fit(
        x,
        y,
        batch_size=common.BATCH,
        epochs=common.whole_epochs(steps),
        verbose=0,
        callbacks=[tf.keras.callbacks.LambdaCallback(on_train_batch_end=count)],
    )
    return counts


def main() -> int:
    """Counts, prints, and gives the exit status."""
    parser = argparse.ArgumentParser(description="Live JAX arrays over a long run.")
    parser.add_argument("--steps", type=int, default=2_000)
    steps = parser.parse_args().steps
    console = Console()
    grew = False
    for name, count in (("own loop", count_in_own_loop), ("fit", count_in_fit)):
        counts = count(steps)
        settled = counts[SETTLED - 1]
        grew = grew or max(counts) > settled
        console.print(
            f"{name}: {settled} live arrays after {EVERY * SETTLED} steps, {counts[-1]} after "
            f"{EVERY * len(counts)}, at most {max(counts)}"
        )
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
