"""Cluster resolvers: where the description of a cluster comes from. They only read and parse."""

from __future__ import annotations

import abc
import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax

from paceline.cluster.spec import ClusterSpec
from paceline.errors import InvalidArgument, InvalidType


class ClusterResolver(abc.ABC):
    """Where the description of a cluster comes from.

    Args:
        task_type: the job of this process.
        task_id: its index in the job.
        rpc_layer: the protocol in front of addresses.
        environment: a name for where the process runs, such as "google"; free to use.

    Semantics:
        tf.distribute.cluster_resolver.ClusterResolver.
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment

    @property
    def task_type(self) -> str | None:
        """The job of this process, or None."""
        if self._task_type is not None:
            return self._task_type
        task_type = _part(self._described(), "task").get("type")
        return None if task_type is None else str(task_type)

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process in its job, or None."""
        index = self._task_id
        if index is None:
            index = _part(self._described(), "task").get("index")
        try:
            return None if index is None else int(index)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"The index of a task is a whole number. Received: {index!r}."
            ) from None

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol in front of addresses, or None."""
        given = self._rpc_layer
        return self._described().get("rpc_layer") if given is None else given

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str:
        """A name for where the process runs, or ""."""
        given = self._environment
        return str(self._described().get("environment", "")) if given is None else given

    def _described(self) -> Mapping[str, Any]:
        """What is known besides the arguments, in the form of TF_CONFIG."""
        return {}

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks of the cluster."""

    @abc.abstractmethod
    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Returns the address of a task, with the protocol in front; "" where there is none.

        Raises:
            InvalidArgument: the cluster has no such task.
        """

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Returns how many devices of each kind but the CPU this process has."""
        platforms = (device.platform.upper() for device in jax.local_devices())
        return dict(Counter(platform for platform in platforms if platform != "CPU"))


class SimpleClusterResolver(ClusterResolver):
    """A cluster that is written out in the program.

    Args:
        cluster_spec: the cluster.
        master: what `master()` returns where no task is asked for.
        task_type, task_id: the task of this process.
        environment: see `ClusterResolver`.
        num_accelerators: what `num_accelerators()` returns; None: the devices of this process.
        rpc_layer: the protocol in front of addresses.

    Raises:
        InvalidType: `cluster_spec` is no `ClusterSpec`.

    Semantics:
        tf.distribute.cluster_resolver.SimpleClusterResolver.
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: dict[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            raise InvalidType(
                "A resolver is given a paceline.train.ClusterSpec. Received: "
                f"cluster_spec={cluster_spec!r}. Wrap it: ClusterSpec({{...}})."
            )
        super().__init__(task_type, task_id, rpc_layer, environment)
        self._spec = cluster_spec
        self._master = master
        self._num_accelerators = num_accelerators

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks of the cluster."""
        return self._spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Returns the address of the task asked for, else the `master` that was given."""
        if task_type is None or task_id is None:
            return _url(self._master, rpc_layer or self.rpc_layer)
        return _url(self._spec.task_address(task_type, task_id), rpc_layer or self.rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Returns the number that was given, else that of the devices of this process."""
        if self._num_accelerators is not None:
            return dict(self._num_accelerators)
        return super().num_accelerators(task_type, task_id, config_proto)


class TFConfigClusterResolver(ClusterResolver):
    """The cluster that the environment variable TF_CONFIG describes, read whenever it is asked.

    Args:
        task_type, task_id, rpc_layer, environment: instead of what the variable says.

    Raises:
        InvalidArgument: on reading, TF_CONFIG is no JSON object of the known form.

    Semantics:
        tf.distribute.cluster_resolver.TFConfigClusterResolver.

    Example:
        ```python
        cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
        task = {"type": "worker", "index": 1}
        config = {"cluster": cluster, "task": task, "rpc_layer": "grpc"}
        os.environ["TF_CONFIG"] = json.dumps(config)
        TFConfigClusterResolver().master()  # "grpc://c:1"
        ```
    """

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks of the cluster; an empty spec without TF_CONFIG."""
        return ClusterSpec(_part(self._described(), "cluster"))

    def _described(self) -> Mapping[str, Any]:
        return _tf_config()

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Returns the address of a task, by default of this one; "" in a cluster of one task.

        TF_CONFIG's "session_master" is returned as it is.
        """
        if (given := self._described().get("session_master")) is not None:
            return str(given)
        spec = self.cluster_spec()
        if sum(spec.num_tasks(job) for job in spec.jobs) <= 1:
            return ""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            raise InvalidArgument(
                "The address of a task needs its type and index. Received: "
                f"task_type={task_type!r}, task_id={task_id!r}. Give them, or 'task' in TF_CONFIG."
            )
        return _url(spec.task_address(task_type, task_id), rpc_layer or self.rpc_layer)


def _url(address: str, rpc_layer: str | None) -> str:
    return f"{rpc_layer}://{address}" if rpc_layer and address else address


def _tf_config() -> Mapping[str, Any]:
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgument(
            f"The environment variable TF_CONFIG is JSON. Received: TF_CONFIG={text!r}."
        ) from error
    if not isinstance(config, Mapping):
        raise InvalidArgument(
            "The environment variable TF_CONFIG is a JSON object with 'cluster' and 'task'. "
            f"Received: TF_CONFIG={text!r}."
        )
    return config


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = config.get(key) or {}
    if not isinstance(part, Mapping):
        raise InvalidArgument(f"{key!r} in TF_CONFIG is a JSON object. Received: {part!r}.")
    return part
