"""`Server`: what a TensorFlow program starts for a task, checked and explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from paceline.cluster.spec import ClusterSpec
from paceline.errors import InvalidArgument, InvalidType, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping


class Server:
    """A task of a cluster, by its address (tf.distribute.Server). It serves nothing.

    Workers and servers are threads of the program that coordinates, for now. So a program that
    makes servers for its own cluster, as tests do, runs unchanged: its tasks are checked here, and
    `ParameterServerStrategy` makes the threads. A process that would only wait in `join` is not
    needed, and is told so.

    Args:
        server_or_cluster_def: the cluster, a `ClusterSpec` or what one is made of.
        job_name: the task's job; may be left out where the cluster has one job.
        task_index: its index in the job; may be left out where the job has one task.
        protocol: what stands in front of the address; None means "grpc".
        config: accepted and ignored.
        start: accepted and ignored; there is nothing to start.

    Attributes:
        cluster_spec, job_name, task_index: the cluster, and which task of it this is.
        target: protocol and address, "grpc://host:port".

    Raises:
        InvalidType: no cluster.
        InvalidArgument: a job or task that the cluster does not have, or that was left out where
            there are several.

    Example:
        ```python
        spec = tf.train.ClusterSpec({"worker": ["a:2222", "b:2222"], "ps": ["c:2222"]})
        for index in range(2):
            tf.distribute.Server(spec, job_name="worker", task_index=index)
        tf.distribute.Server(spec, job_name="ps", task_index=0)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec)
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        ```
    """

    def __init__(
        self,
        server_or_cluster_def: ClusterSpec | Mapping[str, Any],
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        del config, start
        self.cluster_spec = spec = ClusterSpec(server_or_cluster_def)
        self.job_name = _only("job_name", spec.jobs, spec) if job_name is None else job_name
        indices = spec.task_indices(self.job_name)
        if task_index is not None and (
            isinstance(task_index, bool) or not isinstance(task_index, int)
        ):
            raise InvalidType(
                f"The index of a task is a whole number. Received: task_index={task_index!r}."
            )
        self.task_index = _only("task_index", indices, spec) if task_index is None else task_index
        address = spec.task_address(self.job_name, self.task_index)
        self.target = f"{protocol or 'grpc'}://{address}"

    def start(self) -> None:
        """Does nothing: no address is opened."""

    def join(self) -> NoReturn:
        """Always raises: waiting here would be without end, as nobody connects.

        Raises:
            Unsupported: always; it says what to start instead.
        """
        raise Unsupported(
            "Workers and servers are threads of the program that coordinates, for now: a process "
            f"that waits to be used is not needed. Received: join() of {self!r}. Start the "
            "program of the chief only, whose ParameterServerStrategy makes its workers and "
            "servers, or cluster=paceline.cluster.Local(workers=..., servers=...); end the "
            f"processes of {self._waiting()} where they would join."
        )

    def _waiting(self) -> str:
        jobs = [job for job in self.cluster_spec.jobs if job in ("ps", "worker")]
        return " and ".join(jobs or [self.job_name])

    def __repr__(self) -> str:
        return f"<paceline Server of {self.job_name}:{self.task_index} at {self.target}>"


def _only(argument: str, choices: list[Any], spec: ClusterSpec) -> Any:
    """The one choice for an argument that was left out."""
    if len(choices) != 1:
        raise InvalidArgument(
            f"Which task a server is has to be said where there are several. Received: "
            f"{argument}=None for {spec!r}. Pass one of {choices}."
        )
    return choices[0]
