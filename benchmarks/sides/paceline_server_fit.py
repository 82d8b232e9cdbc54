"""Paceline's `fit` under `ParameterServerStrategy`, workers as threads."""

from __future__ import annotations

import common

import paceline as tf
from paceline.cluster import Local


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    tf.config.set_cpu_devices(args.cpu_devices)
    strategy = tf.distribute.ParameterServerStrategy(cluster=Local(workers=args.workers))
    with strategy.scope():
        model, optimizer = common.keras_model(tf.keras), common.adagrad(tf.keras)
    measurement = common.time_fit(tf.keras, model, steps=args.steps, optimizer=optimizer)
    common.report(measurement, "paceline", "keras", "jax", "numpy")


if __name__ == "__main__":
    main()
