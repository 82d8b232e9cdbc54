"""The own loop of tf.distribute users, once: TensorFlow's and Paceline's sides both run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import common

if TYPE_CHECKING:
    from collections.abc import Callable


def make_step(
    tf: Any, strategy: Any, make_optimizer: Callable[[Any], Any] = common.adam
) -> Callable[..., Any]:
    """Makes the compiled train step.

    Args:
        tf: TensorFlow, or Paceline in its place.
        strategy: The strategy to train under.
        make_optimizer: Makes the optimizer, with the Keras that it is given.

    Returns:
        A function of a distributed batch's x and y that gives the global loss.
    """
    with strategy.scope():
        model = common.keras_model(tf.keras)
        optimizer = make_optimizer(tf.keras)
        # TensorFlow fails when the optimizer is built in the traced step instead.
        optimizer.build(model.trainable_variables)
        loss_function = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )

    def replica_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = loss_function(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=common.BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        losses = strategy.run(replica_step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return train_step
