"""Paceline's `fit` under `MirroredStrategy`."""

from __future__ import annotations

import common

import paceline as tf


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    strategy = tf.distribute.MirroredStrategy(list(common.DEVICES))
    with strategy.scope():
        model = common.keras_model(tf.keras)
        measurement = common.time_fit(
            tf.keras, model, steps=args.steps, steps_per_execution=args.steps_per_execution
        )
    common.report(measurement, "paceline", "keras", "jax", "numpy")


if __name__ == "__main__":
    main()
