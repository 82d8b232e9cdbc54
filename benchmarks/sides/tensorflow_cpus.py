"""Splits TensorFlow's CPU into one logical device per replica, and makes the strategy."""

from __future__ import annotations

from typing import Any

import common

# Installed in an environment of its own, where the type checker does not look.
import tensorflow as tf  # pyright: ignore[reportMissingImports]


def mirrored_strategy() -> Any:
    """Gives a `MirroredStrategy` over the logical CPU devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(common.REPLICAS)]
    tf.config.set_logical_device_configuration(cpu, logical)
    return tf.distribute.MirroredStrategy(list(common.DEVICES))
