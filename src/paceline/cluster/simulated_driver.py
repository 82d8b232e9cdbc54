"""The driver of `Simulated`: the code of workers runs in turn, and time is virtual.

Time passes between a pull and its push, on the way to the servers and back, and where nothing is
left to do before. The gradients are computed when their time is over, on the snapshot of before.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from paceline.cluster.driving import Driving
from paceline.cluster.instructions import Interrupt
from paceline.cluster.serving import soon
from paceline.cluster.stage import Actor, Stage
from paceline.errors import WaitTimeout
from paceline.program import context
from paceline.program.handover import handover
from paceline.virtual.clock import Clock
from paceline.virtual.network import Links

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.cluster.exchange import Outcome
    from paceline.cluster.session import Session
    from paceline.cluster.simulated import Simulated
    from paceline.cluster.work import Work
    from paceline.cluster.worker import Worker
    from paceline.store.store import Push, Snapshot
    from paceline.virtual.faults import Loss


class _Lane:
    """What one worker draws and has drawn, through all its incarnations."""

    def __init__(self, cluster: Simulated, index: int) -> None:
        def generator(purpose: int) -> np.random.Generator:
            return np.random.default_rng([cluster.seed, index, purpose])

        self.seconds = cluster.compute.sampler(generator(0), index, cluster.workers)
        self.lives = generator(1)
        self.steps = 0
        self.has_stepped = False  # since its work began


@dataclasses.dataclass(eq=False)
class _Waiter:
    """Somebody who stands still until something is so."""

    actor: Actor
    is_met: Callable[[], bool]


class SimulatedDriver(Driving):
    """Lets events happen in the order of virtual time, whenever the coordinator waits.

    Args:
        cluster: the configuration.
        session: the machines.
    """

    counts_bytes = True

    def __init__(self, cluster: Simulated, session: Session) -> None:
        self.clock = Clock()
        super().__init__(cluster, session)
        self._stage = Stage(cluster.deadline)
        self._pulls = Links(cluster.network, cluster.servers)
        self._pushes = Links(cluster.network, cluster.servers)
        self._lanes = [_Lane(cluster, index) for index in range(cluster.workers)]
        self._losses = cluster.faults.in_steps()
        self._idle: dict[Worker, None] = {}
        self._asleep: dict[Worker, tuple[Actor, object]] = {}
        self._waiting: list[_Waiter] = []
        self._has_rung = False
        self._num_background = 0  # events that come whether or not there is anything to do
        for loss in cluster.faults.at_times():
            self.clock.at(float(loss.at or 0), self._lose, loss)

    @property
    def num_bytes(self) -> int:
        """Bytes that were pulled and pushed so far."""
        return self._pulls.num_bytes + self._pushes.num_bytes

    def now(self) -> float:
        return self.clock.now

    def is_done(self) -> bool:
        self._happen()  # a program that asks again and again waits
        return super().is_done()

    def let_go_on(self, is_met: Callable[[], bool]) -> bool:
        with handover:
            self._wait_until(is_met, "what somebody waits for outside")
        return True

    def stop(self) -> None:
        super().stop()
        soon(self._stage.close)  # this may be a finalizer, and whoever stands still takes locks

    # For workers ----------------------------------------------------------------------------------

    def pull(self, worker: Worker, keys: Sequence[Any], keeps_pace: bool) -> Snapshot:
        """A snapshot; when it returns, the time for computing on it has passed."""
        lane, latency = self._lanes[worker.index], self._cluster.network.latency
        if latency:
            self._sleep(worker, self.now() + latency)
        snapshot = super().pull(worker, keys, keeps_pace)
        traffic = worker.step.traffic if worker.step is not None else None
        arrived = self._pulls.send(self.now(), traffic.pulled if traffic else ())
        seconds = self._draw(lane)
        loss = self._losses.pop((worker.index, lane.steps - 1), None)
        if loss is not None:
            self.clock.at(arrived + seconds / 2, self._lose, loss)
        self._sleep(worker, arrived + seconds)
        return snapshot

    def push(self, worker: Worker, push: Push, keeps_pace: bool) -> Outcome:
        """Hands over what `worker` has computed, when it has arrived."""
        traffic = worker.step.traffic if worker.step is not None else None
        arrived = self._pushes.send(self.now(), traffic.pushed if traffic else ())
        if arrived > self.now():
            self._sleep(worker, arrived)
        outcome = super().push(worker, push, keeps_pace)
        if self._cluster.network.latency:
            self._sleep(worker, self.now() + self._cluster.network.latency)
        return outcome

    def apply(self, worker: Worker, update: Callable[[], Any], is_whole: bool) -> Any:
        """Carries out an update of code that is not compiled, after the time of a step."""
        asked_at = self.now()
        self._sleep(worker, asked_at + self._draw(self._lanes[worker.index]))
        return self._apply(worker, update, is_whole, asked_at)

    def _spend(self, worker: Worker) -> None:
        lane = self._lanes[worker.index]
        if not lane.has_stepped:
            self._sleep(worker, self.now() + self._draw(lane))

    def _draw(self, lane: _Lane) -> float:
        lane.steps += 1
        lane.has_stepped = True
        return lane.seconds()

    def _sleep(self, worker: Worker, until: float) -> None:
        """Stands still until a time, or until what the worker runs is called off."""
        actor, token = self._stage.playing, object()
        if actor is None:
            raise RuntimeError("only a worker's code spends virtual time")
        self._asleep[worker] = actor, token
        self.clock.at(until, self._rouse, worker, token)
        self._stage.stand_still()
        with handover:
            self.check(worker)

    def _rouse(self, worker: Worker, token: object = None) -> None:
        """Lets a worker that sleeps go on; the alarm of an earlier sleep does nothing."""
        actor, current = self._asleep.get(worker, (None, None))
        if actor is not None and token in (None, current):
            del self._asleep[worker]
            self._stage.go_on(actor, worker.work)

    # What workers are -----------------------------------------------------------------------------

    def _start(self, index: int) -> Worker:
        worker = self._new_worker(index)
        self._idle[worker] = None
        lives = self._lanes[index].lives
        for preemption in self._cluster.faults.preemptions:
            lifetime = preemption.seconds_to_next(lives)
            if lifetime < math.inf:
                self._num_background += 1
                self.clock.at(self.now() + lifetime, self._preempt, worker, preemption.back_after)
        return worker

    def _ring(self, *, for_one: bool = False) -> None:
        if not self._has_rung:
            self._has_rung = True
            self.clock.at(self.now(), self._offer)

    def _offer(self) -> None:
        """Lets idle workers look for work, those first that have been idle longest."""
        self._has_rung = False
        for worker in list(self._idle):
            with handover:
                is_here = self.worker(worker.index, worker.incarnation) is worker
                work = self.take(worker) if is_here and not self._is_over else None
            if work is not None or not is_here:
                del self._idle[worker]
            if work is not None:
                self._stage.play(lambda w=worker, k=work: self._serve(w, k), work)

    def _serve(self, worker: Worker, work: Work | None) -> None:
        """Runs work until there is none; called by an actor."""
        with context.working(worker), jax.default_device(worker.device):
            while work is not None:
                self._lanes[worker.index].has_stepped = False
                work = self.run(worker, work)
        if self._workers.get(worker.index) is worker:
            self._idle[worker] = None
            if self._has_left_work:
                self._ring()

    def _is_anybody_free(self) -> bool:
        # When no live member computes, at least one of them may start: so says every pace.
        return True

    def _take_away(self, worker: Worker, instructions: Sequence[Any]) -> None:
        super()._take_away(worker, instructions)
        self._idle.pop(worker, None)
        self.clock.at(self.now(), self._rouse, worker)

    def _carry_out(self, instructions: Sequence[Any]) -> None:
        super()._carry_out(instructions)
        for instruction in instructions:
            if isinstance(instruction, Interrupt):
                self.clock.at(self.now(), self._rouse, self._workers[instruction.worker])

    # Faults ---------------------------------------------------------------------------------------

    def _lose(self, loss: Loss) -> None:
        if loss.is_server:
            self.lose_server(loss.index, "was lost, as planned")
            return
        worker = self._workers.get(loss.index)
        if worker is not None:
            self._lose_worker(worker, "was lost, as planned", loss.back_after)

    def _preempt(self, worker: Worker, back_after: float | None) -> None:
        self._num_background -= 1
        if self._workers.get(worker.index) is worker:
            self._lose_worker(worker, "was preempted", back_after)

    def _lose_worker(self, worker: Worker, reason: str, back_after: float | None) -> None:
        index = worker.index
        with handover:
            self._absent.add(index)
            lost = self.session.dispatch.lost(index, worker.incarnation, reason)
            self._take_away(worker, lost)
            self._note_progress(self.now())
        if back_after is not None:
            self.clock.at(self.now() + back_after, self._return, index)

    def _return(self, index: int) -> None:
        with handover:
            self._absent.discard(index)
            self._bring_back(index)

    # Waiting --------------------------------------------------------------------------------------

    def _wait_until(self, is_met: Callable[[], bool], what: str) -> None:
        if is_met():
            return
        actor = self._stage.playing
        if actor is not None:
            self._waiting.append(_Waiter(actor, is_met))
            self._unlocked(self._stage.stand_still)
            return
        while not is_met():
            self._carry_out(self.session.dispatch.expire(self.now()))
            if not self._unlocked(self._happen):
                absent = [f"worker:{index}" for index in sorted(self._absent)]
                gone = f", without {', '.join(absent)}" if absent else ""
                raise WaitTimeout(
                    "What is waited for comes in virtual time, or never. Received: a wait for "
                    f"{what} at {self.now():g} virtual s, when nothing more is to come{gone}; "
                    f"{self.session.dispatch.explain(self.now())}."
                )

    def _unlocked(self, act: Callable[[], Any]) -> Any:
        """Calls `act` without the lock, which is held once."""
        handover.release()
        try:
            return act()
        finally:
            handover.acquire()

    def _happen(self) -> bool:
        """Lets the next thing happen: somebody's wait is over, or an event comes.

        Returns:
            Whether anything did.
        """
        for waiter in self._waiting:
            with handover:
                is_met = waiter.is_met()
            if is_met:
                self._waiting.remove(waiter)
                self._stage.go_on(waiter.actor, "a worker that waits")
                return True
        if len(self.clock) <= self._num_background and not self._asleep:
            return False
        return self.clock.step()
