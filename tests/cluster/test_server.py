"""`Server`: checks the task of a TensorFlow program, and says that nothing need be started."""

from __future__ import annotations

from typing import Any

import pytest

import paceline as tf
from paceline.errors import InvalidArgument, InvalidType, Unsupported

CLUSTER = {"worker": ["a:1", "b:1", "c:1"], "ps": ["d:1", "e:1"], "chief": ["f:1"]}


@pytest.mark.parametrize("cluster", [CLUSTER, tf.train.ClusterSpec(CLUSTER)], ids=["dict", "spec"])
def test_a_task(cluster: Any) -> None:
    server = tf.distribute.Server(cluster, job_name="worker", task_index=1, protocol="grpc")
    server.start()
    assert server.target == "grpc://b:1"
    assert (server.job_name, server.task_index) == ("worker", 1)
    assert server.cluster_spec == tf.train.ClusterSpec(CLUSTER)


def test_what_is_the_only_one_may_be_left_out() -> None:
    server = tf.distribute.Server({"local": {"3": "localhost:0"}}, config=object(), start=False)
    assert (server.job_name, server.task_index, server.target) == ("local", 3, "grpc://localhost:0")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, r"job_name=None for .*Pass one of \['chief', 'ps', 'worker'\]"),
        ({"job_name": "worker"}, r"task_index=None for .*Pass one of \[0, 1, 2\]"),
        ({"job_name": "nobody", "task_index": 0}, r"Received: job_name='nobody'"),
        ({"job_name": "ps", "task_index": 2}, r"tasks of job 'ps' are \[0, 1\].*task_index=2"),
    ],
)
def test_a_task_that_the_cluster_does_not_have(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        tf.distribute.Server(CLUSTER, **arguments)


def test_types_are_checked() -> None:
    with pytest.raises(InvalidType, match=r"Received: cluster=\['a:1'\]"):
        tf.distribute.Server(["a:1"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidType, match=r"Received: task_index='0'"):
        tf.distribute.Server(CLUSTER, "ps", "0")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("job", ["ps", "worker", "chief"])
def test_join_says_what_to_start(job: str) -> None:
    server = tf.distribute.Server(CLUSTER, job_name=job, task_index=0)
    with pytest.raises(Unsupported, match=rf"Received: join\(\) of .*{job}:0.*end the processes"):
        server.join()


def test_a_program_that_makes_the_servers_of_its_own_cluster() -> None:
    """As TensorFlow's tutorial does: a server for each task, then the strategy."""
    spec = tf.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"], "ps": ["localhost:3"]})
    for job in spec.jobs:
        for index in range(spec.num_tasks(job)):
            tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    assert coordinator.fetch([coordinator.schedule(lambda: 3)]) == [3]
