"""Lockstep: rounds that everybody takes part in, optionally without waiting for the last few."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from paceline.pace.base import Drop, Pace, check_count
from paceline.pace.gathering import GatheringMachine
from paceline.pace.members import name_workers

if TYPE_CHECKING:
    from paceline.pace.base import Apply, Decision, PaceMachine


@dataclasses.dataclass(frozen=True)
class Synchronous(Pace):
    """Rounds: all live workers start from the same version, and their pushes make one update.

    A round closes when at most `backups` live workers have yet to push, and with at least one push.
    A worker that has pushed waits for its round to close. The push of a worker that its round did
    not wait for is dropped when it comes, with a reason that names the worker and the round. A
    worker that joins takes part in the open round.

    Backups help against workers that are slow now and then. A worker that is always slow uses one
    up for good, and its examples rarely count.

    Semantics:
        Without backups this is bulk synchronous parallelism (Valiant 1990) and what
        `tf.distribute` does in lockstep, with one addition: a round does not wait for workers that
        left or ran out of data. Backups are those of Chen et al. 2016, "Revisiting Distributed
        Synchronous SGD", as in `tf.compat.v1.train.SyncReplicasOptimizer`, where
        `replicas_to_aggregate` is a fixed number: here it is the number of live workers, minus
        `backups`.

    Args:
        backups: how many live workers a round does without.

    Raises:
        InvalidArgument: not an integer of at least 0.
    """

    backups: int = 0

    def __post_init__(self) -> None:
        check_count(
            "backups",
            self.backups,
            least=0,
            rule="The number of backup workers is an integer of at least 0.",
            remedy="Pass 0 to wait for every worker.",
        )

    def machine(self) -> PaceMachine:
        return SynchronousMachine(self.backups)


class SynchronousMachine(GatheringMachine):
    """The rounds of one run."""

    def __init__(self, backups: int) -> None:
        super().__init__()
        self._backups = backups
        # The round in which each computing worker pulled.
        self._pulled_in: dict[int, int] = {}
        # Who has pushed in this round.
        self._givers: set[int] = set()
        # The live members that have not pushed in this round. Counting pushes instead would let the
        # push of a worker that left stand in for one that is still to come.
        self._missing: dict[int, None] = {}

    @property
    def barrier(self) -> int:
        return self._round

    def join(self, worker: int) -> None:
        super().join(worker)
        if worker not in self._givers:
            self._missing[worker] = None

    def leave(self, worker: int) -> list[Decision]:
        self._pulled_in.pop(worker, None)
        self._missing.pop(worker, None)
        return super().leave(worker)

    def finish(self, worker: int) -> list[Decision]:
        self._missing.pop(worker, None)
        return super().finish(worker)

    def started(self, worker: int, version: int) -> None:
        # Rounds count updates of this pace only; versions may count others too.
        if worker in self._members.clocks:
            self._pulled_in[worker] = self._round

    def _decide(self, worker: int, ticket: int, staleness: int) -> Decision:
        reason = self._why_drop(worker, self._pulled_in.pop(worker, None))
        if reason:
            return Drop(ticket, reason)
        self._givers.add(worker)
        self._missing.pop(worker, None)
        return self._gather(ticket)

    def _apply(self, reason: str) -> Apply:
        decision = super()._apply(reason)
        self._givers.clear()
        self._missing = dict.fromkeys(self._members.live)
        return decision

    def _must_wait(self, worker: int) -> bool:
        return worker in self._givers

    def _why_wait(self, worker: int) -> str:
        return f"Worker {worker} has pushed. {self._why_hold()}"

    def _why_drop(self, worker: int, pulled_in: int | None) -> str:
        """Returns why a push is dropped; empty: it is not. None: the worker has not pulled."""
        if pulled_in is None:
            return f"Worker {worker} pushed what it did not pull for round {self._round}."
        if pulled_in < self._round:
            return (
                f"Worker {worker} came late for round {pulled_in}, which closed without it; "
                f"round {self._round} is open."
            )
        if worker in self._givers:
            return f"Worker {worker} has already pushed in round {self._round}."
        return ""

    def _must_hold(self) -> bool:
        return len(self._missing) > self._backups

    def _why_hold(self) -> str:
        spared = f", of which it can spare {self._backups}" if self._backups else ""
        return f"Round {self._round} waits for {name_workers(self._missing)}{spared}."

    def _why_apply(self) -> str:
        without = f", without {name_workers(self._missing)}" if self._missing else ""
        return f"Round {self._round} closes with {name_workers(self._givers)}{without}."
