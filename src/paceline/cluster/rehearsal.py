"""A run without gradients: how long it would take, by the same store, pace and ledger."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.cluster.exchange import Exchange
from paceline.errors import Unavailable
from paceline.store.ledger import Ledger
from paceline.store.store import Push, Store
from paceline.virtual.clock import Clock
from paceline.virtual.network import Links

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.cluster.records import PushRecord
    from paceline.cluster.simulated import Simulated
    from paceline.pace import Pace
    from paceline.virtual.faults import Loss, Preemptions


class _Nothing:
    """An update that only counts."""

    reads = writes = ()

    def __call__(self, current: Sequence[Any], staleness: int) -> tuple[()]:
        return ()


_NOTHING = _Nothing()


def _merged(group: Sequence[tuple[Push, int]]) -> _Nothing:
    return _NOTHING


class Rehearsal:
    """Workers that pull, wait as long as a computation takes, and push nothing.

    Args:
        cluster: workers, servers, and how long everything takes.
        pace: how far workers may drift apart.
        record: is told of every push that ended.
        pulled, pushed: bytes of a step, by server.
        examples: of a step.

    Attributes:
        clock: the virtual clock.
        ledger: who did how much.
    """

    def __init__(
        self,
        cluster: Simulated,
        pace: Pace,
        record: Callable[[PushRecord], None],
        *,
        pulled: Sequence[int],
        pushed: Sequence[int],
        examples: int,
    ) -> None:
        self.clock = Clock()
        self.ledger = Ledger()
        self._exchange = Exchange(Store({}), pace, _merged, record)
        self._holds_starts = self._exchange.holds_starts
        self._cluster, self._examples = cluster, examples
        self._pulled, self._pushed = pulled, pushed
        self._pulls = Links(cluster.network, cluster.servers)
        self._pushes = Links(cluster.network, cluster.servers)
        self._latency, self._is_instant = cluster.network.latency, cluster.network.is_instant
        self._sequence = itertools.count(1)
        self._left = 0  # leases that were not offered yet
        self._steps = [0] * cluster.workers  # begun so far, counted while losses are to come
        self._losses = cluster.faults.in_steps()
        self._waiting: dict[int, None] = {}  # may not start before the barrier goes
        self._barrier: Any = None  # as it was when these looked last
        self._present: dict[int, int] = {}  # incarnations
        self._lives = [self._generator(index, 1) for index in range(cluster.workers)]
        self._seconds = [
            cluster.compute.sampler(self._generator(index, 0), index, cluster.workers)
            for index in range(cluster.workers)
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes that were pulled and pushed so far."""
        return self._pulls.num_bytes + self._pushes.num_bytes

    def perform(self, pushes: int) -> None:
        """Begins, and goes on until so many pushes count. To be called once.

        Raises:
            Unavailable: a server was lost, or all workers were, for good.
        """
        self._left += pushes
        for loss in self._cluster.faults.at_times():
            self.clock.at(float(loss.at or 0), self._lose_planned, loss)
        for worker in range(self._cluster.workers):
            self._arrive(worker)
        step = self.clock.step
        while self._left or not self.ledger.is_done:
            if not step():
                raise Unavailable(
                    "Somebody has to be there to do the work. Received: no event left at "
                    f"{self.clock.now:g} virtual s, with {self._left} pushes to make. Let lost "
                    "workers come back."
                )
        self._exchange.flush(self.clock.now)

    def _generator(self, worker: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._cluster.seed, worker, purpose])

    # Steps ----------------------------------------------------------------------------------------

    def _look(self, worker: int) -> None:
        """Lets a worker begin a step, if there is one and its pace allows it."""
        exchange, ledger, now = self._exchange, self.ledger, self.clock.now
        if self._holds_starts and exchange.must_wait(worker):
            exchange.ask(worker, now)
            self._waiting[worker] = None
            return
        if not ledger.waiting:
            if not self._left:
                exchange.finish(worker, now)
                return
            self._left -= 1
            ledger.offer(examples=self._examples)
        incarnation = self._present[worker]
        lease = ledger.lease(worker, incarnation, now)
        if self._latency:
            self.clock.at(now + self._latency, self._pull, worker, incarnation, lease)
        else:
            self._pull(worker, incarnation, lease)

    def _pull(self, worker: int, incarnation: int, lease: Any) -> None:
        if self._present.get(worker) != incarnation:
            return
        now = self.clock.now
        version = self._exchange.pull(worker, (), now).version
        done = now if self._is_instant else self._pulls.send(now, self._pulled)
        seconds = self._seconds[worker]()
        if self._losses:
            loss = self._losses.pop((worker, self._steps[worker]), None)
            if loss is not None:
                self.clock.at(done + seconds / 2, self._lose, worker, incarnation, loss.back_after)
            self._steps[worker] += 1
        act = self._push if self._is_instant else self._leave
        self.clock.at(done + seconds, act, worker, incarnation, lease, version)

    def _leave(self, worker: int, incarnation: int, lease: Any, version: int) -> None:
        if self._present.get(worker) == incarnation:
            arrived = self._pushes.send(self.clock.now, self._pushed)
            self.clock.at(arrived, self._push, worker, incarnation, lease, version)

    def _push(self, worker: int, incarnation: int, lease: Any, version: int) -> None:
        if self._present.get(worker) != incarnation:
            return
        exchange, now = self._exchange, self.clock.now
        push = Push(
            worker, incarnation, next(self._sequence), version, _NOTHING, lease, self._examples
        )
        outcome = exchange.push(push, now)
        if outcome.kind == "dropped":
            self.ledger.give_back(lease, worker, incarnation, outcome.reason)
        else:
            self.ledger.complete(lease, worker, incarnation)
        if self._latency:
            self.clock.at(now + self._latency, self._go_on, worker, incarnation)
        else:
            self._look(worker)
        if self._waiting and exchange.barrier != self._barrier:
            self._let_waiting_look()

    def _go_on(self, worker: int, incarnation: int) -> None:
        if self._present.get(worker) == incarnation:
            self._look(worker)

    def _let_waiting_look(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._barrier = self._exchange.barrier
        for worker in waiting:
            self._look(worker)

    # Faults ---------------------------------------------------------------------------------------

    def _arrive(self, worker: int) -> None:
        """A worker comes, for the first time or again."""
        incarnation = self._present[worker] = self.ledger.incarnation(worker)
        self._exchange.join(worker, incarnation)
        for preemption in self._cluster.faults.preemptions:
            self._plan(worker, incarnation, preemption)
        self._look(worker)

    def _plan(self, worker: int, incarnation: int, preemption: Preemptions) -> None:
        lifetime = preemption.seconds_to_next(self._lives[worker])
        if lifetime < math.inf:
            end = self.clock.now + lifetime
            self.clock.at(end, self._lose, worker, incarnation, preemption.back_after)

    def _lose_planned(self, loss: Loss) -> None:
        if loss.is_server:
            raise Unavailable(
                f"Training needs all servers. Received: {loss.task}, which is lost at "
                f"{self.clock.now:g} virtual s, as planned."
            )
        if loss.index in self._present:
            self._lose(loss.index, self._present[loss.index], loss.back_after)

    def _lose(self, worker: int, incarnation: int, back_after: float | None) -> None:
        if self._present.get(worker) != incarnation:
            return
        del self._present[worker]
        self._waiting.pop(worker, None)
        self.ledger.lose(worker, incarnation, "was lost")
        self._exchange.leave(worker, self.clock.now)
        if back_after is not None:
            self.clock.at(self.clock.now + back_after, self._arrive, worker)
        self._let_waiting_look()
