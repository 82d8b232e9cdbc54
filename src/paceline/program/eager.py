"""Eager replicas: every replica really runs the function, as a thread, and they meet.

Only one thread runs at a time, in replica order, until it finishes or reaches a meeting; when all
have arrived, the calling thread resolves the meeting and they go on. So values are concrete, shapes
may differ between replicas, Python code runs once per replica, and the order is always the same.
This is the mode to debug in; `paceline.function` compiles the same code.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from paceline.errors import InvalidArgument, ReplicaMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MISMATCH = (
    "All replicas must reach the same meeting points: merge_call, collectives, aggregated "
    "assignments and apply_gradients. Received: {what}. Do not call them under a condition that "
    "differs between replicas."
)


class _Stopped(BaseException):
    """Ends the thread of a replica after another one failed; never seen by users."""


class _Seat:
    """One replica's thread: what it asks for, and the signals that pass control to and fro."""

    def __init__(self) -> None:
        self.resume = threading.Semaphore(0)
        self.request: tuple[str, Any] | None = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False


class Group:
    """Runs one function on every replica of a lockstep group.

    Args:
        devices: the replicas' devices, in replica order.
        merge: called in the calling thread with the arguments of `Member.merge` of every replica;
            returns one result per replica.
    """

    def __init__(self, devices: Sequence[Any], merge: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._devices = tuple(devices)
        self._merge = merge
        self._seats = [_Seat() for _ in devices]
        self._arrived = threading.Semaphore(0)
        self._is_stopping = False
        self.created: list[tuple[str | None, Any]] = []

    def run(self, call: Callable[[Member], Any]) -> list[Any]:
        """Calls `call(member)` on every replica and returns the results in replica order.

        Raises:
            ReplicaMismatch: the replicas reached different meetings.
            BaseException: whatever a replica raised; the other replicas are stopped.
        """
        threads = []
        for index in range(len(self._seats)):
            member = Member(self, index)
            name = f"paceline-replica-{index}"
            # Joined below, before run returns.
            thread = threading.Thread(target=self._live, args=(member, call), name=name)
            thread.start()
            threads.append(thread)
        try:
            while not all(seat.is_done for seat in self._seats):
                self._advance_all()
                self._resolve()
        finally:
            self._stop()
            for thread in threads:
                thread.join()
        return [seat.result for seat in self._seats]

    def _live(self, member: Member, call: Callable[[Member], Any]) -> None:
        seat = self._seats[member.index]
        seat.resume.acquire()
        try:
            if not self._is_stopping:
                with jax.default_device(self._devices[member.index]):
                    seat.result = call(member)
        except BaseException as error:  # handed to the calling thread, which raises it
            seat.error = error
        seat.is_done = True
        self._arrived.release()

    def _advance_all(self) -> None:
        for seat in self._seats:
            if seat.is_done:
                continue
            seat.resume.release()
            self._arrived.acquire()
            if seat.error is not None:
                raise seat.error

    def _stop(self) -> None:
        self._is_stopping = True
        for seat in self._seats:
            if not seat.is_done:
                seat.resume.release()
                self._arrived.acquire()

    def _resolve(self) -> None:
        kinds = {seat.request[0] if seat.request else "the end" for seat in self._seats}
        if kinds == {"the end"}:
            return
        if len(kinds) > 1:
            names = ", ".join(
                f"replica {i} at {seat.request[0] if seat.request else 'its end'}"
                for i, seat in enumerate(self._seats)
            )
            raise ReplicaMismatch(
                _MISMATCH.format(what=f"a different number of merge_call or collectives ({names})")
            )
        payloads = [seat.request[1] for seat in self._seats if seat.request]
        answers = getattr(self, f"_{kinds.pop()}")(payloads)
        for seat, answer in zip(self._seats, answers, strict=True):
            seat.request, seat.answer = None, answer

    def ask(self, index: int, kind: str, payload: Any) -> Any:
        """Called by a replica: waits for the others and returns this replica's answer."""
        seat = self._seats[index]
        seat.request = (kind, payload)
        self._arrived.release()
        seat.resume.acquire()
        if self._is_stopping:
            raise _Stopped
        return seat.answer

    def _merge_call(self, payloads: list[Any]) -> Sequence[Any]:
        return self._merge(payloads)

    def _exchange(self, payloads: list[Any]) -> list[Any]:
        return [payloads] * len(payloads)

    def _sum(self, payloads: list[Any]) -> list[Any]:
        shapes = {value.shape for value in payloads}
        if len(shapes) > 1:
            raise InvalidArgument(
                "Values that are combined over replicas must have one shape. Received: shapes "
                f"{[tuple(value.shape) for value in payloads]}. Use all_gather for values of "
                "different lengths."
            )
        total = jax.device_put(payloads[0], self._devices[0])
        for value in payloads[1:]:
            total = total + jax.device_put(value, self._devices[0])
        return self._to_all(total)

    def _concatenate(self, payloads: list[Any]) -> list[Any]:
        axis = payloads[0][1]
        parts = [jax.device_put(value, self._devices[0]) for value, _ in payloads]
        return self._to_all(jnp.concatenate(parts, axis=axis))

    def _to_all(self, value: Any) -> list[Any]:
        return [jax.device_put(value, device) for device in self._devices]


def _unnumbered(name: str | None) -> str | None:
    """A variable's name without the number that makes it unique: foo_0 and foo_1 are one."""
    return None if name is None else re.sub(r"_\d+$", "", name)


class Member:
    """One replica's side of a `Group`.

    Attributes:
        index: the replica's index.
    """

    def __init__(self, group: Group, index: int) -> None:
        self._group = group
        self._num_created = 0
        self.index = index

    def sum(self, value: Any) -> Any:
        """The sum of the replicas' values, on this replica's device."""
        return self._group.ask(self.index, "sum", value)

    def concatenate(self, value: Any, axis: int) -> Any:
        """The replicas' values one after the other along `axis`."""
        return self._group.ask(self.index, "concatenate", (value, axis))

    def exchange(self, value: Any) -> list[Any]:
        """Every replica's Python object, in replica order."""
        return self._group.ask(self.index, "exchange", value)

    def merge(self, payload: Any) -> Any:
        """Hands `payload` to the group's merge function and returns this replica's part."""
        return self._group.ask(self.index, "merge_call", payload)

    def created_once(self, name: str | None, make: Callable[[], Any]) -> Any:
        """The n-th object that a replica creates is one object, made by the first replica there."""
        created, place = self._group.created, self._num_created
        self._num_created += 1
        if place == len(created):
            created.append((name, make()))
        elif _unnumbered(created[place][0]) != _unnumbered(name):
            raise ReplicaMismatch(
                "Replicas must create the same variables in the same order. Received: "
                f"{created[place][0]!r} on replica 0 and {name!r} on replica {self.index}."
            )
        return created[place][1]
