"""Eager replicas: threads that run one at a time and meet."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest

from paceline.errors import InvalidArgument, ReplicaMismatch
from paceline.program.eager import Group, Member


def group(num_replicas: int = 3) -> Group:
    return Group(
        jax.local_devices()[:num_replicas], lambda payloads: [sum(payloads)] * len(payloads)
    )


def test_replicas_run_in_order_between_meetings() -> None:
    events: list[tuple[int, str]] = []

    def call(member: Member) -> list[int]:
        events.append((member.index, "before"))
        everyone = member.exchange(member.index * 10)
        events.append((member.index, "after"))
        return everyone

    assert group().run(call) == [[0, 10, 20]] * 3
    assert events == [(i, when) for when in ("before", "after") for i in range(3)]


def test_sums_and_concatenations_come_back_on_each_device() -> None:
    def call(member: Member) -> tuple[jax.Array, jax.Array]:
        value = jnp.full((member.index + 1,), member.index)
        return member.sum(jnp.int32(member.index)), member.concatenate(value, 0)

    for index, (total, rows) in enumerate(group().run(call)):
        assert int(total) == 3
        assert rows.tolist() == [0, 1, 1, 2, 2, 2]
        assert total.devices() == {jax.local_devices()[index]}


def test_merge_runs_in_the_calling_thread() -> None:
    threads: list[str] = []

    def merge(payloads: list[int]) -> list[int]:
        threads.append(threading.current_thread().name)
        return payloads[::-1]

    run = Group(jax.local_devices()[:2], merge).run
    assert run(lambda member: member.merge(member.index)) == [1, 0]
    assert threads == [threading.current_thread().name]


def test_an_error_stops_the_others_and_surfaces_unchanged() -> None:
    error = KeyError("mine")
    reached: list[int] = []

    def call(member: Member) -> None:
        if member.index == 1:
            raise error
        member.exchange(None)
        reached.append(member.index)

    with pytest.raises(KeyError) as caught:
        group().run(call)
    assert caught.value is error
    assert reached == []
    assert not [t for t in threading.enumerate() if t.name.startswith("paceline-replica")]


def test_different_meetings_name_the_replicas() -> None:
    def call(member: Member) -> None:
        if member.index == 0:
            member.exchange(None)

    with pytest.raises(ReplicaMismatch, match="replica 0 at exchange, replica 1 at its end"):
        group(2).run(call)


def test_sums_of_different_shapes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"one shape.*\(1,\), \(2,\)"):
        group(2).run(lambda member: member.sum(jnp.ones(member.index + 1)))


def test_what_replicas_create_is_one_object() -> None:
    created = group().run(lambda member: member.created_once("v", object))
    assert created[0] is created[1] is created[2]
    with pytest.raises(ReplicaMismatch, match="'v0' on replica 0 and 'v1' on replica 1"):
        group().run(lambda member: member.created_once(f"v{member.index}", object))
