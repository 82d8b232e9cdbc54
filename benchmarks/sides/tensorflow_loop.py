"""TensorFlow's own loop: the program of `own_loop.py`, fed by tf.data with prefetching."""

from __future__ import annotations

import common
import own_loop

# Installed in an environment of its own, where the type checker does not look.
import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tensorflow_cpus


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    strategy = tensorflow_cpus.mirrored_strategy()
    step = own_loop.make_step(tf, strategy)
    rows = tf.data.Dataset.from_tensor_slices(common.data())
    epoch = strategy.experimental_distribute_dataset(
        rows.batch(common.BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    )
    measurement = common.time_loop(step, epoch, steps=args.steps, read=float)
    common.report(measurement, "tensorflow-cpu", "keras", "numpy")


if __name__ == "__main__":
    main()
