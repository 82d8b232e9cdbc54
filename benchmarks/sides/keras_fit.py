"""For information: Keras's own `fit` on JAX, on one device."""

from __future__ import annotations

import common
import keras


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    measurement = common.time_fit(
        keras,
        common.keras_model(keras),
        steps=args.steps,
        steps_per_execution=args.steps_per_execution,
    )
    common.report(measurement, "keras", "jax", "numpy")


if __name__ == "__main__":
    main()
