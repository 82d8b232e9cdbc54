"""Paceline's `CentralStorageStrategy`, free-running: the program of `own_loop.py`, with Adagrad."""

from __future__ import annotations

from typing import Any

import common
import own_loop

import paceline as tf


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    tf.config.set_cpu_devices(args.cpu_devices)
    strategy: Any = tf.distribute.experimental.CentralStorageStrategy()
    if strategy.cluster.workers != args.workers:
        raise SystemExit(f"There are {strategy.cluster.workers} workers, not {args.workers}.")
    step = own_loop.make_step(tf, strategy, common.adagrad)
    epoch = strategy.experimental_distribute_dataset(common.batches())
    measurement = common.time_loop(step, epoch, steps=args.steps, read=float)
    common.report(measurement, "paceline", "keras", "jax", "numpy")


if __name__ == "__main__":
    main()
