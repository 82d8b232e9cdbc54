"""TensorFlow's `fit` under `MirroredStrategy`."""

from __future__ import annotations

import common

# Installed in an environment of its own, where the type checker does not look.
import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tensorflow_cpus


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    strategy = tensorflow_cpus.mirrored_strategy()
    with strategy.scope():  # TensorFlow wants `compile` in the scope too
        measurement = common.time_fit(
            tf.keras,
            common.keras_model(tf.keras),
            steps=args.steps,
            steps_per_execution=args.steps_per_execution,
        )
    common.report(measurement, "tensorflow-cpu", "keras", "numpy")


if __name__ == "__main__":
    main()
