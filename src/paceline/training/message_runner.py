"""The functions that Keras's loops call per batch, where workers train by messages.

Keras's loop hands out batches: each is one piece of work for the next free worker, so a slow worker
takes fewer of them. The loop runs a few batches ahead of the workers, and waits for them where
Keras synchronizes the state (`jax_state_sync`).
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from paceline.errors import WaitTimeout
from paceline.program import context
from paceline.training.runner import NUM_STATE_GROUPS, Runner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.cluster.work import Work
    from paceline.training.replica_step import Kind

_AHEAD = 2  # batches per worker that are handed out and not done


class MessageRunner(Runner):
    """Called as `runner(state, iterator)`; returns the newest logs, and placeholders.

    Args:
        model: the model.
        kind: "train" or "test".
        strategy: the strategy whose workers run the steps.

    Attributes:
        logs: those of the last of the batches that are done.
        is_in_step: whether a call waits for its batches, as `train_on_batch` has to.
    """

    def __init__(self, model: Any, kind: Kind, strategy: Any) -> None:
        super().__init__(model, kind, strategy)
        self._room = threading.Semaphore(_AHEAD * strategy.cluster.workers)
        self._handed_out = 0
        self._logs_of = 0  # number of the batch that the logs are of
        self.logs: Any = None
        self.is_in_step = False

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """Hands out the next batch, or the next `steps_per_execution` ones."""
        batch = next(iterator)
        self.has_run = True
        self._hand_out(batch)
        for _ in range(self._steps - 1):
            try:
                batch = next(iterator)
            except StopIteration:
                break
            self._hand_out(batch)
        if self.is_in_step:
            self._strategy.driver.join()
        return self.logs, (None,) * NUM_STATE_GROUPS[self._kind]

    def _hand_out(self, batch: Any) -> None:
        deadline = self._strategy.cluster.deadline
        if not self._room.acquire(timeout=deadline):
            raise WaitTimeout(
                f"No worker has finished a batch for {deadline:g} s. Received: {self._kind} steps "
                f"of {self._model.name!r}. If a step may take that long, make the cluster with a "
                "longer deadline."
            )
        step = self._eagerly if self._is_eager else self.one_step
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(batch)]
        self._handed_out += 1
        try:
            work = self._strategy.hand_out(
                step,
                (batch,),
                name=f"{self._kind} step",
                examples=next((shape[0] for shape in shapes if shape), 0),
                is_one_push=True,
                is_kept=self._is_fed_arrays,
                on_end=functools.partial(self._note, self._handed_out),
            )
        except BaseException:
            self._room.release()
            raise
        if self.logs is None:
            # The first one says what the logs are, and fails early.
            self._strategy.driver.wait(work, is_last=False)

    def _eagerly(self, data: Any) -> Any:
        """A step that is not compiled holds the store for itself while it runs."""
        worker: Any = context.worker()  # set: workers run this
        return worker.apply(lambda: self._run_one(data), is_whole=True)

    def _note(self, number: int, work: Work) -> None:
        self._room.release()
        if work.state != "finished" or work.result is None:
            return  # a worker that was lost after its push took the result along
        if number > self._logs_of:
            self.logs, self._logs_of = work.result, number
