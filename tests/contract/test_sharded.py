"""Contract 4.3: variables in shards, as one."""

from __future__ import annotations

import copy
import functools
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline as tf
from paceline.errors import TraceError
from paceline.store import sharding
from paceline.store.partitioners import FixedShardsPartitioner, MinSizePartitioner
from paceline.store.sharding import create, make_sharded
from paceline.testing import EXACT, REFERENCE, assert_close
from paceline.variables.rows import pieces, ranges_of
from paceline.variables.sharded import ShardedVariable
from paceline.variables.slots import places
from replica_values import mirrored_strategy

Partitioner = FixedShardsPartitioner
SCATTERS = ["add", "sub", "mul", "div", "min", "max", "update"]


def sharded(array: Any, sizes: list[int] | None = None, **options: Any) -> ShardedVariable:
    """`array` in shards of these sizes, or in two even ones."""
    array = np.asarray(array)
    sizes = sizes or [(len(array) + 1) // 2, len(array) // 2]
    parts = np.split(array, np.cumsum(sizes)[:-1])
    return ShardedVariable([tf.Variable(part, **options) for part in parts], name="table")


def rows_of_two(num_rows: int) -> Any:
    """Rows (1, 2), (3, 4), ..."""
    return np.arange(1, 2 * num_rows + 1, dtype="float32").reshape(num_rows, 2)


def shards(variable: Any) -> list[Any]:
    return [np.asarray(shard).tolist() for shard in variable]


def shapes_in(jaxpr: Any) -> set[tuple[int, ...]]:
    """The shapes of everything that a program reads or computes, at any depth."""
    found = {tuple(v.aval.shape) for v in [*jaxpr.invars, *jaxpr.constvars]}
    for equation in jaxpr.eqns:
        found |= {tuple(v.aval.shape) for v in [*equation.invars, *equation.outvars]}
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found |= shapes_in(inner)
    return found


# Creation ----------------------------------------------------------------------------------------


@pytest.mark.contract(101)
def test_two_shards_of_five_rows() -> None:
    v = create(Partitioner(2), tf.Variable, np.arange(10, dtype="int32").reshape(5, 2), name="w")
    assert shards(v) == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]
    assert [shard.name for shard in v] == ["w/part_0", "w/part_1"]
    assert [shard.path for shard in v] == ["w/part_0", "w/part_1"]
    assert (v.name, v.shape, v.ndim, v.dtype, v.trainable) == ("w", (5, 2), 2, "int32", True)
    assert v.variables == list(v)
    assert repr(v) == "<paceline.ShardedVariable name=w, shape=(5, 2), dtype=int32, rows=[3, 2]>"


@pytest.mark.contract(101)
@pytest.mark.parametrize(("num_rows", "sizes"), [(10, [3, 3, 2, 2]), (3, [1, 1, 1])])
def test_four_shards(num_rows: int, sizes: list[int]) -> None:
    v = create(Partitioner(4), tf.Variable, np.zeros(num_rows))
    assert [shard.shape[0] for shard in v] == sizes


@pytest.mark.contract(101)
@pytest.mark.parametrize("initial", [1.0, [1.0], np.ones((1, 3)), lambda: 2.0])
def test_what_is_not_divided_is_an_ordinary_variable(initial: Any) -> None:
    v = create(Partitioner(2), tf.Variable, initial, name="w", trainable=False)
    assert type(v) is tf.Variable
    assert (v.name, v.trainable) == ("w", False)


def test_without_a_partitioner_nothing_changes() -> None:
    v = create(None, tf.Variable, [1.0, 2.0], True, name="w")
    assert type(v) is tf.Variable


def test_every_shard_has_the_declarations_of_the_variable() -> None:
    v = create(
        Partitioner(2),
        tf.Variable,
        [1, 2, 3],
        trainable=False,
        dtype="float16",
        aggregation=tf.VariableAggregation.MEAN,
        constraint=abs,
    )
    assert [shard.dtype for shard in v] == ["float16", "float16"]
    assert not v.trainable
    assert all(shard.aggregation is tf.VariableAggregation.MEAN for shard in v)
    assert all(shard.constraint is abs for shard in v)


