"""The driver of `Simulated`: the code of workers runs in turn, and time is virtual.

Time passes between a pull and its push, on the way to the servers and back, and where nothing is
left to do before. The gradients are under way from the pull on, while other events happen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from paceline.cluster.instructions import Interrupt
from paceline.cluster.staged import Staged
from paceline.cluster.trace import Kind
from paceline.program import context
from paceline.program.handover import handover
from paceline.virtual.clock import Clock
from paceline.virtual.network import Links

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.cluster.exchange import Outcome
    from paceline.cluster.session import Session
    from paceline.cluster.simulated import Simulated
    from paceline.cluster.stage import Actor
    from paceline.cluster.work import Work
    from paceline.cluster.worker import Worker
    from paceline.pace import Pace
    from paceline.store.store import Push, Snapshot
    from paceline.virtual.faults import Loss


class _Lane:
    """What one worker draws and has drawn, through all its incarnations."""

    def __init__(self, cluster: Simulated, index: int) -> None:
        def generator(purpose: int) -> np.random.Generator:
            return np.random.default_rng([cluster.seed, index, purpose])

        self.seconds = cluster.compute.sampler(generator(0), index, cluster.workers)
        self.lives = generator(1)
        self.num_steps = 0
        self.has_stepped = False  # since its work began
        self.arrived = 0.0  # when its last snapshot did


class SimulatedDriver(Staged):
    """Lets events happen in the order of virtual time, whenever the coordinator waits.

    Args:
        cluster: the configuration.
        session: the machines.
    """

    counts_bytes = True
    computes_ahead = True

    def __init__(self, cluster: Simulated, session: Session) -> None:
        self.clock = Clock()
        super().__init__(cluster, session)
        self._pulls = Links(cluster.network, cluster.servers)
        self._pushes = Links(cluster.network, cluster.servers)
        self._lanes = [_Lane(cluster, index) for index in range(cluster.workers)]
        self._losses = cluster.faults.in_steps()
        self._idle: dict[Worker, None] = {}  # those that look for work when the bell rings
        self._parked: dict[Worker, None] = {}  # idle ones that may not start before `_barrier` goes
        self._barrier: Any = None
        self._unsettled: dict[Worker, None] = {}  # idle ones that look though there is no work
        self._asleep: dict[Worker, tuple[Actor, object]] = {}
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

    def submit(
        self, call: Callable[[Any], Any], name: str, *, worker: int | None = None, **options: Any
    ) -> Work:
        if worker is not None:  # what only one may do it does whatever its pace
            with handover:
                self._settle()
        return super().submit(call, name, worker=worker, **options)

    def set_pace(self, pace: Pace) -> None:
        with handover:
            self._settle()
            super().set_pace(pace)

    def release(self) -> None:
        with handover:
            self._settle()
            super().release()

    def _close(self) -> None:
        if not self._is_closing:
            self._settle()
        super()._close()

    # For workers ----------------------------------------------------------------------------------

    def pull(self, worker: Worker, keys: Sequence[Any], keeps_pace: bool) -> Snapshot:
        """A snapshot, at the time at which the servers gave it."""
        latency = self._cluster.network.latency
        if latency:
            self._sleep(worker, self.now() + latency)
        snapshot = super().pull(worker, keys, keeps_pace)
        traffic = worker.step.traffic if worker.step is not None else None
        arrived = self._pulls.send(self.now(), traffic.pulled if traffic else ())
        self._lanes[worker.index].arrived = arrived
        return snapshot

    def compute(self, worker: Worker) -> None:
        """Lets the time pass until `worker` has its snapshot and has computed on it."""
        self._compute(worker, self._lanes[worker.index].arrived)

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
        with handover:
            asked_at = self._at(Kind.ASK, worker)
        self._compute(worker, asked_at)
        return self._apply(worker, update, is_whole, asked_at)

    def _spend(self, worker: Worker) -> None:
        if not self._lanes[worker.index].has_stepped:
            self._compute(worker, self.now())

    def _compute(self, worker: Worker, since: float) -> None:
        """Lets the time of a step pass."""
        lane = self._lanes[worker.index]
        seconds, loss = lane.seconds(), self._losses.pop((worker.index, lane.num_steps), None)
        lane.num_steps += 1
        lane.has_stepped = True
        if loss is not None:
            self.clock.at(since + seconds / 2, self._lose, loss, worker)
        self._sleep(worker, since + seconds)

    def _sleep(self, worker: Worker, until: float) -> None:
        """Stands still until a time, or until what the worker runs is called off."""
        actor, token = self._stage.here, object()
        if actor is None:
            raise RuntimeError("only a worker's code spends virtual time")
        self._asleep[worker] = actor, token
        self.clock.at(until, self._rouse, worker, token)
        self._stage.stand_still()
        with handover:
            self._check(worker)

    def _rouse(self, worker: Worker, token: object = None) -> None:
        """Lets a worker that sleeps go on; the alarm of an earlier sleep does nothing."""
        actor, current = self._asleep.get(worker, (None, None))
        if token is not None and token is not current:
            self._num_background -= 1
        elif actor is not None:
            if token is None:  # its alarm is still to come, for nobody
                self._num_background += 1
            del self._asleep[worker]
            self._stage.go_on(actor, worker.work)

    # What workers are -----------------------------------------------------------------------------

    def _start(self, index: int) -> Worker:
        worker = self._new_worker(index)
        self._idle[worker] = self._unsettled[worker] = None
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
        if self._parked and self.session.exchange.barrier != self._barrier:
            self._settle()
        unsettled, self._unsettled = self._unsettled, {}
        dispatch = self.session.dispatch
        try:
            for worker in list(self._idle):
                if not dispatch.queued:
                    break
                unsettled.pop(worker, None)
                self._look(worker)
            for worker in unsettled:
                if worker in self._idle:
                    self._look(worker)
        except BaseException:  # such as an interrupt: the others look when time goes on
            self._settle()
            raise

    def _look(self, worker: Worker) -> None:
        with handover:
            is_here = self.worker(worker.index, worker.incarnation) is worker
            work = self._next(worker) if is_here and not self._is_over else None
            if work is not None or not is_here:
                del self._idle[worker]
            elif self._is_held(worker):
                self._park(worker)
        if work is not None:
            self._stage.play(lambda: self._serve(worker, work), work)

    def _next(self, worker: Worker) -> Work | None:
        had_left = self._has_left_work
        work = super()._next(worker)
        if work is None and self._is_held(worker):  # it will be parked, and needs no other bell
            self._has_left_work = had_left
        if self._is_closing and self._parked and not self.session.dispatch.queued:
            self._settle()  # those that are held have no more to do, either
        return work

    def _is_held(self, worker: Worker) -> bool:
        """Whether its pace holds a worker, and says by its barrier until when."""
        exchange, index = self.session.exchange, worker.index
        is_member = exchange.is_member(index)
        return is_member and exchange.barrier is not None and exchange.must_wait(index)

    def _park(self, worker: Worker) -> None:
        """Has an idle worker look again only when its pace may have changed its mind."""
        barrier = self.session.exchange.barrier
        if barrier != self._barrier:
            self._settle()
            self._barrier = barrier
        del self._idle[worker]
        self._parked[worker] = None

    def _settle(self) -> None:
        """Has all idle workers look: there may be work, or nothing more for them to wait for."""
        self._idle = {**self._parked, **self._idle}
        self._parked = {}
        self._unsettled = dict(self._idle)
        self._ring()

    def _return_to_what_was_left(self) -> None:
        super()._return_to_what_was_left()
        if self._parked and self.session.exchange.barrier != self._barrier:
            self._ring()

    def _serve(self, worker: Worker, work: Work | None) -> None:
        """Runs work until there is none; called by an actor."""
        with context.working(worker), jax.default_device(worker.device):
            while work is not None:
                self._lanes[worker.index].has_stepped = False
                work = self.run(worker, work)
        with handover:
            if self._workers.get(worker.index) is not worker:
                return
            self._idle[worker] = None
            if self._is_held(worker):
                self._park(worker)
                return
            if self._is_closing and self.session.exchange.is_member(worker.index):
                self._unsettled[worker] = None  # it was not asked whether it has any more to do
                self._ring()
            self._return_to_what_was_left()

    def _is_anybody_free(self) -> bool:
        # When no live member computes, at least one of them may start: so says every pace.
        return True

    def _take_away(self, worker: Worker, instructions: Sequence[Any]) -> None:
        super()._take_away(worker, instructions)
        self._idle.pop(worker, None)
        self._parked.pop(worker, None)
        self.clock.at(self.now(), self._rouse, worker)

    def _carry_out(self, instructions: Sequence[Any]) -> None:
        super()._carry_out(instructions)
        for instruction in instructions:
            if isinstance(instruction, Interrupt):
                self.clock.at(self.now(), self._rouse, self._workers[instruction.worker])

    # Faults ---------------------------------------------------------------------------------------

    def _lose(self, loss: Loss, who: Worker | None = None) -> None:
        if loss.is_server:
            self.lose_server(loss.index, "was lost, as planned")
            return
        worker = self._workers.get(loss.index)
        if worker is not None and who in (None, worker):
            self._lose_worker(worker, "was lost, as planned", loss.back_after)

    def _preempt(self, worker: Worker, back_after: float | None) -> None:
        self._num_background -= 1
        if self._workers.get(worker.index) is worker:
            self._lose_worker(worker, "was preempted", back_after)

    def _lose_worker(self, worker: Worker, reason: str, back_after: float | None) -> None:
        index = worker.index
        with handover:
            self._at(Kind.GONE, worker)
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
            self._at(Kind.BACK, self._workers[index])

    # What comes next ------------------------------------------------------------------------------

    def _next_event(self) -> bool:
        due = self.session.dispatch.ledger.next_deadline()
        if due is not None and due < self.clock.next_time:
            self._num_background += 1
            self.clock.at(due, self._take_back)
        if due is None and not self._asleep and len(self.clock) <= self._num_background:
            return False
        return self.clock.step()

    def _take_back(self) -> None:
        """Takes back what somebody has had for too long."""
        self._num_background -= 1
        with handover:
            self._expire(self.now())
