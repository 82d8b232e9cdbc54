"""The record of a run: in which order its workers met the machines. A file that grows by events.

    paceline trace\\n
    frame: length (2 bytes), CRC-32 (4 bytes), payload       the header, as JSON
    frame ...                                                one event each, 29 bytes of payload

Every event is written at once, so a file can be read while it grows, and after a crash up to its
last whole event. Until the file is closed there are zeros after that. Numbers are little-endian.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import json
import os
import struct
import sys
import weakref
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.cluster.pages import Pages
from paceline.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FORMAT = 2
_MAGIC = b"paceline trace\n"
_FRAME = struct.Struct("<HI")
_EVENT = struct.Struct("<BHHIIIId")
_LIBRARIES = ("paceline", "jax", "jaxlib", "keras", "numpy")
_SAMPLES = 64  # of an array, about


class Kind(enum.IntEnum):
    """What happened. The kinds of each group are told apart by who lets them happen."""

    # The coordinator's program
    SUBMIT = 1
    WAIT = 2
    ROOM = 3
    JOIN = 4
    FLUSH = 5
    DONE = 6
    PACE = 7
    LOSE = 8
    LOSE_SERVER = 9
    ACCESS = 10
    STOP = 11
    TIMEOUT = 12
    # The code of workers
    PULL = 20
    PULLED = 21
    PUSH = 22
    APPLY = 23
    TOUCH = 24
    REST = 25
    RESUME = 26
    END = 27
    ASK = 28
    APPLIED = 29
    TRACE = 30
    ACT = 31
    LATE = 32
    # The driver itself
    TAKE = 40
    LOOK = 41
    EXPIRE = 42
    ABANDON = 43
    GONE = 44
    BACK = 45
    RELEASE = 46

    @property
    def is_coordinators(self) -> bool:
        """Whether the coordinator's program does it."""
        return self < Kind.PULL

    @property
    def is_workers(self) -> bool:
        """Whether a worker's code does it."""
        return Kind.PULL <= self < Kind.TAKE


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Attributes:
        kind: what happened.
        worker, incarnation: whose it is, where it is a worker's.
        work: the number of the work, from 0; -1: none.
        version: the store's version before it.
        program: fingerprint of the step that a worker pulls for, or of what the coordinator's
            program asks for; 0: none.
        data: fingerprint of the step's batch, or of what it pushes or returns; 0: none.
        time: seconds by the driver's clock.
    """

    kind: Kind
    worker: int = 0
    incarnation: int = 0
    work: int = -1
    version: int = 0
    program: int = 0
    data: int = 0
    time: float = 0.0

    def as_text(self) -> str:
        """The event as a line."""
        kind = self.kind.name.lower()
        words = [f"{self.time:14.6f} s", f"version {self.version:<6}", f"{kind:11}"]
        if not self.kind.is_coordinators and self.kind not in (Kind.EXPIRE, Kind.RELEASE):
            words.append(f"worker:{self.worker}")
            if self.incarnation:
                words.append(f"(incarnation {self.incarnation})")
        if self.work >= 0:
            words.append(f"work {self.work}")
        if self.program:
            words.append(f"program {self.program:08x}")
        if self.data:
            words.append(f"data {self.data:08x}")
        return "  ".join(words)


class TraceWriter:
    """Writes a trace, each event at once.

    Args:
        path: the file; one that exists is replaced.
        header: what the run is, as JSON has it.

    Attributes:
        close: closes the file, when it is called or the writer is dropped.
    """

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        if os.path.isfile(path):
            os.remove(path)  # whoever still writes to it must not write into the new one
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        self._pages = Pages(os.open(path, flags, 0o666))
        self.close = weakref.finalize(self, self._pages.close)
        payload = json.dumps(header, sort_keys=True).encode()
        self._pages.append(_MAGIC + _framed(payload))

    def write(
        self, kind: Kind, worker: int, incarnation: int, work: int, version: int, program: int,
        data: int, time: float,
    ) -> None:  # fmt: skip
        """Appends an event."""
        payload = _EVENT.pack(
            kind, worker, incarnation, work & 0xFFFFFFFF, version, program, data, time
        )
        self._pages.append(_framed(payload))


def _framed(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class Trace:
    """A trace that was read.

    Args:
        path: the file.

    Attributes:
        path: as given.
        header: what the run was.
        events: all whole events.
        is_whole: whether the file was closed and ends with a whole event; else it was cut off, as
            by a crash, or is being written.

    Raises:
        ReplayError: no trace, one of another format, or a damaged one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise ReplayError(f"A trace is a file. Received: {str(path)!r}.") from error
        if not content.startswith(_MAGIC):
            raise ReplayError(
                f"A trace begins with {_MAGIC!r}. Received: {str(path)!r}, which begins with "
                f"{content[: len(_MAGIC)]!r}."
            )
        frames = self._frames(content)
        self.is_whole = True
        header = next(frames, None)
        if header is None:
            raise ReplayError(f"A trace has a header. Received: {str(path)!r} without a whole one.")
        self.header: dict[str, Any] = json.loads(header)
        if self.header.get("format") != FORMAT:
            raise ReplayError(
                f"This version reads traces of format {FORMAT}. Received: {str(path)!r} of format "
                f"{self.header.get('format')!r}."
            )
        self.events = [_event(payload) for payload in frames]

    def _frames(self, content: bytes) -> Iterator[bytes]:
        at, number = len(_MAGIC), 0
        while at < len(content):
            head = content[at : at + _FRAME.size]
            is_cut = len(head) < _FRAME.size
            length, checksum = (len(content), 0) if is_cut else _FRAME.unpack(head)
            end = at + _FRAME.size + length
            payload = content[at + _FRAME.size : end]
            if len(payload) < length or not length:
                self.is_whole = False
                return
            if zlib.crc32(payload) != checksum:
                if end < len(content) and not content[end:].strip(b"\0"):  # the last one, torn
                    self.is_whole = False
                    return
                what = f"event {number - 1}" if number else "the header"
                raise ReplayError(
                    f"The bytes of a trace agree with their checksums. Received: {str(self.path)!r}"
                    f", damaged at byte {at}, in {what}. Take a whole copy."
                )
            yield payload
            at = end
            number += 1