def test_variables_without_a_name_get_different_ones() -> None:
    first, second = (create(Partitioner(2), tf.Variable, [1.0, 2.0]) for _ in range(2))
    assert first.name != second.name
    assert first.variables[1].name == f"{first.name}/part_1"


def test_the_partitioner_sees_the_shape_and_the_dtype_that_the_variable_gets() -> None:
    seen = []

    def partitioner(shape: Any, dtype: Any) -> list[int]:
        seen.append((shape, str(dtype)))
        return [1, 1]

    create(partitioner, tf.Variable, np.zeros((4, 2)))
    create(partitioner, tf.Variable, lambda: jnp.zeros((4, 2), "int8"))
    create(partitioner, tf.Variable, [[1, 2]], dtype="bfloat16")
    assert seen == [((4, 2), "float32"), ((4, 2), "int8"), ((1, 2), "bfloat16")]


@pytest.mark.contract(103)
def test_a_wrong_partitioner_is_named() -> None:
    def halves(shape: Any, dtype: Any) -> None: ...

    with pytest.raises(ValueError, match=r"partitioner .*halves"):
        create(halves, tf.Variable, [1.0, 2.0])


def test_a_variable_needs_an_initial_value() -> None:
    with pytest.raises(ValueError, match="initial_value=None for 'w'"):
        create(Partitioner(2), tf.Variable, name="w", shape=(4,), dtype="float32")


@pytest.mark.parametrize("give_shape", [False, True])
def test_an_initial_value_that_is_made_whole_is_made_once(give_shape: bool) -> None:
    calls = []

    def initial() -> Any:
        calls.append(1)
        return jnp.arange(5.0)

    known = {"shape": (5,), "dtype": "float32"} if give_shape else {}
    v = create(Partitioner(2), tf.Variable, initial, **known)
    assert shards(v) == [[0, 1, 2], [3, 4]]
    assert len(calls) == 1


def test_an_initializer_that_knows_of_partitions_makes_each_by_itself() -> None:
    calls = []

    def initial(shape: Any, partition_shape: Any = None, partition_offset: Any = None) -> Any:
        calls.append((shape, partition_shape, partition_offset))
        return jnp.full(partition_shape, partition_offset[0])

    make = functools.partial(initial, (5, 2))
    v = make_sharded(make, Partitioner(2), shape=(5, 2), dtype="int32", name="w")
    assert calls == [((5, 2), (3, 2), (0, 0)), ((5, 2), (2, 2), (3, 0))]
    assert shards(v) == [[[0, 0]] * 3, [[3, 3]] * 2]


def test_an_initializer_that_takes_any_argument_may_make_a_part_or_all() -> None:
    def part_or_all(**asked: Any) -> Any:
        return jnp.ones(asked.get("partition_shape", (5,)))

    calls = []

    def always_all(**asked: Any) -> Any:
        calls.append(asked)
        return jnp.arange(5.0)

    known = {"shape": (5,), "dtype": "float32"}
    assert shards(make_sharded(part_or_all, Partitioner(2), **known)) == [[1, 1, 1], [1, 1]]
    assert shards(make_sharded(always_all, Partitioner(2), **known)) == [[0, 1, 2], [3, 4]]
    assert len(calls) == 1


def test_keras_initializers() -> None:
    ones = functools.partial(keras.initializers.Ones(), shape=(5, 2), dtype="float32")
    v = create(Partitioner(2), tf.Variable, ones, shape=(5, 2), dtype="float32")
    assert_close(v, np.ones((5, 2)), EXACT)


@pytest.mark.parametrize(
    ("initial", "known"),
    [
        (np.zeros(4), {"shape": (5,)}),
        (lambda: np.zeros(4), {"shape": (5,)}),
        (lambda: np.zeros(4), {"shape": (5,), "dtype": "float32"}),
        (lambda partition_shape, partition_offset: np.zeros(4), {"shape": (5,), "dtype": "int8"}),
    ],
)
def test_initial_values_of_another_shape_are_refused(initial: Any, known: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)'w'.*shape.*\(4,\)|\(4,\) for 'w'"):
        create(Partitioner(2), tf.Variable, initial, name="w", **known)


