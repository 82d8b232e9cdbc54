"""Transfers over shared links, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.errors import InvalidArgument
from paceline.virtual import Network
from paceline.virtual.network import Links, network_of


def test_without_latency_and_limits_all_is_there_at_once() -> None:
    links = Links(Network(), servers=2)
    assert links.send(3.0, [10**9, 10**9]) == 3.0
    assert links.num_bytes == 2 * 10**9


def test_latency_is_paid_once_whatever_the_size() -> None:
    links = Links(Network(latency=0.25), servers=2)
    assert links.send(1.0, [8, 800]) == 1.25
    assert links.send(1.0, []) == 1.25


def test_bandwidth_is_bytes_a_second() -> None:
    links = Links(Network(bandwidth=100.0), servers=1)
    assert links.send(0.0, [250]) == 2.5


def test_who_asks_first_has_the_link_first() -> None:
    links = Links(Network(latency=1.0, bandwidth=100.0), servers=1)
    assert links.send(0.0, [200]) == 3.0  # on the link from 0 to 2
    assert links.send(0.5, [100]) == 4.0  # from 2 to 3
    assert links.send(1.0, [100]) == 5.0  # from 3 to 4
    assert links.send(9.0, [100]) == 11.0  # free long since: from 9 to 10


def test_each_server_has_a_link_of_its_own() -> None:
    links = Links(Network(bandwidth=100.0), servers=2)
    assert links.send(0.0, [300, 100]) == 3.0  # the slower one counts
    assert links.send(0.0, [0, 100]) == 2.0  # the second link is free at 1
    assert links.send(0.0, [100, 0]) == 4.0
    assert links.num_bytes == 600


def test_two_servers_serve_twice_as_many() -> None:
    """Eight clients and 100 bytes each: 8 s over one link, 4 s over two."""
    one, two = (Links(Network(bandwidth=100.0), servers=n) for n in (1, 2))
    assert max(one.send(0.0, [100]) for _ in range(8)) == 8.0
    assert max(two.send(0.0, [50, 50]) for _ in range(8)) == 4.0


def test_servers_without_bytes_hold_up_nothing() -> None:
    links = Links(Network(bandwidth=1.0), servers=3)
    assert links.send(0.0, [5]) == 5.0
    assert links.send(1.0, [0, 0, 2]) == 3.0


def test_a_number_is_a_latency() -> None:
    assert network_of(0.5) == Network(latency=0.5)
    assert network_of(None) == Network()
    assert network_of(Network(bandwidth=3.0)) == Network(bandwidth=3.0)


def test_only_a_network_without_limits_is_instant() -> None:
    assert Network().is_instant
    assert not Network(latency=1e-9).is_instant
    assert not Network(bandwidth=1e12).is_instant


@pytest.mark.parametrize(
    "options",
    [
        {"latency": -1.0},
        {"latency": math.inf},
        {"latency": math.nan},
        {"bandwidth": 0.0},
        {"bandwidth": -1.0},
        {"bandwidth": math.nan},
        {"latency": "1 ms"},
    ],
)
def test_wrong_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"latency of 0 or more.*Received: latency="):
        Network(**options)


@pytest.mark.parametrize("value", ["fast", True, [0.1]])
def test_what_is_no_network_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"`network` is .*Received: network="):
        network_of(value)
