"""Paceline's own loop: the program of `own_loop.py`, fed with NumPy batches."""

from __future__ import annotations

import common
import own_loop

import paceline as tf


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    strategy = tf.distribute.MirroredStrategy(list(common.DEVICES))
    step = own_loop.make_step(tf, strategy)
    epoch = strategy.experimental_distribute_dataset(common.batches())
    measurement = common.time_loop(step, epoch, steps=args.steps, read=float)
    common.report(measurement, "paceline", "keras", "jax", "numpy")


if __name__ == "__main__":
    main()
