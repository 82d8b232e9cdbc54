"""The versioned store: named arrays, and the updates that were applied to them.

A pure machine. Arrays are immutable, so a snapshot is a tuple of references: consistent, free and
never torn. Every applied update makes the version grow by one. What an update computes is its own
matter; that it happens once, on the current values, whole or not at all, is the store's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, MutableMapping, Sequence


class Update(Protocol):
    """What a push carries: new values computed from current ones."""

    @property
    def reads(self) -> Sequence[Hashable]:
        """Keys of the current values that it takes."""
        ...

    @property
    def writes(self) -> Sequence[Hashable]:
        """Keys that it gives new values."""
        ...

    def __call__(self, current: Sequence[Any], staleness: int) -> Sequence[Any]:
        """New values of `writes`, from those of `reads`."""
        ...


@dataclasses.dataclass(frozen=True)
class Assign:
    """Sets one array: of updates that overlap the last one wins."""

    key: Hashable
    value: Any

    @property
    def reads(self) -> tuple[Hashable, ...]:
        """Nothing."""
        return ()

    @property
    def writes(self) -> tuple[Hashable, ...]:
        """The one key."""
        return (self.key,)

    def __call__(self, current: Sequence[Any], staleness: int) -> tuple[Any]:
        """The value."""
        return (self.value,)


@dataclasses.dataclass(frozen=True)
class AssignAdd:
    """Adds to one array: updates that overlap all count."""

    key: Hashable
    delta: Any

    @property
    def reads(self) -> tuple[Hashable, ...]:
        """The one key."""
        return (self.key,)

    writes = reads

    def __call__(self, current: Sequence[Any], staleness: int) -> tuple[Any]:
        """The sum."""
        return (current[0] + self.delta,)


@dataclasses.dataclass(slots=True)
class Snapshot:
    """What a worker pulled.

    Attributes:
        version: number of updates applied when it was taken.
        values: arrays, in the order of the keys asked for.
    """

    version: int
    values: tuple[Any, ...]


@dataclasses.dataclass(slots=True)
class Push:
    """An update on its way to the store.

    Attributes:
        worker: index of the worker.
        incarnation: how often that worker was replaced; pushes of an older one are refused.
        sequence: number of the push, growing per worker and incarnation; a repeated one counts
            once.
        read_version: version of the snapshot that the update was computed from.
        update: what to do.
        lease: the work that it is the result of, or None.
        examples: examples behind it.
    """

    worker: int
    incarnation: int
    sequence: int
    read_version: int
    update: Update
    lease: Any = None
    examples: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a push must not be applied.

    Attributes:
        reason: in words.
        is_repetition: it came before, and what became of it then holds.
    """

    reason: str
    is_repetition: bool


class Store:
    """Named arrays and a version. Events in, values out; no thread, no clock.

    Args:
        arrays: the arrays by key; the store writes into this mapping.
    """

    def __init__(self, arrays: MutableMapping[Any, Any]) -> None:
        self._arrays = arrays
        self._version = 0
        self._incarnations: dict[int, int] = {}
        self._sequences: dict[int, int] = {}

    @property
    def version(self) -> int:
        """How many updates were applied."""
        return self._version

    def pull(self, keys: Sequence[Hashable]) -> Snapshot:
        """A consistent snapshot of the arrays `keys`."""
        return Snapshot(self._version, tuple(map(self._arrays.__getitem__, keys)))

    def expect(self, worker: int, incarnation: int) -> None:
        """Notes that `worker` was replaced: pushes of earlier incarnations are refused."""
        if incarnation > self._incarnations.get(worker, 0):
            self._incarnations[worker] = incarnation
            self._sequences.pop(worker, None)

    def refusal(self, push: Push) -> Refusal | None:
        """Why a push must not be applied, or None for one that was not seen before.

        A push is remembered as seen, so asking twice about the same one finds a repetition.
        """
        worker, incarnation = push.worker, push.incarnation
        current = self._incarnations.get(worker, 0)
        if incarnation < current:
            reason = f"worker:{worker} was replaced; this is its incarnation {incarnation}"
            return Refusal(reason, is_repetition=False)
        if incarnation > current:
            self.expect(worker, incarnation)
        if push.sequence <= self._sequences.get(worker, -1):
            reason = f"push {push.sequence} of worker:{worker} was received before"
            return Refusal(reason, is_repetition=True)
        self._sequences[worker] = push.sequence
        return None

    def apply(self, update: Update, read_version: int) -> int:
        """Applies an update to the current values, whole or not at all; returns its staleness."""
        staleness = self._version - read_version
        arrays = self._arrays
        new = update(list(map(arrays.__getitem__, update.reads)), staleness)
        for key, value in list(zip(update.writes, new, strict=True)):  # checked before it begins
            arrays[key] = value
        self._version += 1
        return staleness
