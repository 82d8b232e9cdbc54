"""What fails when: losses by time or by (task, step), and preemptions by chance."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

_TASK = re.compile(r"(worker|ps):(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """A task is lost, and perhaps comes back.

    Args:
        task: such as "worker:3" or "ps:0".
        at: virtual seconds at which it is lost; or None.
        step: the number of the worker's step, from 0, in the midst of whose computation it is lost;
            or None.
        back_after: seconds until it is back; None: never. A server that is lost stays away.

    Raises:
        InvalidArgument: an unknown task; not exactly one of `at` and `step`; a number that is
            negative or infinite.
    """

    task: str
    at: float | None = None
    step: int | None = None
    back_after: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or _TASK.fullmatch(self.task) is None:
            raise InvalidArgument(
                f'A task is called like "worker:3" or "ps:0". Received: task={self.task!r}.'
            )
        if (self.at is None) == (self.step is None) or (self.step is not None and self.is_server):
            raise InvalidArgument(
                "A worker is lost `at` a time or in a `step`, a server `at` a time. Received: "
                f"{self!r}."
            )
        numbers = [n for n in (self.at, self.step, self.back_after) if n is not None]
        if not all(0 <= number < math.inf for number in numbers):
            raise InvalidArgument(f"Times and steps are not negative. Received: {self!r}.")

    @property
    def is_server(self) -> bool:
        """Whether the task is a server."""
        return self.task.startswith("ps")

    @property
    def index(self) -> int:
        """The task's index."""
        return int(self.task.partition(":")[2])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preemptions:
    """Workers are lost by chance, each one independently, as spot machines are.

    Args:
        per_hour: how many of them a worker sees in a virtual hour on average.
        back_after: seconds until a worker is back; None: never.

    Raises:
        InvalidArgument: a negative number.
    """

    per_hour: float
    back_after: float | None = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.per_hour < math.inf or (self.back_after or 0) < 0:
            raise InvalidArgument(f"Rates and times are not negative. Received: {self!r}.")

    def seconds_to_next(self, rng: np.random.Generator) -> float:
        """How long a worker lives, drawn at random."""
        return rng.exponential(3600 / self.per_hour) if self.per_hour else math.inf


class FaultPlan:
    """What fails in a run.

    Args:
        faults: losses and preemptions, in any order.

    Raises:
        InvalidArgument: something else, or two losses of a worker in one step.
    """

    def __init__(self, faults: Sequence[Loss | Preemptions] | Loss | Preemptions = ()) -> None:
        given = list(faults) if isinstance(faults, Sequence) else [faults]
        for fault in given:
            if not isinstance(fault, (Loss, Preemptions)):
                raise InvalidArgument(
                    f"A plan of faults holds `Loss` and `Preemptions`. Received: {fault!r}."
                )
        self.losses = tuple(fault for fault in given if isinstance(fault, Loss))
        steps = [(loss.task, loss.step) for loss in self.losses if loss.step is not None]
        for address in steps:
            if steps.count(address) > 1:
                raise InvalidArgument(
                    "A worker is lost once in a step, which it does not end. Received: two losses "
                    f"of {address[0]!r} in step {address[1]}."
                )
        self.preemptions = tuple(fault for fault in given if isinstance(fault, Preemptions))

    def check_tasks(self, workers: int, servers: int) -> None:
        """Refuses losses of tasks that a cluster does not have.

        Raises:
            InvalidArgument: there is no such task.
        """
        for loss in self.losses:
            count = servers if loss.is_server else workers
            if loss.index >= count:
                raise InvalidArgument(
                    f"Only tasks of the cluster can be lost. Received: {loss.task!r} of {workers} "
                    f"workers and {servers} servers."
                )

    def at_times(self) -> list[Loss]:
        """The losses that come at a time."""
        return [loss for loss in self.losses if loss.at is not None]

    def in_steps(self) -> dict[tuple[int, int], Loss]:
        """The losses that come in a step, by worker and step."""
        return {(loss.index, loss.step): loss for loss in self.losses if loss.step is not None}

    def __repr__(self) -> str:
        return f"FaultPlan({[*self.losses, *self.preemptions]})"