def test_a_table_that_is_made_whole_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "_MANY_ELEMENTS", 4)
    with pytest.warns(UserWarning, match="'w', of shape .*partition_shape"):
        create(Partitioner(2), tf.Variable, np.zeros(5), name="w")


def test_creation_in_a_traced_function() -> None:
    made = []

    @tf.function
    def step(x: Any) -> Any:
        if not made:
            made.append(create(Partitioner(2), tf.Variable, lambda: jnp.arange(4.0)))
        return made[0].embedding_lookup(x)

    assert step(np.array([3, 0])).tolist() == [3, 0]
    assert shards(made[0]) == [[0, 1], [2, 3]]
    with pytest.raises(TraceError):
        tf.function(lambda x: create(Partitioner(2), tf.Variable, x))(jnp.ones(3))


def test_creation_under_a_strategy() -> None:
    strategy = mirrored_strategy(2)
    with strategy.scope():
        v = create(Partitioner(2), tf.Variable, np.arange(4.0), aggregation="mean")
    assert v.distribute_strategy is strategy
    strategy.run(lambda: v.assign_add(jnp.ones(4)))
    assert v.numpy().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("variables", "error", "text"),
    [
        ([], TypeError, r"variables=\[\] for 'w'"),
        (None, TypeError, "variables=None"),
        (tf.Variable([1.0]), TypeError, "list"),
        ([np.zeros(2)], TypeError, "paceline.Variable"),
        ([tf.Variable([1.0]), tf.Variable([1])], ValueError, r"dtypes \['float32', 'int32'\]"),
        ([tf.Variable([[1.0]]), tf.Variable([[1.0, 2.0]])], ValueError, r"\(1, 1\), \(1, 2\)"),
        ([tf.Variable(1.0)], ValueError, r"shapes \[\(\)\]"),
    ],
)
def test_shards_must_fit_together(variables: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ShardedVariable(variables, name="w")


# Writes ------------------------------------------------------------------------------------------


@pytest.mark.contract(104)
def test_assignments_are_divided() -> None:
    v = sharded([[0.0, 0], [1, 1], [2, 2], [3, 3]], [1, 2, 1])
    v.assign([[0.0, 0], [1, 1], [2, 2], [3, 3]])
    assert shards(v) == [[[0, 0]], [[1, 1], [2, 2]], [[3, 3]]]
    assert v.assign_add([[1, 1], [1, 1], [2, 2], [2, 2]]) is v
    assert shards(v) == [[[1, 1]], [[2, 2], [4, 4]], [[5, 5]]]
    v.assign_sub(jnp.ones((4, 2)), read_value=False)
    assert shards(v) == [[[0, 0]], [[1, 1], [3, 3]], [[4, 4]]]
    v.assign_add(2)
    assert shards(v) == [[[2, 2]], [[3, 3], [5, 5]], [[6, 6]]]


@pytest.mark.contract(104)
@pytest.mark.parametrize("write", ["assign", "assign_add", "assign_sub"])
def test_a_value_of_another_shape_writes_nothing(write: str) -> None:
    # TensorFlow takes the first rows of one that is too long.
    v = sharded(np.zeros((3, 2)), [2, 1])
    for shape in [(4, 2), (2, 2), (3, 1), (3,)]:
        with pytest.raises(ValueError, match=r"\(3, 2\)"):
            getattr(v, write)(np.ones(shape))
    with pytest.raises(ValueError, match=r"shape \(\) for 'table'"):
        v.assign(1.0)
    assert v.numpy().tolist() == [[0, 0]] * 3


def test_variables_can_be_assigned_to_each_other() -> None:
    v, w = sharded(np.arange(5.0), [3, 2]), sharded(np.zeros(5), [1, 4])
    w.assign(v)
    assert shards(w) == [[0], [1, 2, 3, 4]]
    w.assign_add(tf.Variable(np.ones(5)))
    assert w.numpy().tolist() == [1, 2, 3, 4, 5]
    w.assign(w[::-1])
    assert w.numpy().tolist() == [5, 4, 3, 2, 1]


def test_per_replica_values_are_refused() -> None:
    strategy = mirrored_strategy(2)
    with strategy.scope():
        v = sharded(np.zeros(2), aggregation="mean")
    values = strategy.run(lambda: jnp.ones(2))
    with pytest.raises(ValueError, match="per-replica"):
        v.assign(values)


def test_writes_in_a_traced_function() -> None:
    v = sharded(np.zeros(3))
    tf.function(lambda x: v.assign_add(x) and None)(np.arange(3.0))
    assert v.numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("operation", SCATTERS)
@pytest.mark.parametrize("sizes", [[3, 3, 2], [1, 6, 1], [8]])
def test_scatter_operations(operation: str, sizes: list[int], compiled: bool) -> None:
    indices, values = np.array([7, 0, 3, 2, 3]), np.arange(1.0, 11).reshape(5, 2)
    if operation == "update":
        indices, values = indices[:4], values[:4]
    whole, v = tf.Variable(rows_of_two(8)), sharded(rows_of_two(8), sizes)

    def write(indices: Any, values: Any) -> None:
        slices = tf.IndexedSlices(values, indices)
        assert getattr(v, f"scatter_{operation}")(slices) is v

    getattr(whole, f"scatter_{operation}")(tf.IndexedSlices(values, indices))
    (tf.function(write) if compiled else write)(indices, values)
    assert_close(v, np.asarray(whole), EXACT)


def test_shards_without_slices_are_left_alone() -> None:
    v = sharded(np.zeros(4))
    before = [shard.value for shard in v]
    v.scatter_add(tf.IndexedSlices([1.0], [3]))
    assert v.variables[0].value is before[0]
    assert v.numpy().tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("slices", "error", "text"),
    [
        (np.zeros(2), TypeError, "IndexedSlices"),
        (tf.IndexedSlices([[1.0, 1.0]], [5]), ValueError, r"(?s)indices=\[5\].*'table'.*5 rows"),
        (tf.IndexedSlices([[1.0, 1.0]], [0, 5]), ValueError, "values of shape"),
        (tf.IndexedSlices([[1.0, 1.0]], [0.0]), ValueError, "integer"),
    ],
)
def test_slices_that_do_not_fit_write_nothing(
    slices: Any, error: type[Exception], text: str
) -> None:
    v = sharded(rows_of_two(5))
    with pytest.raises(error, match=text):
        v.scatter_add(slices)
    assert_close(v, rows_of_two(5), EXACT)


