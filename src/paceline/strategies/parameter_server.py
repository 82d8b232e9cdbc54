"""ParameterServerStrategy: variables divided over servers, updated by workers as they come."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from paceline.cluster.local import Local
from paceline.pace import Asynchronous
from paceline.program import context
from paceline.store import sharding
from paceline.store.rules import StalenessScaled
from paceline.strategies.messages import MessageStrategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.base import Cluster
    from paceline.pace import Pace
    from paceline.store.rules import UpdateRule
    from paceline.strategies import running


class ParameterServerStrategy(MessageStrategy):
    """Asynchronous training with parameter servers (tf.distribute.ParameterServerStrategy).

    Args:
        cluster_resolver: its cluster spec gives the numbers of workers and servers; or None.
        variable_partitioner: called with shape and dtype of each variable made in the scope; see
            `paceline.distribute.experimental.partitioners`. None: variables stay whole.
        cluster: what the workers run on. Default: threads of this process.
        pace: how far the workers may drift apart.
        update_rule: how stale pushes are applied. Default: the step is divided by the staleness.
        merge: how gradients are combined where a pace groups pushes: "mean" (weighted by their
            examples) or "sum".

    Raises:
        InvalidArgument: a cluster spec without workers or servers, or both a resolver and a
            cluster.

    Semantics:
        tf.distribute.ParameterServerStrategy. Deviations: Keras's `fit` works; the pace can be
        bounded; every push is counted with its staleness; steps scaled by their staleness unless
        `update_rule=Plain()`.
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Callable[..., Any] | None = None,
        *,
        cluster: Cluster | None = None,
        pace: Pace | None = None,
        update_rule: UpdateRule | None = None,
        merge: Any = "mean",
    ) -> None:
        super().__init__(
            cluster or Local(), pace or Asynchronous(), update_rule or StalenessScaled(), merge
        )
        self._resolver = cluster_resolver
        self._partitioner = variable_partitioner
        self._has_warned = False

    @property
    def cluster_resolver(self) -> Any:
        """The cluster resolver that was given."""
        return self._resolver

    def make_variable(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A variable, or a `ShardedVariable` where the partitioner wants several shards."""
        return sharding.create(self._partitioner, make, *args, **kwargs)

    def _run(
        self, fn: Callable[..., Any], args: Any, kwargs: Any, loss_rule: running.LossRule
    ) -> Any:
        if context.worker() is None and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "strategy.run outside of ClusterCoordinator.schedule runs on the coordinator, not "
                "on the workers. Schedule a function that calls strategy.run.",
                stacklevel=3,
            )
        return super()._run(fn, args, kwargs, loss_rule)

    def __repr__(self) -> str:
        return f"ParameterServerStrategy({self.cluster!r}, pace={self.pace!r})"
