"""Contract 35-38: CentralStorageStrategy in lockstep, and what it shares with the mirrored one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest

import paceline as tf
from paceline.errors import InvalidArgument, Unsupported
from paceline.pace import Synchronous
from paceline.strategies.central_storage import CentralStorageStrategy
from paceline.testing.tolerances import GOLDEN, assert_close
from replica_values import replica_number

if TYPE_CHECKING:
    from collections.abc import Callable

Aggregation = tf.VariableAggregation


@pytest.fixture
def central() -> Any:
    return CentralStorageStrategy(["cpu:0", "cpu:1"], pace=Synchronous())


def variable(strategy: Any, start: float, aggregation: str, **options: Any) -> Any:
    with strategy.scope():
        return tf.Variable(start, aggregation=Aggregation[aggregation], **options)


@pytest.mark.contract(35)
def test_assigning_arrays_without_an_aggregation_is_refused(
    central: Any, run: Callable[..., Any]
) -> None:
    v = variable(central, 1.0, "NONE")
    with pytest.raises(InvalidArgument, match="needs an aggregation"):
        run(central, lambda: v.assign(3 + replica_number()))
    v.assign(5.0)
    assert v.numpy() == 5


@pytest.mark.contract(36)
def test_writes_are_aggregated(central: Any, run: Callable[..., Any]) -> None:
    total = variable(central, 10.0, "SUM")
    mean = variable(central, 0.0, "MEAN")
    first = variable(central, 0.0, "ONLY_FIRST_REPLICA")

    def write() -> None:
        total.assign_add(jax.numpy.asarray(3.0))
        mean.assign(3 + replica_number())
        first.assign(3 + replica_number())

    run(central, write)
    assert [total.numpy(), mean.numpy(), first.numpy()] == [16, 3.5, 3]


@pytest.mark.contract(37)
@pytest.mark.parametrize("parameter_device", ["cpu:0", "cpu:1", "cpu:2"])
def test_there_is_one_copy_on_the_parameter_device(
    run: Callable[..., Any], parameter_device: str
) -> None:
    central = CentralStorageStrategy(["cpu:0", "cpu:1"], parameter_device, pace=Synchronous())
    v = variable(central, 1.0, "SUM")
    device = jax.devices()[int(parameter_device[-1])]
    assert central.extended.parameter_devices == (str(device),)
    for _ in range(2):
        run(central, lambda: v.assign_add(replica_number()))
        assert [part.devices() for part in v.values] == [{device}]
    assert v.numpy() == 1 + 2 * 1
    calls = []
    central.extended.update(v, lambda component: calls.append(component))
    assert len(calls) == 1


@pytest.mark.contract(38)
def test_on_read_is_per_replica(central: Any, run: Callable[..., Any]) -> None:
    v = variable(central, 0.0, "SUM", synchronization=tf.VariableSynchronization.ON_READ)
    run(central, lambda: v.assign(3 + replica_number()))
    assert v.numpy() == 7
    assert [float(part) for part in v.values] == [3, 4]


def test_fit_equals_one_device(central: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(22, 5)).astype("float32")
    y = rng.normal(size=(22, 1)).astype("float32")

    def trained(strategy: Any) -> Any:
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(optimizer=tf.keras.optimizers.Adam(0.1), loss="mse")
        model.fit(x, y, batch_size=5, epochs=2, verbose=0, shuffle=False)
        return model.get_weights()

    expected = trained(tf.distribute.OneDeviceStrategy("cpu:0"))
    for weight, other in zip(trained(central), expected, strict=True):
        assert_close(weight, other, GOLDEN)


def test_the_class_is_one_whatever_the_pace(central: Any) -> None:
    free = CentralStorageStrategy(["cpu:0", "cpu:1"])
    assert isinstance(central, CentralStorageStrategy)
    assert isinstance(free, CentralStorageStrategy)
    assert (central.num_replicas_in_sync, free.num_replicas_in_sync) == (2, 1)


def test_the_pace_of_lockstep_can_be_read_and_not_changed(central: Any) -> None:
    assert central.pace == Synchronous()
    for pace in (tf.pace.Asynchronous(), tf.pace.Synchronous(backups=1)):
        with pytest.raises(Unsupported, match=r"in lockstep is fixed.*Received: pace=.*Make a new"):
            central.pace = pace
    assert central.pace == Synchronous()


def test_the_pace_of_free_running_workers_can_be_changed() -> None:
    strategy = CentralStorageStrategy(["cpu:0", "cpu:1"])
    assert strategy.pace == tf.pace.Asynchronous()
    strategy.pace = tf.pace.BoundedStaleness(2)
    assert strategy.pace == tf.pace.BoundedStaleness(2)


def test_lockstep_has_nothing_of_workers_that_push(central: Any) -> None:
    assert not any(hasattr(central, name) for name in ("cluster", "monitor", "placement_report"))
