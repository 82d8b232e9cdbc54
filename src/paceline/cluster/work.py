"""One piece of work for a worker, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import Cancelled, EndOfData

if TYPE_CHECKING:
    from collections.abc import Callable


class Work:
    """A call that some worker will make.

    Args:
        call: called with the worker, on its thread.
        name: for messages.
        is_one_push: whether the call makes one push and that is its effect: once the push has
            arrived, the work is not given to another worker.
        on_end: called once when the work has ended, however it did, under the driver's lock.

    Attributes:
        number: how many were submitted before it.
        state: "waiting", "finished", "failed" or "cancelled".
        result: what the call returned.
        error: what it raised, or why it was cancelled.
    """

    __slots__ = ("call", "error", "is_one_push", "name", "number", "on_end", "result", "state")

    def __init__(
        self,
        call: Callable[[Any], Any],
        name: str,
        *,
        is_one_push: bool = False,
        on_end: Callable[[Work], None] | None = None,
    ) -> None:
        self.call = call
        self.name = name
        self.is_one_push = is_one_push
        self.on_end = on_end
        self.number = -1
        self.state = "waiting"
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state != "waiting"

    def run(self, worker: Any) -> Any:
        """Makes the call.

        Raises:
            EndOfData: it ran out of data.
        """
        try:
            return self.call(worker)
        except StopIteration as error:
            raise EndOfData(
                "Scheduled work took a batch from a dataset that has no more. Received: "
                f"{self.name} on worker:{worker.index}. Repeat the dataset, or schedule as many "
                "steps as it has batches."
            ) from error

    def finish(self, result: Any) -> None:
        """Notes the result."""
        self.result = result
        self._end("finished")

    def fail(self, error: BaseException) -> None:
        """Notes the error."""
        self.error = error
        self._end("failed")

    def cancel(self, reason: str) -> None:
        """Notes that it was called off."""
        self.error = Cancelled(f"{self.name} was cancelled: {reason}")
        self._end("cancelled")

    def _end(self, state: str) -> None:
        self.state = state
        self.call = _ended  # what the call holds, such as a batch, is needed no more
        if self.on_end is not None:
            self.on_end(self)

    def __repr__(self) -> str:
        return self.name


def _ended(worker: Any) -> Any:
    raise TypeError("work that has ended was run again")
