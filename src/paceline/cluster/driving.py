"""What every driver does whose workers are in this process: it feeds the machines of a session.

How time passes, how workers run and how one waits is left to the drivers of `Local` (threads, real
time), `Simulated` (virtual time) and `Replay` (a recorded order).
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from paceline.cluster.noting import text_mark
from paceline.cluster.staffing import Staffing
from paceline.cluster.trace import Kind
from paceline.cluster.work import Work
from paceline.cluster.worker import Worker
from paceline.errors import ContextError, Unavailable, WorkerLost
from paceline.program import context
from paceline.program.handover import handover

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.cluster.base import Cluster
    from paceline.cluster.exchange import Outcome
    from paceline.cluster.session import Session
    from paceline.pace import Pace
    from paceline.store.store import Push, Snapshot


class Driving(Staffing):
    """Feeds the machines of one strategy.

    One lock guards the machines and what variables hold; a worker computes outside of it.

    Args:
        cluster: the configuration.
        session: the machines.
    """

    def __init__(self, cluster: Cluster, session: Session) -> None:
        super().__init__(cluster, session)
        self._resting: set[Worker] = set()
        self._is_all_in = False  # whether everybody takes part
        self._is_closing = False
        self._is_released = False
        self._is_over = False
        self._lost_server = ""
        self._num_works = 0

    @abc.abstractmethod
    def _wait_until(self, is_met: Callable[[], bool], what: str) -> None:
        """Waits for a condition, with the lock held, as long as anything moves.

        Raises:
            WaitTimeout: nothing moves any more.
        """

    # For the coordinator ----------------------------------------------------------------------

    def submit(
        self,
        call: Callable[[Any], Any],
        name: str,
        *,
        examples: int = 0,
        worker: int | None = None,
        is_repeatable: bool = True,
        is_one_push: bool = False,
        on_end: Callable[[Work], None] | None = None,
    ) -> Work:
        work = Work(call, name, is_one_push=is_one_push, on_end=on_end)
        dispatch = self.session.dispatch
        with handover:
            if self._is_over:
                raise ContextError(
                    f"The workers of this strategy were stopped. Received: {name} to run on them. "
                    "Make a new strategy."
                )
            self._at(Kind.SUBMIT, mark=text_mark(name) if self.is_traced else 0)
            self._raise_error(is_waiting=True)
            if dispatch.is_full:
                self._wait_until(lambda: not dispatch.is_full, "room in the queue")
                self._raise_error(is_waiting=True)
            if self._is_over:
                raise ContextError(
                    f"A strategy that was stopped runs nothing more. Received: {name}. Make the "
                    "strategy and its variables again."
                )
            self._open()
            work.number = self._num_works
            self._num_works += 1
            dispatch.submit(work, examples=examples, worker=worker, is_repeatable=is_repeatable)
            self._ring(for_one=worker is None and not self.session.exchange.holds_starts)
        return work

    def wait(self, work: Work, *, is_last: bool = True) -> Any:
        worker: Any = context.worker()
        with handover:
            if worker is not None and worker.driver is self:
                self._rest(worker, work)
            else:
                self._at(Kind.WAIT)
                if is_last and not work.has_ended:
                    self._close()
                self._wait_until(lambda: work.has_ended, repr(work))
        if work.error is not None:
            raise work.error
        return work.result

    def wait_until(self, is_met: Callable[[], bool], what: str) -> None:
        with handover:
            self._at(Kind.ROOM)
            self._wait_until(is_met, what)

    def join(self) -> None:
        with handover:
            self._at(Kind.JOIN)
            self._close()
            dispatch = self.session.dispatch
            self._wait_until(lambda: dispatch.is_idle, "all scheduled work")
            self.session.exchange.flush(self._at(Kind.FLUSH))
            self.session.vigil.forget()
            self._raise_error(is_waiting=False)

    def is_done(self) -> bool:
        with handover:
            self._at(Kind.DONE)
            self._close()
            self._raise_error(is_waiting=True)
            return self.session.dispatch.is_idle

    def lose(self, worker: int, reason: str = "was lost") -> None:
        with handover:
            self._at(Kind.LOSE, mark=worker + 1)
            lost = self._workers.get(worker)
            if lost is not None:
                self._replace(lost, self.session.dispatch.lost(worker, lost.incarnation, reason))

    def lose_server(self, server: int, reason: str = "was lost") -> None:
        with handover:
            self._at(Kind.LOSE_SERVER)
            self._lost_server = self._lost_server or (
                "Training needs all servers, and what one held is gone with it. Received: "
                f"ps:{server} {reason}. Make the strategy and the model again and restore a "
                "checkpoint."
            )
            self._carry_out(self.session.dispatch.cancel(self._lost_server))

    def set_pace(self, pace: Pace) -> None:
        with handover:
            now = self._at(Kind.PACE, mark=text_mark(repr(pace)))
            self.session.exchange.set_pace(pace, now)
            self._note_progress(now)

    def release(self) -> None:
        with handover:
            self._at(Kind.RELEASE)
            self._is_released = self._is_closing = True
            self._is_all_in = False
            self._ring()

    def stop(self) -> None:
        with handover:
            if not self._is_over:
                self._note_stop()
            self._carry_out(self.session.dispatch.cancel("The strategy was stopped."))
            self._is_over = True
            self._ring()
            self._wake()

    # For workers ------------------------------------------------------------------------------

    def pull(self, worker: Worker, keys: Sequence[Any], keeps_pace: bool) -> Snapshot:
        """A snapshot for `worker`, when its pace allows one."""
        with handover:
            now = self._at(Kind.PULL, worker)
            self._check(worker)
            exchange = self.session.exchange
            if not keeps_pace:
                return exchange.store.pull(keys)
            exchange.ask(worker.index, now)
            if not (permission := exchange.may_pull(worker.index)).is_granted:
                self._wait_until(
                    lambda: self._is_called_off(worker) or not exchange.must_wait(worker.index),
                    f"worker:{worker.index} to be allowed to start: {permission.reason}",
                )
                now = self._at(Kind.PULLED, worker)
                self._check(worker)
            return exchange.pull(worker.index, keys, now)

    def compute(self, worker: Worker) -> None:
        """Called when what `worker` computes is under way: lets the time pass that it takes."""

    def push(self, worker: Worker, push: Push, keeps_pace: bool) -> Outcome:
        """Hands over what `worker` has computed."""
        with handover:
            now = self._at(Kind.PUSH, worker)
            self._check(worker)
            exchange = self.session.exchange
            dispatch, work = self.session.dispatch, worker.work
            if work is not None and work.is_one_push:
                is_ours = dispatch.pushed(worker.index, worker.incarnation, work)
                if not is_ours:  # its deadline has passed, and another worker has it
                    return exchange.refuse(push, "The work was taken back meanwhile.", now)
            outcome = exchange.push(push, now) if keeps_pace else exchange.write(push, now)
            worker.dropped = outcome.reason if outcome.kind == "dropped" else ""
            self._note_progress(now)
            return outcome

    def apply(self, worker: Worker, update: Callable[[], Any], is_whole: bool) -> Any:
        """Carries out an update of code that is not compiled, as one unit."""
        with handover:
            asked_at = self._at(Kind.ASK, worker)
        return self._apply(worker, update, is_whole, asked_at)

    def _apply(
        self, worker: Worker, update: Callable[[], Any], is_whole: bool, asked_at: float
    ) -> Any:
        with handover:
            self._at(Kind.APPLY, worker)
            self._check(worker)
            exchange, version = self.session.exchange, self.session.exchange.store.version
            began, read = worker.since, worker.read_version
            if is_whole:
                began, read = asked_at, version
            work = worker.work
            if work is not None and work.is_one_push:
                self.session.dispatch.pushed(worker.index, worker.incarnation, work)
            result = exchange.run(update, read)
            now = self._at(Kind.APPLIED, worker)
            exchange.note_run(worker.index, read, version, now - began, now)
            worker.since, worker.read_version = now, version + 1
            self._note_progress(now)
            return result

    def check(self, worker: Worker) -> None:
        """Raises if what `worker` runs was called off, or it was replaced."""
        # A thread that traces comes here with the lock of traces: who has this one may want that.
        if self.is_traced:
            with handover:
                self._at(Kind.TOUCH, worker)
        self._check(worker)

    # For the threads --------------------------------------------------------------------------

    def take(self, worker: Worker) -> Work | None:
        """The next work of `worker`, which is let go if it is to be; called with the lock held."""
        now = self.now()
        if self._recording is None:
            return self._find_work(worker, now)
        before, version = self._standing_of(worker), self.session.exchange.store.version
        work = self._find_work(worker, now)
        if work is not None:
            self._note(Kind.TAKE, worker, work, version, now)
        elif self._standing_of(worker) != before:
            self._note(Kind.LOOK, worker, None, version, now)
        return work

    def _find_work(self, worker: Worker, now: float) -> Work | None:
        exchange = self.session.exchange
        if (worker.dropped or exchange.holds_starts) and self._is_for_others(worker, now):
            self._has_left_work = True
            return None
        work = self.session.dispatch.take(worker.index, worker.incarnation, now)
        if work is not None:
            if not exchange.is_member(worker.index):  # work that came back after the last submit
                exchange.join(worker.index)
            worker.begin(work, exchange.store.version, now)
            self._return_to_what_was_left()
        elif self._is_closing and exchange.is_member(worker.index):
            exchange.finish(worker.index, now)
            self._return_to_what_was_left()
            self._wake()
        if work is None and self._is_released:
            del self._workers[worker.index]
            self.session.dispatch.lost(worker.index, worker.incarnation, "was let go")
        return work

    def _standing_of(self, worker: Worker) -> tuple[bool, ...]:
        """What a look for work may change where there is none."""
        exchange, index = self.session.exchange, worker.index
        is_here = self._workers.get(index) is worker
        return bool(worker.dropped), exchange.is_member(index), exchange.has_asked(index), is_here

    def run(self, worker: Worker, work: Work) -> Work | None:
        """Runs `work` on `worker`, in whose thread this is; returns its next work."""
        result, error = None, None
        try:
            result = work.run(worker)
            if self.is_traced and worker.step is None:  # else what was pushed is marked
                worker.mark(result)
            self._spend(worker)
        except BaseException as raised:
            error = raised
        with handover:
            self._report(worker, work, result, error, self._at(Kind.END, worker, work))
            error = None  # its traceback refers to this frame
            is_here = self.worker(worker.index, worker.incarnation) is worker
            # A second look for work would take what the first one left to others.
            if worker.dropped or self._is_over or not is_here:
                return None
            return self._next(worker)

    def _next(self, worker: Worker) -> Work | None:
        """What a worker does next, when it has just reported."""
        return self.take(worker)

    def _spend(self, worker: Worker) -> None:
        """Lets the time pass that work takes which has not made a step."""

    def _report(
        self, worker: Worker, work: Work, result: Any, error: BaseException | None, now: float
    ) -> None:
        dispatch, index, incarnation = self.session.dispatch, worker.index, worker.incarnation
        is_replaced = self._workers.get(index) is not worker
        if isinstance(error, WorkerLost) and not is_replaced:
            self._replace(worker, dispatch.lost(index, incarnation, str(error)))
        elif error is not None:
            self._carry_out(dispatch.failed(index, incarnation, work, error))
        elif worker.dropped:
            work.result = result
            self._carry_out(dispatch.dropped(index, incarnation, work, worker.dropped))
        elif dispatch.finished(index, incarnation, work):
            work.finish(result)
        if self._interrupted.get(index) is work and not is_replaced:
            del self._interrupted[index]
        worker.end()
        self._note_progress(now)

    def _is_for_others(self, worker: Worker, now: float) -> bool:
        """Whether the next work is left to a worker that may start before this one may.

        In lockstep the work of one round so goes to as many workers as there are. One that is busy
        counts, too: when it is done, it needs this work or closes the round.
        """
        exchange, was_dropped = self.session.exchange, bool(worker.dropped)
        worker.dropped = ""

        def may_start(index: int) -> bool:
            return not exchange.must_wait(index)

        is_free = may_start(worker.index) or not exchange.is_member(worker.index)
        if is_free and not was_dropped:
            return False
        ledger = self.session.dispatch.ledger
        if not ledger.waits_for(None) or ledger.waits_for(worker.index):
            return False
        if was_dropped:  # rather than let this one come late again, an idle one makes it at once
            self._ring()
            return any(
                other.work is None and (may_start(index) or not exchange.is_member(index))
                for index, other in self._workers.items()
                if other is not worker
            )
        exchange.ask(worker.index, now)  # it would start if it might
        return self._is_anybody_free()

    def _is_anybody_free(self) -> bool:
        """Whether some worker may start now."""
        exchange = self.session.exchange
        return not all(exchange.must_wait(index) for index in self._workers)

    def _expire(self, now: float) -> None:
        """Takes back the leases whose deadline has passed."""
        instructions = self.session.dispatch.expire(now)
        if instructions:
            self._note(Kind.EXPIRE, None, None, self.session.exchange.store.version, now)
            self._carry_out(instructions)

    def _open(self) -> None:
        """Work has come: everybody takes part."""
        if self._is_all_in:
            return
        self._is_closing, self._is_released, self._is_all_in = False, False, True
        exchange = self.session.exchange
        for index in range(self._cluster.workers):
            if index in self._absent:
                continue
            if index not in self._workers:
                self._workers[index] = self._start(index)
            if not exchange.is_member(index) and self._workers[index] not in self._resting:
                exchange.join(index)

    def _close(self) -> None:
        """No more work comes for now: nobody need wait for workers without any."""
        if not self._is_closing:
            self._is_closing, self._is_all_in = True, False
            self._ring()

    def _rest(self, worker: Worker, work: Work) -> None:
        """Waits on the thread of a worker, for which nobody has to wait in the meantime."""
        now = self._at(Kind.REST, worker)
        self._check(worker)
        if work.has_ended:
            return
        exchange = self.session.exchange
        self._resting.add(worker)
        exchange.finish(worker.index, now)
        self._return_to_what_was_left()
        self._wake()
        try:
            self._wait_until(lambda: work.has_ended or self._is_called_off(worker), repr(work))
        finally:
            self._at(Kind.RESUME, worker)
            self._resting.remove(worker)
            if self._workers.get(worker.index) is worker:
                exchange.join(worker.index)
        self._check(worker)

    def _new_worker(self, index: int) -> Worker:
        incarnation = self.session.dispatch.ledger.incarnation(index)
        return Worker(self, index, incarnation, self._cluster.devices[index])

    # Waiting ----------------------------------------------------------------------------------

    def _raise_error(self, *, is_waiting: bool) -> None:
        """Raises the first error of earlier work, once, when nothing of it runs any more."""
        dispatch = self.session.dispatch
        if not dispatch.is_cancelling:
            self._check_servers()
            return
        if is_waiting:
            self._wait_until(lambda: dispatch.is_idle, "the work that was called off")
        error = dispatch.take_error()
        if error is not None:
            raise error
        self._check_servers()

    def _check_servers(self) -> None:
        if self._lost_server:
            raise Unavailable(self._lost_server)
