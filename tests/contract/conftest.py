"""Every way to run a function on the replicas, or across them: all must give the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import paceline as tf
from replica_values import mirrored_strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., Any]


def _run_eagerly(strategy: Any, fn: Callable[..., Any], *args: Any) -> Any:
    return strategy.run(fn, args=args)


def _run_a_function(strategy: Any, fn: Callable[..., Any], *args: Any) -> Any:
    return strategy.run(tf.function(fn), args=args)


def _run_in_a_function(strategy: Any, fn: Callable[..., Any], *args: Any) -> Any:
    return tf.function(lambda *own: strategy.run(fn, args=own))(*args)


_RUNS = {
    "eager": _run_eagerly,
    "run_of_function": _run_a_function,
    "run_in_function": _run_in_a_function,
}


@pytest.fixture(params=_RUNS.values(), ids=_RUNS.keys())
def run(request: pytest.FixtureRequest) -> Run:
    """`strategy.run`, as `run(strategy, fn, *args)`, in each of its spellings."""
    return request.param


@pytest.fixture(params=list(_RUNS.values())[1:], ids=list(_RUNS.keys())[1:])
def run_compiled(request: pytest.FixtureRequest) -> Run:
    """`run` in the spellings that compile the function."""
    return request.param


def _call_outside(strategy: Any, fn: Callable[[], Any]) -> Any:
    return fn()


def _call_in_scope(strategy: Any, fn: Callable[[], Any]) -> Any:
    with strategy.scope():
        return fn()


def _call_in_function(strategy: Any, fn: Callable[[], Any]) -> Any:
    return tf.function(fn)()


def _call_in_merge(strategy: Any, fn: Callable[[], Any]) -> Any:
    results = []

    def replica_fn() -> None:
        context = tf.distribute.get_replica_context()
        context.merge_call(lambda _: results.append(fn()))

    strategy.run(replica_fn)
    return results[0]


_ACROSS = {
    "outside": _call_outside,
    "scope": _call_in_scope,
    "function": _call_in_function,
    "merge_call": _call_in_merge,
}


@pytest.fixture(params=_ACROSS.values(), ids=_ACROSS.keys())
def across(request: pytest.FixtureRequest) -> Run:
    """Calls `across(strategy, fn)` across replicas, in each place where that is possible."""
    return request.param


@pytest.fixture
def num_replicas() -> int:
    """Two, unless a test is parametrised over the number."""
    return 2


@pytest.fixture
def mirrored(num_replicas: int) -> Any:
    """A MirroredStrategy over the first `num_replicas` CPU devices."""
    return mirrored_strategy(num_replicas)
