"""Coordinators whose workers are gone when the test is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import paceline as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def coordinate() -> Iterator[Callable[..., Any]]:
    """Makes the coordinator of a new strategy: `coordinate(workers, servers, **options)`.

    Stale steps are not made smaller, so that sums can be compared.
    """
    made: list[Any] = []

    def make(workers: int = 2, servers: int = 1, **options: Any) -> Any:
        cluster = tf.cluster.Local(workers, servers, **{"deadline": 60.0, **options})
        strategy = tf.distribute.ParameterServerStrategy(
            cluster=cluster, update_rule=tf.update_rules.Plain()
        )
        made.append(strategy)
        return tf.distribute.coordinator.ClusterCoordinator(strategy)

    yield make
    for strategy in made:
        strategy.driver.stop()


@pytest.fixture
def coordinator(coordinate: Callable[..., Any]) -> Any:
    """The coordinator of two workers."""
    return coordinate(2)
