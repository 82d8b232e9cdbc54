"""The less common members of `strategy.extended`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import paceline as tf


def test_devices_and_values(mirrored: Any, num_replicas: int) -> None:
    extended = mirrored.extended
    assert len(extended.worker_devices) == num_replicas
    assert extended.parameter_devices == extended.worker_devices
    with mirrored.scope():
        variable = tf.Variable(
            2.0, aggregation="mean", synchronization=tf.VariableSynchronization.ON_READ
        )
    assert float(extended.read_var(variable)) == 2
    component = variable.values[0]
    assert extended.value_container(component) is component


def test_reductions_to_a_place(mirrored: Any, num_replicas: int) -> None:
    def replica() -> Any:
        context = tf.distribute.get_replica_context()
        assert context is not None
        return jnp.asarray(context.replica_id_in_sync_group + 1.0)

    value = mirrored.run(replica)
    total = sum(range(1, num_replicas + 1))
    extended = mirrored.extended
    assert float(extended.reduce_to("SUM", value, destinations="cpu:0")) == total
    sums = extended.batch_reduce_to("SUM", [(value, "cpu:0"), (value, "cpu:0")])
    assert [float(part) for part in sums] == [total] * 2


@pytest.mark.parametrize(
    "hint",
    [
        tf.distribute.NcclAllReduce(num_packs=2),
        tf.distribute.ReductionToOneDevice(),
        tf.distribute.HierarchicalCopyAllReduce(),
    ],
)
def test_hints_are_accepted(hint: tf.distribute.CrossDeviceOps) -> None:
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=hint)
    assert strategy.cluster_resolver is None
    options = tf.distribute.RunOptions()
    assert strategy.run(lambda: "same", options=options) == "same"


def test_a_negative_pack_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes_per_pack=-1"):
        tf.distribute.experimental.CommunicationOptions(bytes_per_pack=-1)
