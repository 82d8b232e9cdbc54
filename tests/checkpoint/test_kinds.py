"""Contract 2.4: what is saved of each kind of variable, and what a restore makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline as tf
from paceline.errors import InvalidArgument
from paceline.testing import assert_close
from replica_values import components, mirrored_strategy, one_per_replica

if TYPE_CHECKING:
    from pathlib import Path

Aggregation = tf.VariableAggregation
ON_READ = tf.VariableSynchronization.ON_READ
NUMBERS = [None, 1, 2, 3, 4]

# Kind of variable: its declarations, and what the copies 3 and 4 are saved as.
KINDS = {
    "mirrored_sum": ({"aggregation": Aggregation.SUM}, None),
    "mirrored_mean": ({"aggregation": Aggregation.MEAN}, None),
    "mirrored_first": ({"aggregation": Aggregation.ONLY_FIRST_REPLICA}, None),
    "mirrored_none": ({}, None),
    "on_read_sum": ({"synchronization": ON_READ, "aggregation": Aggregation.SUM}, 7),
    "on_read_mean": ({"synchronization": ON_READ, "aggregation": Aggregation.MEAN}, 3.5),
    "on_read_first": (
        {"synchronization": ON_READ, "aggregation": Aggregation.ONLY_FIRST_REPLICA},
        3,
    ),
}
PLAIN = {"plain": keras.Variable, "paceline": tf.Variable}


def make(num_replicas: int | None, initial: Any, declared: dict[str, Any]) -> Any:
    if num_replicas is None:
        return tf.Variable(initial, **declared)
    with mirrored_strategy(num_replicas).scope():
        return tf.Variable(initial, **declared)


def saved_value(path: str, dtype: str = "float32") -> Any:
    value = np.zeros((), dtype)
    checkpoint = tf.train.Checkpoint(v=value)
    checkpoint.restore(path).assert_consumed()
    return checkpoint.v


def write_copies(variable: Any, values: list[Any]) -> None:
    dtype = jnp.dtype(variable.dtype)
    variable.distribute_strategy.run(lambda: variable.assign(one_per_replica(values, dtype)))


@pytest.mark.contract(81)
@pytest.mark.parametrize(
    ("kind", "saved", "restored"),
    [
        ("on_read_sum", 7, [3.5, 3.5]),
        ("on_read_mean", 3.5, [3.5, 3.5]),
        ("on_read_first", 3, [3, 3]),
    ],
)
def test_copies_3_and_4_of_an_on_read_variable(
    tmp_path: Path, kind: str, saved: float, restored: list[float]
) -> None:
    v = make(2, 0.0, KINDS[kind][0])
    write_copies(v, [3.0, 4.0])
    checkpoint = tf.train.Checkpoint(v=v)
    path = checkpoint.save(tmp_path / "ckpt")
    assert components(v) == [3, 4]
    v.assign(100.0)
    checkpoint.restore(path).assert_consumed()
    assert components(v) == restored
    assert saved_value(path) == saved


@pytest.mark.contract(81)
def test_copies_3_and_4_of_a_mirrored_variable(tmp_path: Path) -> None:
    v = make(2, 0.0, {})
    strategy = v.distribute_strategy
    # Only an update function can make the copies of a mirrored variable differ.
    values = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(3 + context.replica_id_in_sync_group)
    )
    v._value = strategy.join(values.values)
    assert components(v) == [3, 4]
    checkpoint = tf.train.Checkpoint(v=v)
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.restore(path).assert_consumed()
    assert components(v) == [3, 3]
    assert saved_value(path) == 3


@pytest.mark.contract(81)
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_on_read_without_aggregation_is_refused_at_save(tmp_path: Path, num_replicas: int) -> None:
    v = make(num_replicas, 0.0, {"synchronization": ON_READ, "name": "lonely"})
    with pytest.raises(InvalidArgument, match=r"'lonely' with aggregation=NONE.*'nest/v'"):
        tf.train.Checkpoint(nest={"v": v}).save(tmp_path / "ckpt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract(81)
@pytest.mark.parametrize(("num_replicas", "copies"), [(2, [4, 3]), (3, [3, 2, 2])])
def test_integers_under_sum_keep_their_remainder(
    tmp_path: Path, num_replicas: int, copies: list[int]
) -> None:
    declared = {"synchronization": ON_READ, "aggregation": Aggregation.SUM}
    v = make(2, np.int32(0), declared)
    write_copies(v, [3, 4])
    path = tf.train.Checkpoint(v=v).save(tmp_path / "ckpt")
    other = make(num_replicas, np.int32(0), declared)
    tf.train.Checkpoint(v=other).restore(path).assert_consumed()
    assert components(other) == copies
    assert int(other.value) == 7


@pytest.mark.contract(82)
@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize(
    ("kind", "copies"),
    [
        ("on_read_sum", [1, 1]),
        ("on_read_mean", [2, 2]),
        ("on_read_first", [2, 2]),
        ("mirrored_sum", [2, 2]),
        ("mirrored_none", [2, 2]),
    ],
)
def test_plain_2_into_replicas(tmp_path: Path, kind: str, copies: list[float], plain: Any) -> None:
    path = tf.train.Checkpoint(v=plain(2.0)).save(tmp_path / "ckpt")
    v = make(2, 0.0, KINDS[kind][0])
    tf.train.Checkpoint(v=v).restore(path).assert_consumed()
    assert components(v) == copies


@pytest.mark.contract(82)
@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_replicas_into_plain(tmp_path: Path, plain: Any) -> None:
    variables = {kind: make(2, 5.0, declared) for kind, (declared, _) in KINDS.items()}
    expected = {kind: 5 if saved is None else saved for kind, (_, saved) in KINDS.items()}
    for kind, v in variables.items():
        if v.is_on_read:
            write_copies(v, [3.0, 4.0])
        assert float(v.value) == expected[kind]
    path = tf.train.Checkpoint(variables=variables).save(tmp_path / "ckpt")
    plains = {kind: plain(0.0) for kind in KINDS}
    tf.train.Checkpoint(variables=plains).restore(path).assert_consumed()
    assert {kind: float(v.value) for kind, v in plains.items()} == expected


@pytest.mark.contract(83)
@pytest.mark.parametrize("before", NUMBERS)
@pytest.mark.parametrize("after", NUMBERS)
def test_the_number_of_replicas_does_not_matter(
    tmp_path: Path, before: int | None, after: int | None
) -> None:
    old, new = {}, {}
    for i, (kind, (declared, _)) in enumerate(KINDS.items()):
        old[kind] = make(before, np.zeros((2, 3), "float32"), declared)
        old[kind].assign(np.arange(i, i + 6, dtype="float32").reshape(2, 3) / 8)
        new[kind] = make(after, np.full((2, 3), 9, "float32"), declared)
    path = tf.train.Checkpoint(variables=old).save(tmp_path / "ckpt")
    tf.train.Checkpoint(variables=new).restore(path).assert_consumed()
    for kind, v in new.items():
        assert_close(v, np.asarray(old[kind].value))


@pytest.mark.contract(83)
def test_every_dtype_comes_back(tmp_path: Path) -> None:
    dtypes = ["bfloat16", "float16", "float32", "int8", "int32", "uint32", "bool"]
    old = {dtype: make(2, np.array([0, 1, 1]), {"dtype": dtype}) for dtype in dtypes}
    path = tf.train.Checkpoint(variables=old).save(tmp_path / "ckpt")
    new = {dtype: make(3, np.zeros(3), {"dtype": dtype}) for dtype in dtypes}
    tf.train.Checkpoint(variables=new).restore(path).assert_consumed()
    for dtype, v in new.items():
        assert v.dtype == dtype
        assert np.asarray(v.value).tolist() == [0, 1, 1]
