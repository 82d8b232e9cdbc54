"""TensorFlow's parameter servers: the program of `coordinated.py`, one process per task.

This script is the coordinator; it starts itself once more for every worker and for the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import common
import coordinated

# Installed in an environment of its own, where the type checker does not look.
import tensorflow as tf  # pyright: ignore[reportMissingImports]

if TYPE_CHECKING:
    from collections.abc import Iterator

TASK = "PACELINE_BENCHMARK_TASK"  # the environment variable that makes this script a server


def free_addresses(count: int) -> list[str]:
    """Gives addresses on this machine that nobody listened to just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


@contextlib.contextmanager
def processes(cluster: dict[str, list[str]]) -> Iterator[None]:
    """Runs a process for each task of the cluster, and ends them after the block."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for job, addresses in cluster.items():
            for index in range(len(addresses)):
                task = json.dumps({"cluster": cluster, "job": job, "index": index})
                started.append(subprocess.Popen([sys.executable, __file__], env=_with_task(task)))
        yield
    finally:
        for process in started:
            process.kill()  # TensorFlow's servers do not end by themselves
        for process in started:
            process.wait()


def _with_task(task: str) -> dict[str, str]:
    return os.environ | {TASK: task}


def serve(task: dict[str, Any]) -> None:
    """Is a worker or a server, until it is killed."""
    tf.distribute.Server(
        tf.train.ClusterSpec(task["cluster"]),
        job_name=task["job"],
        task_index=task["index"],
        protocol="grpc",
        start=True,
    ).join()


def worker_dataset() -> Any:
    """Makes what `common.worker_batches` is: all batches, in random orders, without end."""
    x, y = common.data()
    batches = (
        x.reshape(common.STEPS_PER_EPOCH, common.BATCH, common.INPUTS),
        y.reshape(common.STEPS_PER_EPOCH, common.BATCH),
    )
    dataset = tf.data.Dataset.from_tensor_slices(batches)
    return dataset.shuffle(common.STEPS_PER_EPOCH).repeat().prefetch(tf.data.AUTOTUNE)


def main() -> None:
    """Measures and reports."""
    if TASK in os.environ:
        serve(json.loads(os.environ[TASK]))
        return
    args = common.arguments()
    addresses = free_addresses(args.workers + 1)
    cluster = {"worker": addresses[1:], "ps": addresses[:1]}
    with processes(cluster):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        step = coordinated.make_step(tf, strategy, *coordinated.make_model(tf, strategy))
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        measurement = coordinated.measure(coordinator, step, worker_dataset, args.steps)
        common.report(measurement, "tensorflow-cpu", "keras", "numpy")
    # TensorFlow's threads would look for the processes for a while.
    os._exit(0)


if __name__ == "__main__":
    main()
