"""`ClusterSpec`: which tasks a cluster has, and the rules for clusters with parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidArgument, InvalidType

_AT_MOST_ONE = ("chief", "master", "evaluator")  # "master" is an old word for the chief
_AT_LEAST_ONE = ("worker", "ps")


class ClusterSpec:
    """The addresses of a cluster's tasks (tf.train.ClusterSpec).

    Args:
        cluster: for each job its addresses, as a list, or as a dict `{index: address}` where some
            tasks are left out; or another `ClusterSpec`.

    Raises:
        InvalidType: no such mapping, or an address that is no string.
        InvalidArgument: a task index that is no whole number from 0 on.

    Example:
        ```python
        spec = ClusterSpec({"worker": ["a:2222", "b:2222"], "ps": {"1": "c:2222"}})
        spec.task_address("worker", 1)  # "b:2222"
        ```
    """

    def __init__(self, cluster: ClusterSpec | Mapping[str, Any]) -> None:
        if isinstance(cluster, ClusterSpec):
            cluster = cluster.as_dict()
        if not isinstance(cluster, Mapping):
            raise InvalidType(
                "A cluster spec maps each job to the addresses of its tasks. Received: "
                f"cluster={cluster!r}. Pass a dict like {{'worker': ['host:port']}}."
            )
        self._tasks = {str(job): _tasks_of(job, tasks) for job, tasks in cluster.items()}

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, sorted."""
        return sorted(self._tasks)

    def num_tasks(self, job_name: str) -> int:
        """Returns how many tasks a job has.

        Raises:
            InvalidArgument: there is no such job.
        """
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Returns the indices of a job's tasks, sorted; raises like `num_tasks`."""
        return sorted(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Returns the address of a task.

        Raises:
            InvalidArgument: there is no such job or task.
        """
        job = self._job(job_name)
        if task_index not in job:
            raise InvalidArgument(
                f"The tasks of job {job_name!r} are {sorted(job)}. Received: "
                f"task_index={task_index!r}."
            )
        return job[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Returns a job's addresses by index, None where a task is left out."""
        job = self._job(job_name)
        return [job.get(index) for index in range(max(job, default=-1) + 1)]

    def as_dict(self) -> dict[str, Any]:
        """Returns the spec as a dict: lists, or `{index: address}` where tasks are left out."""
        return {
            name: [job[index] for index in sorted(job)] if _is_dense(job) else dict(job)
            for name, job in self._tasks.items()
        }

    def _job(self, name: str) -> dict[int, str]:
        if name not in self._tasks:
            raise InvalidArgument(
                f"The jobs of this cluster are {self.jobs}. Received: job_name={name!r}."
            )
        return self._tasks[name]

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and other._tasks == self._tasks

    def __hash__(self) -> int:
        return hash(tuple(sorted((name, *job.items()) for name, job in self._tasks.items())))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def check_has_servers(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> None:
    """Checks that a cluster can train with parameter servers, and that a task is one of its own.

    Args:
        spec: the cluster.
        task_type, task_id: the task that asks; None where it does not say.

    Raises:
        InvalidArgument: no worker or no server; more than one chief or evaluator; an unknown job;
            one address for two tasks; a task that the cluster does not have.
    """
    for job in spec.jobs:
        if job not in (*_AT_LEAST_ONE, *_AT_MOST_ONE):
            raise InvalidArgument(
                "The jobs of a cluster with parameter servers are chief, worker, ps and evaluator. "
                f"Received: job {job!r} in {spec!r}."
            )
    for job in _AT_LEAST_ONE:
        if job not in spec.jobs or not spec.num_tasks(job):
            raise InvalidArgument(
                f"A cluster with parameter servers has at least one {job!r} task. Received: "
                f"{spec!r}."
            )
    for job in _AT_MOST_ONE:
        if job in spec.jobs and spec.num_tasks(job) > 1:
            raise InvalidArgument(f"A cluster has at most one {job!r} task. Received: {spec!r}.")
    _check_addresses(spec)
    if task_type is None or (task_type == "evaluator" and task_type not in spec.jobs):
        return  # an evaluator reads checkpoints; the cluster need not know of it
    if task_type not in spec.jobs:
        raise InvalidArgument(
            f"A task is of one of the cluster's jobs, {spec.jobs}. Received: "
            f"task_type={task_type!r}."
        )
    if task_id is not None:
        spec.task_address(task_type, task_id)


def _check_addresses(spec: ClusterSpec) -> None:
    used: dict[str, str] = {}
    for job in spec.jobs:
        for index in spec.task_indices(job):
            task, address = f"{job}:{index}", spec.task_address(job, index)
            other = used.setdefault(address, task)
            if other != task and not address.endswith(":0"):  # port 0 is any free one
                raise InvalidArgument(
                    f"Every task has an address of its own. Received: {address!r} for {other} and "
                    f"for {task}."
                )


def _tasks_of(job: Any, tasks: Any) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        numbered = {_index_of(job, index): address for index, address in tasks.items()}
    elif isinstance(tasks, (list, tuple)):
        numbered = dict(enumerate(tasks))
    else:
        raise InvalidType(
            "A job's tasks are a list of addresses or a dict {index: address}. Received: "
            f"{tasks!r} for job {job!r}."
        )
    for address in numbered.values():
        if not isinstance(address, str):
            raise InvalidType(
                f"An address is a string like 'host:port'. Received: {address!r} for job {job!r}."
            )
    return numbered


def _index_of(job: Any, index: Any) -> int:
    """A task index, which JSON writes as a string."""
    try:
        number = int(index)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise InvalidArgument(
            f"A task index is a whole number from 0 on. Received: {index!r} for job {job!r}."
        )
    return number


def _is_dense(job: dict[int, str]) -> bool:
    return all(index in job for index in range(len(job)))