def test_scatter_inside_replicas(run: Any) -> None:
    """Each replica has slices in another shard, and they meet at both."""
    strategy = mirrored_strategy(2)
    with strategy.scope():
        v = sharded(np.zeros(4), aggregation="sum")

    def replica() -> None:
        i = jnp.asarray(tf.distribute.get_replica_context().replica_id_in_sync_group, jnp.int32)
        v.scatter_add(tf.IndexedSlices(jnp.ones(1), 3 * i[None]))

    run(strategy, replica)
    assert v.numpy().tolist() == [1, 0, 0, 1]


# Reads -------------------------------------------------------------------------------------------


@pytest.mark.contract(104)
def test_in_a_computation_it_is_the_whole_array() -> None:
    whole = rows_of_two(5)
    v = sharded(whole, [2, 2, 1])
    for read in (v, v.value, v.read_value(), v.numpy(), jnp.asarray(v), np.asarray(v)):
        assert_close(read, whole, EXACT)
    assert np.asarray(v, dtype="int32").dtype == np.int32
    assert_close(keras.ops.matmul(v, np.ones((2, 1), "float32")), whole.sum(axis=1)[:, None])
    x = np.ones((3, 5), "float32")
    for product in (x @ v, jnp.asarray(x) @ v, tf.Variable(x) @ v):
        assert isinstance(product, jax.Array)
        assert_close(product, x @ whole)
    assert_close(2 * v + v - 1, 3 * whole - 1, EXACT)
    assert_close(-v, -whole, EXACT)
    assert_close(v**2 / tf.Variable(whole), whole)
    assert_close(v > 4, whole > 4, EXACT)
    assert np.sum(v) == whole.sum()
    before = v
    v += 1  # an array, as for every variable
    assert_close(v, whole + 1, EXACT)
    assert_close(before, whole, EXACT)


