"""ParameterServerStrategy: variables divided over servers, updated by workers as they come."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import jax

from paceline.cluster.local import Local
from paceline.cluster.resolvers import ClusterResolver
from paceline.cluster.spec import check_has_servers
from paceline.errors import InvalidArgument, InvalidType
from paceline.pace import Asynchronous
from paceline.program import context
from paceline.store import sharding
from paceline.store.partitioners import partitions
from paceline.store.placing import Placing
from paceline.store.rules import StalenessScaled
from paceline.strategies.messages import MessageStrategy
from paceline.variables import per_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.cluster.base import Cluster
    from paceline.pace import Pace
    from paceline.store.rules import UpdateRule
    from paceline.strategies import running


class ParameterServerStrategy(MessageStrategy):
    """Asynchronous training with parameter servers (tf.distribute.ParameterServerStrategy).

    Args:
        cluster_resolver: describes the cluster by the addresses of its tasks: chief, worker, ps,
            evaluator. For now its workers and servers are threads of this process, as a log line
            says; no address is contacted.
        variable_partitioner: called with shape and dtype of each `paceline.Variable` and of each
            table of a `paceline.keras.layers.Embedding` made in the scope; see
            `paceline.distribute.experimental.partitioners`. None: variables stay whole.
        cluster: what the workers run on. Default: threads of this process.
        pace: how far the workers may drift apart.
        update_rule: how stale pushes are applied. Default: the step is divided by the staleness.
        merge: how gradients are combined where a pace groups pushes: "mean" (weighted by their
            examples) or "sum".
        placing: which server gets a variable, or a shard of one: `paceline.placing.RoundRobin()`,
            the default, or `BySize()`. Slots go where their variable is.

    Raises:
        InvalidArgument: a cluster without workers or servers, with unknown jobs, more than one
            chief or evaluator, or without the task that the resolver names; both a resolver and a
            cluster.
        InvalidType: a resolver or a placing that is none.

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
        placing: Placing | None = None,
    ) -> None:
        if placing is not None and not isinstance(placing, Placing):
            raise InvalidType(
                "A placing chooses servers for variables, such as paceline.placing.BySize(). "
                f"Received: placing={placing!r}."
            )
        super().__init__(
            _chosen(cluster_resolver, cluster),
            pace or Asynchronous(),
            update_rule or StalenessScaled(),
            merge,
            placing,
        )
        self._resolver = cluster_resolver
        self._partitioner = variable_partitioner
        self._has_warned = False

    @property
    def cluster_resolver(self) -> Any:
        """The cluster resolver that was given."""
        return self._resolver

    def make_variable(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A variable; a `PerWorkerVariable` or a `ShardedVariable` where one is asked for."""
        if kwargs.pop("per_worker_variable", False):
            return per_worker.create(make, self.cluster.workers, *args, **kwargs)
        return sharding.create(self._partitioner, make, *args, **kwargs)

    def num_shards(self, shape: tuple[int, ...], dtype: Any) -> int:
        """The number of shards that the partitioner asks for; 1 without a partitioner.

        Raises:
            InvalidArgument: a partitioner that breaks the rules.
        """
        if self._partitioner is None:
            return 1
        return partitions(self._partitioner, shape, jax.dtypes.canonicalize_dtype(dtype))

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


def _chosen(resolver: Any, cluster: Cluster | None) -> Cluster:
    """What the workers run on: the cluster that was given, or one of the spec's size."""
    if resolver is None:
        return cluster or Local()
    if cluster is not None:
        raise InvalidArgument(
            "A strategy has one cluster. Received: both a cluster_resolver and "
            f"cluster={cluster!r}. Leave one of them out."
        )
    if not isinstance(resolver, ClusterResolver):
        raise InvalidType(
            "The first argument is a cluster resolver, such as "
            "paceline.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec). Received: "
            f"{resolver!r}. A cluster like paceline.cluster.Local(...) goes in cluster=."
        )
    spec = resolver.cluster_spec()
    check_has_servers(spec, resolver.task_type, resolver.task_id)
    local = Local(workers=spec.num_tasks("worker"), servers=spec.num_tasks("ps"))
    logging.getLogger("paceline").warning(
        "ParameterServerStrategy runs the %d workers and %d servers of the cluster spec as threads "
        "of this process; the addresses in it are not contacted.",
        local.workers,
        local.servers,
    )
    return local
