"""Training by workers in virtual time, and what is noted of each push."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paceline as tf
from paceline.cluster import Simulated

if TYPE_CHECKING:
    from paceline.cluster.records import PushRecord
    from paceline.pace import Pace


def simulated(
    workers: int = 2,
    servers: int = 1,
    *,
    pace: Pace | None = None,
    rule: Any = None,
    **options: Any,
) -> Any:
    """A strategy on simulated workers; each step takes its worker a second unless told otherwise.

    Stale steps are not made smaller unless `rule` says so.
    """
    return tf.distribute.ParameterServerStrategy(
        cluster=Simulated(workers, servers, **options),
        pace=pace or tf.pace.Asynchronous(),
        update_rule=rule or tf.update_rules.Plain(),
    )


class Descent:
    """Steps of gradient descent on curvature / 2 * w^2, from w = 1."""

    def __init__(self, strategy: Any, rate: float, *, curvature: float = 1.0) -> None:
        self.strategy = strategy
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            self.w = w = tf.Variable(1.0)
            optimizer = tf.keras.optimizers.SGD(rate)
            optimizer.build([w])

        @tf.function
        def step() -> None:
            optimizer.apply_gradients([(curvature * w, w)])

        self.step = step

    def run(self, count: int) -> list[PushRecord]:
        """Schedules steps and waits for them; returns what is noted of their pushes."""
        with tf.testing.pushes_of(self.strategy) as pushes:
            for _ in range(count):
                self.coordinator.schedule(self.step)
            self.coordinator.join()
        return pushes