def test_copies_are_independent() -> None:
    v = sharded(rows_of_two(3))
    copied = copy.deepcopy(v)
    v.assign(np.zeros((3, 2)))
    assert_close(copied, rows_of_two(3), EXACT)


def test_shards_are_one_table_in_any_list_of_variables() -> None:
    v, other = sharded(rows_of_two(5), [2, 2, 1]), tf.Variable(0.0)
    copied = copy.deepcopy(v)
    assert places([other, *v, *copied]) == [(0,), (1, 2, 3), (4, 5, 6)]
    assert places([*v.variables[::-1], other]) == [(2, 1, 0), (3,)]
    first, second, third = v
    assert places([second, other, third, first]) == [(3, 0, 2), (1,)]
    assert places([second, other, third]) == [(0,), (1,), (2,)]  # not all of it
    assert places([]) == []


def test_all_shards_are_frozen_together() -> None:
    v = sharded(rows_of_two(3))
    v.trainable = False
    assert [shard.trainable for shard in v] == [False, False]
    assert not v.trainable


@pytest.mark.contract(105)
@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(5, -1), [5, 6]),
        (slice(None, None, 3), [0, 3, 6]),
        (slice(2, 7, 3), [2, 5]),
        (slice(2, -10, -1), [2, 1, 0]),
        (slice(None, None, -1), [7, 6, 5, 4, 3, 2, 1, 0]),
        (slice(7, 0, -3), [7, 4, 1]),
        (slice(4, 4), []),
        (slice(20, None), []),
    ],
)
def test_slices_of_rows(index: slice, expected: list[int]) -> None:
    v = sharded(rows_of_two(8), [3, 3, 2])
    assert_close(v[index], rows_of_two(8)[expected], EXACT)


@pytest.mark.contract(105)
def test_indices_that_are_refused() -> None:
    v = sharded(rows_of_two(8), [3, 3, 2])
    for index in (8, -9, (0, 2), (slice(None), -3), (0, 0, 0), (..., ...), np.zeros(3, bool)):
        with pytest.raises(IndexError, match="'table'"):
            v[index]
    for index in (
        jnp.asarray(1), jnp.arange(2), np.arange(2), [0, 1], 1.0, "a", True, tf.Variable(1),
        slice(jnp.asarray(1), None), (0, jnp.asarray(1)), (slice(None), [0, 1]),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="embedding_lookup"):
            v[index]
    for index in (slice(None, None, 0), (0, slice(None, None, 0))):
        with pytest.raises(ValueError, match="step"):
            v[index]


@pytest.mark.contract(105)
def test_the_other_indices_of_numpy() -> None:
    whole = np.arange(48.0, dtype="float32").reshape(8, 3, 2)
    v = sharded(whole, [3, 3, 2])
    for index in [
        0, 7, -1, np.int64(4), ..., None, (), (3, 1), (3, 1, -1), (..., 1), (1, ...), (None, 3),
        (None, None, slice(1, 7, 2), None, 0), (slice(6, 1, -2), 1), (slice(2, 4), ..., 0),
        (..., None), (None, ..., slice(1)), (slice(4, 4), 0), (2, None, 1),
    ]:  # fmt: skip
        assert_close(v[index], whole[index], EXACT)
        assert v[index].shape == whole[index].shape


def test_masks() -> None:
    whole = rows_of_two(5)
    v = sharded(whole, [3, 2])
    rows = np.array([True, False, True, False, True])
    for mask in (rows, jnp.asarray(rows), whole > 4, np.zeros(5, bool)):
        assert_close(v[mask], whole[np.asarray(mask)], EXACT)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.slices(12))
def test_any_slice_of_any_division(sizes: list[int], index: slice) -> None:
    whole = np.arange(sum(sizes))
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    rows = range(len(whole))[index]
    found = [row for i, local in pieces(rows, ranges_of(parts)) for row in parts[i][local]]
    assert found == whole[index].tolist()


def test_a_read_of_some_rows_reads_only_their_shards() -> None:
    v = sharded(rows_of_two(8), [3, 3, 2])
    for index in (4, slice(3, 5), slice(5, 3, -1)):
        jaxpr = jax.make_jaxpr(lambda first, index=index: _with_first(v, first)[index])(
            v.variables[0].value
        )
        assert (8, 2) not in shapes_in(jaxpr.jaxpr)
        assert not any(
            set(equation.invars) & set(jaxpr.jaxpr.invars) for equation in jaxpr.jaxpr.eqns
        )


