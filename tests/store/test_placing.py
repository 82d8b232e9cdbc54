"""Which server holds which array."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidArgument
from paceline.store.partitioners import MinSizePartitioner, partitions, row_ranges
from paceline.store.placing import BySize, Placing, RoundRobin, place

KB, MB = 1 << 10, 1 << 20
UNEVEN = [("big", 4 * MB), ("a", KB), ("b", KB), ("c", KB)]
SIZES = st.lists(st.integers(0, 50), max_size=6)
RULES = st.sampled_from([RoundRobin(), BySize()])


def divided() -> list[tuple[str, int]]:
    """`UNEVEN` as float32 variables of one column, under a partitioner."""
    partitioner = MinSizePartitioner(256 << 10, 2)
    found = []
    for name, num_bytes in UNEVEN:
        rows = num_bytes // 4
        num = partitions(partitioner, (rows, 1), "float32")
        if num == 1:
            found.append((name, num_bytes))
        else:
            ranges = row_ranges(rows, num)
            found += [(f"{name}/part_{i}", 4 * len(own)) for i, own in enumerate(ranges)]
    return found


@pytest.mark.contract(84)
def test_round_robin_goes_on_in_the_order_of_creation() -> None:
    report = place([(name, 1) for name in "abcde"], 2)
    assert report.assignment == (0, 1, 0, 1, 0)
    assert report.servers[0].names == ("a", "c", "e")
    counts, sizes = [0, 0], [0, 0]
    for expected in report.assignment:  # the same when they become known one by one
        server = RoundRobin().next_server(counts, sizes)
        assert server == expected
        counts[server] += 1


@pytest.mark.case("R96")
def test_round_robin_puts_the_large_variable_and_a_small_one_on_the_first_server() -> None:
    report = place(UNEVEN, 2)
    assert report.servers[0].names == ("big", "b")
    assert [server.num_bytes for server in report.servers] == [4 * MB + KB, 2 * KB]
    assert report.imbalance == pytest.approx(2 * (4 * MB + KB) / (4 * MB + 3 * KB))


@pytest.mark.case("R96")
def test_a_partitioner_halves_the_large_variable() -> None:
    assert divided() == [
        ("big/part_0", 2 * MB),
        ("big/part_1", 2 * MB),
        ("a", KB),
        ("b", KB),
        ("c", KB),
    ]
    report = place(divided(), 2)
    assert report.servers[0].names == ("big/part_0", "a", "c")
    assert [server.num_bytes for server in report.servers] == [2 * MB + 2 * KB, 2 * MB + KB]


@pytest.mark.case("R96")
def test_by_size_balances() -> None:
    report = place(UNEVEN, 2, BySize())
    assert [server.num_bytes for server in report.servers] == [4 * MB, 3 * KB]
    assert report.servers[1].names == ("a", "b", "c")
    halves = place(divided(), 2, BySize())
    assert [server.num_bytes for server in halves.servers] == [2 * MB + 2 * KB, 2 * MB + KB]
    assert halves.imbalance < 1.001
    assert BySize().next_server([1, 4], [4 * MB, 3 * KB]) == 1


@pytest.mark.case("R96")
def test_the_report_can_be_read_by_people_and_programs() -> None:
    report = place([*UNEVEN, ("d", KB)], 2)
    assert report.as_text(max_names=2).splitlines() == [
        "server  arrays      bytes   share  holds",
        "ps:0         3  4,196,352  100.0%  big, b and 1 more",
        "ps:1         2      2,048    0.0%  a, c",
        "imbalance: 2.00 (fullest server / mean)",
    ]
    assert json.loads(json.dumps(report.as_dict())) == {
        "servers": [
            {"names": ["big", "b", "d"], "num_bytes": 4 * MB + 2 * KB},
            {"names": ["a", "c"], "num_bytes": 2 * KB},
        ],
        "num_bytes": 4 * MB + 4 * KB,
        "imbalance": report.imbalance,
    }


def test_nothing_to_place() -> None:
    report = place([], 2)
    assert (report.imbalance, report.num_bytes, report.assignment) == (1.0, 0, ())
    assert "0.0%" in report.as_text()


def test_arrays_may_have_one_name() -> None:
    assert place([("kernel", 1), ("kernel", 2)], 2).assignment == (0, 1)


def test_numbers_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="num_servers=0"):
        place(UNEVEN, 0)
    with pytest.raises(InvalidArgument, match="at least -3 bytes"):
        place([("a", -3)], 1)
    with pytest.raises(NotImplementedError):
        place(UNEVEN, 1, Placing())


@given(SIZES, st.integers(1, 3), RULES)
def test_every_array_is_placed_once(sizes: list[int], num_servers: int, placing: Placing) -> None:
    report = place([(f"v{i}", size) for i, size in enumerate(sizes)], num_servers, placing)
    assert sorted(name for server in report.servers for name in server.names) == sorted(
        f"v{i}" for i in range(len(sizes))
    )
    for i, server in enumerate(report.assignment):
        assert f"v{i}" in report.servers[server].names
    assert report.num_bytes == sum(sizes)
    assert 1 <= report.imbalance <= num_servers + 1e-9


@given(SIZES, st.integers(1, 3))
def test_by_size_is_near_the_best(sizes: list[int], num_servers: int) -> None:
    report = place([("v", size) for size in sizes], num_servers, BySize())
    servers = range(num_servers)
    best = min(
        max(sum(s for s, own in zip(sizes, choice, strict=True) if own == i) for i in servers)
        for choice in itertools.product(servers, repeat=len(sizes))
    )
    assert 3 * max(server.num_bytes for server in report.servers) <= 4 * best
