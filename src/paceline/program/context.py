"""Where the code runs: the one ambient state of Paceline, a stack of frames per thread.

A frame says which strategy is current and whether the code below it runs across replicas, inside
one replica, or on the component of one variable. The stack is thread-local, so replicas that run
as threads do not see each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Replica(Protocol):
    """What the program layer knows of a replica context (strategies.ReplicaContext)."""

    @property
    def strategy(self) -> Any: ...
    @property
    def num_replicas_in_sync(self) -> int: ...
    @property
    def replica_id_in_sync_group(self) -> Any: ...
    @property
    def group(self) -> Any: ...
    @property
    def example_sizes(self) -> tuple[int, ...] | None: ...
    @property
    def local_examples(self) -> int | None: ...
    @property
    def global_examples(self) -> int | None: ...
    @property
    def share(self) -> float: ...
    @property
    def loss_rule(self) -> Literal["sum", "mean"]: ...


class Worker(Protocol):
    """What the program layer knows of a worker of the message path (cluster.Worker)."""

    @property
    def index(self) -> int: ...
    def execute(self, function: Any, args: Any, kwargs: Any) -> Any: ...
    def apply(self, update: Callable[[], Any]) -> Any: ...
    def check(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Frame:
    """One entry of the stack.

    Attributes:
        strategy: the current strategy.
        replica: the replica the code runs in, or None across replicas.
        component: index of the variable component an update function works on, or None.
        is_global: the frame was set by `experimental_set_strategy`, not by a `with` block.
    """

    strategy: Any
    replica: Replica | None = None
    component: int | None = None
    is_global: bool = False


class _State(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.applying = 0
        self.met: list[Any] | None = None
        self.worker: Worker | None = None


_state = _State()


def current() -> Frame | None:
    """The innermost frame of this thread, or None in the default state."""
    return _state.frames[-1] if _state.frames else None


def frames() -> tuple[Frame, ...]:
    """All frames of this thread, outermost first."""
    return tuple(_state.frames)


def component() -> int | None:
    """Index of the variable component that an update function works on, or None."""
    return _state.frames[-1].component if _state.frames else None


def own_component() -> int | None:
    """Index of the component that this code sees of a variable with several, or None for all.

    That is the one an update function works on, or the one of the worker whose thread this is.
    """
    index = component()
    return _state.worker.index if index is None and _state.worker is not None else index


def replica_context() -> Replica | None:
    """The replica that the code runs in, or None across replicas and in the default state."""
    return _state.frames[-1].replica if _state.frames else None


def worker() -> Worker | None:
    """The worker of the message path whose thread this is, or None."""
    return _state.worker


@contextlib.contextmanager
def working(worker: Worker) -> Iterator[None]:
    """Makes this thread that of `worker` for the block."""
    outer, _state.worker = _state.worker, worker
    try:
        yield
    finally:
        _state.worker = outer


@contextlib.contextmanager
def entered(frame: Frame) -> Iterator[Frame]:
    """Makes `frame` the innermost one for the block, whatever happens inside."""
    depth = len(_state.frames)
    _state.frames.append(frame)
    try:
        yield frame
    finally:
        del _state.frames[depth:]


def set_global(frame: Frame | None) -> None:
    """Replaces the stack with one global frame, or with nothing."""
    _state.frames[:] = [] if frame is None else [frame]


@contextlib.contextmanager
def inherited(outer: tuple[Frame, ...]) -> Iterator[None]:
    """Gives a new thread the frames of the one that started it."""
    previous, _state.frames = _state.frames, list(outer)
    try:
        yield
    finally:
        _state.frames = previous


@contextlib.contextmanager
def applying() -> Iterator[None]:
    """Marks the part of an optimizer after `commit`: values are global there, writes are direct."""
    _state.applying += 1
    try:
        yield
    finally:
        _state.applying -= 1


@contextlib.contextmanager
def collecting_met() -> Iterator[list[Any]]:
    """Collects the variables whose writes in the block have already met over the replicas."""
    outer, _state.met = _state.met, []
    try:
        yield _state.met
    finally:
        _state.met = outer


def note_met(variable: Any) -> None:
    """Says that a write of `variable` has met: what it now is in its scope, it is everywhere."""
    if _state.met is not None:
        _state.met.append(variable)


def is_applying() -> bool:
    """Whether the code runs inside `applying()`."""
    return _state.applying > 0


def writes_are_direct() -> bool:
    """Whether an assignment acts on the component at hand, without aggregation."""
    return is_applying() or component() is not None