def _with_first(v: ShardedVariable, first: Any) -> ShardedVariable:
    """`v` with a traced first shard."""
    other = copy.deepcopy(v)
    other.variables[0]._value = first
    return other


# Lookups -----------------------------------------------------------------------------------------


@pytest.mark.contract(106)
@pytest.mark.parametrize("compiled", [False, True])
def test_embedding_lookup(compiled: bool) -> None:
    v = sharded(rows_of_two(5), [2, 2, 1])

    def look(ids: Any) -> Any:
        return v.embedding_lookup(ids), v.sparse_read(ids), tf.nn.embedding_lookup(v, ids)

    look = tf.function(look) if compiled else look
    for found in look(np.array([0, 3, 4])):
        assert np.asarray(found).tolist() == [[1, 2], [7, 8], [9, 10]]
    # In their order, which TensorFlow's sparse_read loses, and in their shape.
    ids = np.array([[4, 0, 4], [2, 3, 1]])
    for found in look(ids):
        assert_close(found, rows_of_two(5)[ids], EXACT)


@pytest.mark.contract(106)
def test_a_lookup_never_holds_the_table() -> None:
    v = sharded(np.zeros((100, 7), "float32"), [34, 33, 33])
    for ids in (np.array([1, 50, 99]), np.array(3)):
        traced = jax.make_jaxpr(v.embedding_lookup)(ids).jaxpr
        assert (34, 7) in shapes_in(traced)
        assert (100, 7) not in shapes_in(traced)
    # What does hold it is seen.
    assert (100, 7) in shapes_in(jax.make_jaxpr(lambda i: v.value[i])(0).jaxpr)


@pytest.mark.case("R97")
def test_shards_of_five_rows_are_read_trained_and_put_together() -> None:
    start = np.arange(15.0, dtype="float32").reshape(5, 3)
    v = create(Partitioner(2), tf.Variable, start, name="table")
    assert [shard.shape for shard in v] == [(3, 3), (2, 3)]
    assert_close(v.embedding_lookup([0, 4]), start[[0, 4]], EXACT)
    assert_close(v, np.concatenate([np.asarray(shard) for shard in v]), EXACT)
    optimizer = tf.keras.optimizers.SGD(1.0, momentum=0.5)
    whole = tf.Variable(start)
    reference = tf.keras.optimizers.SGD(1.0, momentum=0.5)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = jnp.sum(v.embedding_lookup([0, 4, 4]) ** 2)
        gradients = tape.gradient(loss, v)
        assert [gradient.shape for gradient in gradients] == [(3, 3), (2, 3)]
        optimizer.apply_gradients(zip(gradients, v.variables, strict=True))
        with tf.GradientTape() as tape:
            loss = jnp.sum(whole.value[jnp.array([0, 4, 4])] ** 2)
        reference.apply_gradients([(tape.gradient(loss, whole), whole)])
    assert_close(v, np.asarray(whole), REFERENCE)
    assert [slot.shape for slot in optimizer.variables[2:]] == [(3, 3), (2, 3)]


def test_lookups_in_other_tables() -> None:
    table = rows_of_two(5)
    ids = [[4], [1]]
    for params in (
        table,
        tf.Variable(table),
        [table],
        [table[:3], tf.Variable(table[3:])],
        [sharded(table)],
    ):
        assert_close(tf.nn.embedding_lookup(params, ids), table[np.array(ids)], EXACT)
    assert tf.nn.embedding_lookup(table, []).shape == (0, 2)
    assert tf.nn.embedding_lookup(np.zeros((0, 2), "float32"), []).shape == (0, 2)
    with pytest.raises(ValueError, match=r"params=\[\]"):
        tf.nn.embedding_lookup([], [0])


