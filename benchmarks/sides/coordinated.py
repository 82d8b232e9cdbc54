"""The program with a coordinator, once: TensorFlow's and Paceline's sides both run it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import common
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def make_model(tf: Any, strategy: Any) -> tuple[Any, Any]:
    """Makes the model and its optimizer under the strategy, with TensorFlow or Paceline as `tf`."""
    with strategy.scope():
        model, optimizer = common.keras_model(tf.keras), common.adagrad(tf.keras)
        # TensorFlow fails when the optimizer is built in the traced step instead.
        optimizer.build(model.trainable_variables)
    return model, optimizer


def make_step(tf: Any, strategy: Any, model: Any, optimizer: Any) -> Callable[[Any], Any]:
    """Makes the compiled train step.

    Args:
        tf: TensorFlow, or Paceline in its place.
        strategy: The strategy to train under.
        model: What is trained.
        optimizer: What trains it.

    Returns:
        A function of a worker's iterator over batches that gives the loss of the next one.
    """
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
    def train_step(iterator: Any) -> Any:
        return strategy.run(replica_step, args=next(iterator))

    return train_step


def measure(
    coordinator: Any, step: Callable[[Any], Any], dataset_fn: Callable[..., Any], steps: int
) -> common.Measurement:
    """Times scheduled steps, from the first call of `schedule` to the end of `join`.

    Args:
        coordinator: Schedules the steps.
        step: Called on a worker with its iterator; gives the loss.
        dataset_fn: Makes a worker's endless dataset.
        steps: Timed steps, rounded up to whole epochs.
    """
    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    start = time.perf_counter()
    losses = [coordinator.schedule(step, args=(iterator,))]
    coordinator.join()
    compile_s = time.perf_counter() - start

    losses += [
        coordinator.schedule(step, args=(iterator,)) for _ in range(common.STEPS_PER_EPOCH - 1)
    ]
    coordinator.join()
    first_epoch_loss = float(np.mean([loss.fetch() for loss in losses]))
    losses.clear()

    steps = common.whole_epochs(steps) * common.STEPS_PER_EPOCH
    start = time.perf_counter()
    for _ in range(steps):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    seconds = time.perf_counter() - start
    return common.Measurement(
        steps_per_s=steps / seconds, compile_s=compile_s, first_epoch_loss=first_epoch_loss
    )
