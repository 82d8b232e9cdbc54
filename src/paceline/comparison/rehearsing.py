"""Timing alone: how long a run would take, without a model."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from paceline.cluster.rehearsal import Rehearsal
from paceline.errors import InvalidArgument
from paceline.monitor.staleness import Statistics
from paceline.pace import Asynchronous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.cluster.simulated import Simulated
    from paceline.monitor.report import Report
    from paceline.pace import Pace


@dataclasses.dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal showed.

    Attributes:
        report: of all pushes, in virtual seconds.
        seconds: virtual seconds until all were applied.
        num_bytes: bytes that were pulled and pushed.
    """

    report: Report
    seconds: float
    num_bytes: int


def rehearse(
    cluster: Simulated,
    pushes: int,
    *,
    pace: Pace | None = None,
    pull_bytes: int | Sequence[int] = 0,
    push_bytes: int | Sequence[int] = 0,
    examples: int = 1,
) -> Rehearsed:
    """Runs steps that compute nothing through the real store, pace and ledger, in virtual time.

    For sizing: a million steps of 256 workers take 16 to 30 seconds on one core of a shared server,
    depending on the pace, however large the model.

    Args:
        cluster: workers, servers, and how long everything takes.
        pushes: how many are to count; those that the pace drops come on top.
        pace: how far workers may drift apart. Default: `Asynchronous()`.
        pull_bytes, push_bytes: of a step: one number, divided evenly over the servers, or one for
            each server.
        examples: of a step.

    Raises:
        InvalidArgument: less than one push, or other than one size per server.
        Unavailable: a server was lost, or all workers were, for good.
    """
    if pushes < 1:
        raise InvalidArgument(f"A rehearsal makes at least 1 push. Received: pushes={pushes!r}.")
    statistics = Statistics()
    rehearsal = Rehearsal(
        cluster,
        pace or Asynchronous(),
        statistics.record,
        pulled=_per_server(pull_bytes, cluster.servers, "pull_bytes"),
        pushed=_per_server(push_bytes, cluster.servers, "push_bytes"),
        examples=examples,
    )
    rehearsal.perform(pushes)
    return Rehearsed(statistics.report(), rehearsal.clock.now, rehearsal.num_bytes)


def _per_server(sizes: int | Sequence[int], servers: int, name: str) -> list[int]:
    given: list[Any] = (
        [sizes // servers + (index < sizes % servers) for index in range(servers)]
        if isinstance(sizes, int)
        else list(sizes)
    )
    if len(given) != servers or min(given) < 0:
        raise InvalidArgument(
            f"`{name}` is a number of bytes, or one for each of {servers} servers. Received: "
            f"{name}={sizes!r}."
        )
    return given