def test_rows_are_clipped_to_a_norm() -> None:
    table = np.array([[3.0, 4], [0.3, 0.4], [0, 0]], "float32")
    found = tf.nn.embedding_lookup([table[:1], table[1:]], [0, 1, 2], max_norm=1.0)
    assert_close(found, [[0.6, 0.8], [0.3, 0.4], [0, 0]])
    stacked = tf.nn.embedding_lookup(table[:, None], np.array([0]), max_norm=1.0)
    assert_close(stacked, [[[0.6, 0.8]]])
    total = jax.grad(lambda t: jnp.sum(tf.nn.embedding_lookup(t, [0, 1, 2], max_norm=1.0)))
    assert_close(total(jnp.asarray(table)), [[4 / 125, -3 / 125], [1, 1], [1, 1]])


@pytest.mark.parametrize(
    ("ids", "text"), [([5], "from 5 to 5 for 'table' with 5 rows"), ([-1], "-1"), ([0.5], "float")]
)
def test_ids_that_name_no_row(ids: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        sharded(rows_of_two(5)).embedding_lookup(ids)


def test_traced_ids_that_name_no_row_give_zeros() -> None:
    v = sharded(rows_of_two(5))
    found = tf.function(v.embedding_lookup)(np.array([-1, 0, 5, 2**31 - 1]))
    assert found.tolist() == [[0, 0], [1, 2], [0, 0], [0, 0]]


@pytest.mark.parametrize("dtype", ["uint8", "int64", "int8"])
def test_ids_of_any_integer_dtype(dtype: str) -> None:
    v = sharded(np.arange(200.0, dtype="float32"))
    ids = np.array([127, 3], dtype)
    for found in (v.embedding_lookup(ids), tf.function(v.embedding_lookup)(ids)):
        assert found.tolist() == [127, 3]


def test_shards_on_several_devices() -> None:
    devices = jax.devices("cpu")
    v = sharded(rows_of_two(5), [2, 2, 1])
    for shard, device in zip(v, devices[1:], strict=True):
        shard._value = jax.device_put(shard.value, device)
    assert_close(v.value, rows_of_two(5), EXACT)
    assert_close(v[1:5:2], rows_of_two(5)[1:5:2], EXACT)
    assert_close(v.embedding_lookup([4, 0]), rows_of_two(5)[[4, 0]], EXACT)
    ids = jax.device_put(np.array([2, 2]), devices[0])
    assert_close(v.embedding_lookup(ids), rows_of_two(5)[[2, 2]], EXACT)
    v.assign(jax.device_put(np.zeros((5, 2), "float32"), devices[0]))
    v.scatter_add(tf.IndexedSlices(jax.device_put(np.ones((1, 2)), devices[0]), [4]))
    assert v.numpy().sum() == 2
    assert [shard.value.devices() for shard in v] == [{d} for d in devices[1:4]]


# Gradients ---------------------------------------------------------------------------------------


def test_a_tape_gives_the_gradient_of_each_shard() -> None:
    v, b = sharded(rows_of_two(3), [2, 1]), tf.Variable(2.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = b * jnp.sum(v * v)
    gradients = tape.gradient(loss, {"table": v, "bias": b})
    assert [np.asarray(g).tolist() for g in gradients["table"]] == [[[4, 8], [12, 16]], [[20, 24]]]
    assert_close(gradients["bias"], np.sum(rows_of_two(3) ** 2))
    assert [jacobian.shape for jacobian in tape.jacobian(loss, v)] == [(2, 2), (1, 2)]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(v)
        loss = jnp.sum(v[1:] ** 2)
    assert tape.watched_variables() == tuple(v.variables)
    assert [np.asarray(g).tolist() for g in tape.gradient(loss, v)] == [
        [[0, 0], [6, 8]],
        [[10, 12]],
    ]


def test_a_shard_that_was_not_used_is_unconnected() -> None:
    v = sharded(rows_of_two(4))
    with tf.GradientTape() as tape:
        loss = jnp.sum(v[0])
    first, second = tape.gradient(loss, v)
    assert first.tolist() == [[1, 1], [0, 0]]
    assert second is None


def test_a_large_table_is_divided_and_a_small_vector_is_not() -> None:
    partitioner = MinSizePartitioner(max_shards=3)
    assert len(create(partitioner, tf.Variable, np.zeros((1024, 512))).variables) == 3
    assert type(create(partitioner, tf.Variable, np.zeros(512))) is tf.Variable
