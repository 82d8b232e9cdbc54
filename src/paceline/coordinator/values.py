"""Values that every worker has one of, made on the worker when it first uses its own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from paceline.cluster.arguments import Deferred
from paceline.errors import Cancelled, ClosureInputError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """What came of making a worker's value."""

    incarnation: int
    value: Any = None
    error: Exception | None = None


class PerWorkerValues(Deferred):
    """One value per worker (tf.distribute.experimental.coordinator.PerWorkerValues).

    Passed to `ClusterCoordinator.schedule`, anywhere in the arguments, it becomes the value of the
    worker that runs the function. Users get it from a coordinator.

    Args:
        make: makes a worker's value; called on the worker's thread with the worker, once, and again
            when the worker was replaced.
        name: for messages.
    """

    def __init__(self, make: Callable[[Any], Any], name: str) -> None:
        self._make = make
        self._name = name
        self._made: dict[int, _Made] = {}  # each worker has an entry of its own

    def on_worker(self, worker: Any) -> Any:
        """Returns the value of `worker`, whose thread this is.

        Raises:
            ClosureInputError: it could not be made; so says every later use on this worker.
        """
        made = self._made.get(worker.index)
        if made is None or made.incarnation < worker.incarnation:
            made = self._made[worker.index] = self._new(worker)
        worker.check()  # a worker that was replaced meanwhile must not use its successor's value
        if made.error is not None:
            raise ClosureInputError(
                "Scheduled work needs the values that it is passed on its worker. Received: "
                f"{self._name}, whose making on worker:{worker.index} raised {made.error!r}. "
                "Correct what makes it, and make it again; other work goes on."
            ) from made.error
        return made.value

    def forget(self, worker: Any) -> None:
        """Lets the next use on `worker` make a new value."""
        self._made.pop(worker.index, None)

    def _new(self, worker: Any) -> _Made:
        try:
            return _Made(worker.incarnation, self._make(worker))
        except (Cancelled, ClosureInputError):  # called off, or made from a value that has failed
            raise
        except Exception as error:
            return _Made(worker.incarnation, error=error)

    def __repr__(self) -> str:
        return f"<paceline {type(self).__name__} of {self._name}>"
