"""A driver on a bench: its machines, a store of one number, and a log of what happens."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

from paceline.cluster.exchange import Exchange
from paceline.cluster.session import Session
from paceline.errors import WaitTimeout
from paceline.pace import Asynchronous
from paceline.store.rules import Plain
from paceline.store.store import AssignAdd, Push, Store
from paceline.testing.gates import DEADLINE_S, Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.cluster.base import Cluster
    from paceline.cluster.records import PushRecord
    from paceline.cluster.work import Work
    from paceline.pace import Pace

    # Called with workers=, deadline= and grace= (seconds, see `Local`); returns a new cluster.
    MakeCluster = Callable[..., Cluster]

KEY = "number"
_LOGGED = ("ask", "finish", "join", "leave", "pull", "push")


class Lab:
    """One driver under test.

    Args:
        make_cluster: makes the cluster.
        workers: how many it has.
        pace: the pace; None: free-running.
        deadline, grace: seconds, see `paceline.cluster.Local`.
        capacity: how much work may be queued.
        lease_deadline: seconds after which work is taken back from a worker; None: never.

    Attributes:
        session, driver: the machines and the driver.
        records: one for each push that ended.
        groups: the workers of each update that several pushes made.
        log: `(event, worker, detail)` of what the exchange was told, in order.
    """

    def __init__(
        self,
        make_cluster: MakeCluster,
        *,
        workers: int = 2,
        pace: Pace | None = None,
        deadline: float = DEADLINE_S,
        grace: float = DEADLINE_S,
        capacity: int = 1024,
        lease_deadline: float | None = None,
    ) -> None:
        self._threads_before = set(threading.enumerate())
        self.records: list[PushRecord] = []
        self.groups: list[list[int]] = []
        self.log: list[tuple[str, int, Any]] = []
        self._numbers: dict[Any, Any] = {KEY: 0}
        self._sequences = itertools.count(1)
        self._gates: list[Gate] = []
        self._logged = threading.Condition()  # guards the log; notified when it grows
        cluster = make_cluster(workers=workers, deadline=deadline, grace=grace)
        pace = pace or Asynchronous()
        record = self.records.append
        self.session = Session(
            pace,
            Plain(),
            record,
            device=cluster.server_device(),
            capacity=capacity,
            lease_deadline=lease_deadline,
        )
        exchange = Exchange(Store(self._numbers), pace, self._sum, record)
        self.session.exchange = _Logged(exchange, self._note)  # pyright: ignore[reportAttributeAccessIssue]
        self.driver: Any = cluster.open(self.session)

    @property
    def number(self) -> int:
        """What the store holds: every step adds 1."""
        return self._numbers[KEY]

    @property
    def counted(self) -> int:
        """How many examples the ledger has counted."""
        return self.session.dispatch.ledger.counted_examples

    def gate(self, name: str = "gate", *, holds: int | None = None) -> Gate:
        """A gate that is open when the lab is left."""
        gate = Gate(name, holds=holds, driver=self.driver)
        self._gates.append(gate)
        return gate

    def submit(self, call: Callable[[Any], Any], name: str = "work", **options: Any) -> Work:
        """Queues a call."""
        return self.driver.submit(call, name, **options)

    def submit_step(self, name: str = "step", gates: Mapping[str, Gate] | None = None) -> Work:
        """Queues a step, which is one push and stands for one example; see `step`."""
        call = self.step(gates or {})
        return self.driver.submit(call, name, examples=1, is_one_push=True)

    def step(self, gates: Mapping[str, Gate]) -> Callable[[Any], str]:
        """A step that pulls, adds 1 and returns what became of its push.

        Args:
            gates: by the places "pull" (before it), "push" (between both) and "end" (after both).
        """

        def at(place: str, worker: Any) -> None:
            if place in gates:
                gates[place].wait(worker.index)

        def call(worker: Any) -> str:
            at("pull", worker)
            snapshot = worker.driver.pull(worker, [KEY], True)
            worker.driver.compute(worker)
            at("push", worker)
            push = Push(
                worker.index, worker.incarnation, next(self._sequences), snapshot.version,
                AssignAdd(KEY, 1), worker.work, 1,
            )  # fmt: skip
            outcome = worker.driver.push(worker, push, True)
            at("end", worker)
            return outcome.kind

        return call

    def until(self, is_met: Callable[[], bool], what: str) -> None:
        """Waits until something is so, looking whenever the log has grown.

        Raises:
            AssertionError: it is not so after a minute.
        """
        cause: WaitTimeout | None = None
        try:
            if self.driver.let_go_on(is_met):
                return
            with self._logged:
                if self._logged.wait_for(is_met, DEADLINE_S):
                    return
        except WaitTimeout as error:
            cause = error
        raise AssertionError(f"Expected: {what}. There was: {self.log}") from cause

    def count(self, event: str, worker: int | None = None) -> int:
        """How often the log has an event."""
        return sum(e == event and worker in (None, w) for e, w, _ in self.log)

    def new_threads(self) -> list[threading.Thread]:
        """The threads that were started since the lab was made and have not ended."""
        return [thread for thread in threading.enumerate() if thread not in self._threads_before]

    def await_threads(self) -> None:
        """Waits until every thread that was started has ended.

        Raises:
            AssertionError: some go on.
        """
        if self.driver is not None:
            self.driver.let_go_on(lambda: self.session.dispatch.is_idle)
        last = time.monotonic() + DEADLINE_S
        while (left := self.new_threads()) and time.monotonic() < last:
            gc.collect()  # a thread may have held what was dropped when the last one ran
            left[0].join(0.1)
        check(not self.new_threads(), f"no thread is left, but there are {self.new_threads()}")

    def open_gates(self) -> None:
        """Lets everybody pass."""
        for gate in self._gates:
            gate.open()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *error: object) -> None:
        self.open_gates()
        if self.driver is not None:
            self.driver.stop()

    def _note(self, event: str, worker: int, detail: Any) -> None:
        with self._logged:
            self.log.append((event, worker, detail))
            self._logged.notify_all()

    def _sum(self, group: Sequence[tuple[Push, int]]) -> AssignAdd:
        self.groups.append([push.worker for push, _ in group])
        return AssignAdd(KEY, len(group))


class _Logged:
    """An exchange whose events are noted, after they took place."""

    def __init__(self, exchange: Exchange, note: Callable[[str, int, Any], None]) -> None:
        self._exchange = exchange
        self._note = note

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._exchange, name)
        if name not in _LOGGED:
            return found

        def call(first: Any, *args: Any) -> Any:
            result = found(first, *args)
            is_push = name == "push"
            worker = first.worker if is_push else first
            detail = result.kind if is_push else getattr(result, "version", None)
            self._note(name, worker, detail)
            return result

        return call


def check(is_so: bool, what: str) -> None:
    """Checks that something is so.

    Raises:
        AssertionError: it is not.
    """
    if not is_so:
        raise AssertionError(f"Expected: {what}.")


def check_equal(actual: object, expected: object, what: str) -> None:
    """Checks that two values are equal.

    Raises:
        AssertionError: they are not.
    """
    check(actual == expected, f"{what} is {expected!r}, but it is {actual!r}")


def raised_by(call: Callable[[], object], kind: type[BaseException]) -> BaseException:
    """The error that a call raises.

    Raises:
        AssertionError: it raises none, or one of another kind.
    """
    try:
        result = call()
    except kind as error:
        return error
    except BaseException as error:
        raise AssertionError(f"Expected: {kind.__name__}, but there was {error!r}.") from error
    raise AssertionError(f"Expected: {kind.__name__}, but the call returned {result!r}.")
