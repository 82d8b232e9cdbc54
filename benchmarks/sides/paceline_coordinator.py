"""Paceline's parameter servers: the program of `coordinated.py`, workers as threads."""

from __future__ import annotations

import common
import coordinated

import paceline as tf
from paceline.cluster import Local


def main() -> None:
    """Measures and reports."""
    args = common.arguments()
    tf.config.set_cpu_devices(args.cpu_devices)
    strategy = tf.distribute.ParameterServerStrategy(cluster=Local(workers=args.workers))
    step = coordinated.make_step(tf, strategy, *coordinated.make_model(tf, strategy))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    measurement = coordinated.measure(coordinator, step, common.worker_batches, args.steps)
    common.report(measurement, "paceline", "keras", "jax", "numpy")


if __name__ == "__main__":
    main()
