"""The servers of a strategy: which one gets a variable that is made in its scope."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import pytest

import paceline as tf
from paceline.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Sequence

KB, MB = 1 << 10, 1 << 20
UNEVEN = {"big": 4 * MB, "a": KB, "b": KB, "c": KB}


def strategy_of(**options: Any) -> Any:
    return tf.distribute.ParameterServerStrategy(
        cluster=tf.cluster.Local(workers=1, servers=2), **options
    )


def made(strategy: Any) -> list[Any]:
    """float32 variables of one column, with the bytes of `UNEVEN`."""
    with strategy.scope():
        return [tf.Variable(jnp.zeros((size // 4, 1)), name=name) for name, size in UNEVEN.items()]


@pytest.mark.contract(84)
@pytest.mark.parametrize("options", [{}, {"placing": tf.placing.RoundRobin()}])
def test_servers_take_turns(options: dict[str, Any]) -> None:
    strategy = strategy_of(**options)
    variables = made(strategy)
    assert [strategy.server_of(variable) for variable in variables] == [0, 1, 0, 1]
    big, small = strategy.placement_report().servers
    assert (big.names, big.num_bytes) == (("big", "b"), 4 * MB + KB)
    assert (small.names, small.num_bytes) == (("a", "c"), 2 * KB)


@pytest.mark.case("R96")
def test_the_emptiest_server_is_next_by_size() -> None:
    strategy = strategy_of(placing=tf.placing.BySize())
    variables = made(strategy)
    assert [strategy.server_of(variable) for variable in variables] == [0, 1, 1, 1]
    report = strategy.placement_report()
    assert [server.num_bytes for server in report.servers] == [4 * MB, 3 * KB]
    assert json.loads(json.dumps(report.as_dict()))["servers"][1]["names"] == ["a", "b", "c"]


def test_by_size_counts_slots() -> None:
    """They lie where their variable lies. Without them both servers would hold 8 bytes."""
    strategy = strategy_of(placing=tf.placing.BySize())
    with strategy.scope():
        first = tf.Variable(jnp.zeros(2), name="first")
        optimizer = tf.keras.optimizers.Adam()
        optimizer.build([first])
        second = tf.Variable(jnp.zeros(2), name="second")
    # 8 bytes and two slots of 8; the step count and the learning rate have 4 bytes each.
    servers = strategy.placement_report().servers
    assert servers[0].num_bytes == 24
    assert servers[1].names == ("adam/iteration", "adam/learning_rate", "second")
    assert strategy.server_of(second) == 1


@pytest.mark.case("R96")
def test_shards_are_placed_one_by_one() -> None:
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(256 << 10, 2)
    strategy = strategy_of(variable_partitioner=partitioner, placing=tf.placing.BySize())
    variables = made(strategy)
    assert [strategy.server_of(shard) for shard in variables[0].variables] == [0, 1]
    assert strategy.placement_report().imbalance < 1.001


def test_training_goes_on_by_size() -> None:
    strategy = strategy_of(placing=tf.placing.BySize())
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(jnp.ones((8, 3)), jnp.ones((8, 1)), batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 2
    assert all(server.num_bytes for server in strategy.placement_report().servers)


class Beyond(tf.placing.Placing):
    """Chooses a server that does not exist."""

    def next_server(self, counts: Sequence[int], sizes: Sequence[int]) -> int:
        return len(counts)


def test_a_placing_of_ones_own_is_checked() -> None:
    with pytest.raises(InvalidArgument, match=r"one of the servers 0 to 1\. Received: 2 for 'big'"):
        made(strategy_of(placing=Beyond()))


@pytest.mark.parametrize("wrong", ["by size", tf.placing.BySize, 3])
def test_what_is_no_placing_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidType, match=r"paceline\.placing\.BySize\(\)\. Received: placing="):
        strategy_of(placing=wrong)
