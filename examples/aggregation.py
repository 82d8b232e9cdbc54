"""An aggregated variable, made outside every scope, trained inside a strategy.

Every replica differentiates `2 * variable`; the optimizer sums the gradients and applies one
update, so one call moves the variable by Adam's first step, -0.001. TensorFlow 2.21 raises here.
"""

from __future__ import annotations

import paceline as tf


def main() -> float:
    """Runs one training step and returns the variable's value."""
    variable = tf.Variable(
        initial_value=0.0,
        trainable=True,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        optimizer = tf.keras.optimizers.Adam()

        @tf.function
        def train_step() -> None:
            with tf.GradientTape() as tape:
                loss = 2.0 * variable
            gradients = tape.gradient(loss, [variable])
            optimizer.apply_gradients(zip(gradients, [variable], strict=True))

        strategy.run(train_step)
    return float(variable.numpy())


if __name__ == "__main__":
    tf.config.set_cpu_devices(2)  # the variable is the first array that JAX makes
    print(f"variable after one step: {main():.6f}")
