"""What the coordinator's queue tells its driver: the instructions of `Dispatch`."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class Cancelled(Generic[T]):
    """The item ends cancelled; `was_started`: it may have taken effect in part."""

    item: T
    was_started: bool
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Interrupt(Generic[T]):
    """The worker should stop running the item: whatever comes of it is discarded."""

    worker: int
    item: T
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Requeued(Generic[T]):
    """The item is back at the front of the queue; it has not ended."""

    item: T
    worker: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Failed(Generic[T]):
    """The item ends with this error."""

    item: T
    worker: int
    error: BaseException


@dataclasses.dataclass(frozen=True, slots=True)
class Dropped(Generic[T]):
    """The item ends as finished, but its push was dropped and its examples are not counted."""

    item: T
    worker: int
    reason: str


Instruction: TypeAlias = Cancelled[T] | Interrupt[T] | Requeued[T] | Failed[T] | Dropped[T]