@dataclasses.dataclass(frozen=True)
class Parting:
    """Where two traces part.

    Attributes:
        index: the number of the first event that differs, from 0; None: the headers differ.
        text: what differs, as a sentence.
    """

    index: int | None
    text: str


def first_difference(one: Trace, other: Trace) -> Parting | None:
    """Compares two traces, except for times. None: they are alike."""
    for key in sorted((one.header.keys() | other.header.keys()) - {"created"}):
        if one.header.get(key) != other.header.get(key):
            values = f"{one.header.get(key)!r} and {other.header.get(key)!r}"
            return Parting(None, f"The runs differ in {key}: {values}.")
    for index, (first, second) in enumerate(zip(one.events, other.events, strict=False)):
        if dataclasses.replace(first, time=0) != dataclasses.replace(second, time=0):
            return Parting(
                index,
                f"The runs part at event {index}:\n  {first.as_text()}\n  {second.as_text()}",
            )
    lengths = len(one.events), len(other.events)
    if lengths[0] != lengths[1]:
        fewer = min(lengths)
        return Parting(fewer, f"One run ends after {fewer} events, the other goes on.")
    return None


def header_of(cluster: Any, pace: Any, rule: Any, merge: Any) -> dict[str, Any]:
    """What a run is, for the header of its trace."""
    return {
        "format": FORMAT,
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "python": ".".join(map(str, sys.version_info[:3])),
        "platform": cluster.server_device().platform,
        "workers": cluster.workers,
        "servers": cluster.servers,
        "pace": repr(pace),
        "update_rule": repr(rule),
        "merge": merge,
        "lease_deadline": cluster.lease_deadline,
        "cluster": repr(cluster),
    }


def fingerprint_of(arrays: Sequence[Any]) -> int:
    """A number that nearly always differs when the arrays do: of a few elements of each.

    Forms do not count: they belong to the program of a step, which has a fingerprint of its own;
    nor do typed keys, which are no numbers.
    """
    checksum = 0
    for array in arrays:
        if not isinstance(array.dtype, np.dtype):
            continue
        flat = np.asarray(array).reshape(-1)
        # An odd stride meets all columns of rows with an even length.
        stride = flat.size // _SAMPLES | 1
        checksum = zlib.crc32(flat[::stride].tobytes(), checksum)
    return checksum or 1


def _event(payload: bytes) -> Event:
    kind, worker, incarnation, work, version, program, data, time = _EVENT.unpack(payload)
    work = -1 if work == 0xFFFFFFFF else work
    return Event(Kind(kind), worker, incarnation, work, version, program, data, time)
