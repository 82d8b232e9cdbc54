"""The functions that Keras's loops call per batch, where workers train by messages.

Keras's loop hands out batches: each is one piece of work for the next free worker, so a slow worker
takes fewer of them. The loop runs a few batches ahead of the workers, and waits for them where
Keras synchronizes the state (`jax_state_sync`).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from paceline.program import context
from paceline.program.handover import handover
from paceline.training.runner import NUM_STATE_GROUPS, Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.cluster.work import Work
    from paceline.training.replica_step import Kind

_AHEAD = 2  # batches per worker that are handed out and not done


class MessageRunner(Runner):
    """Called as `runner(state, iterator)`; returns the newest logs, and placeholders.

    Args:
        model: the model.
        kind: "train" or "test".
        strategy: the strategy whose workers run the steps.
    """

    def __init__(self, model: Any, kind: Kind, strategy: Any) -> None:
        super().__init__(model, kind, strategy)
        self._most_under_way = _AHEAD * strategy.cluster.workers
        self._num_under_way = 0
        self._handed_out = 0
        self._logs: Any = None  # of the last one of the batches that are done
        self._logs_of = 0  # that batch's number
        self._newest: Any = None  # the logs when the last batch was handed out
        self._returned: Any = None

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """Hands out the next batch, or the next `steps_per_execution` ones."""
        batch = next(iterator)
        self.has_run = True
        is_awaited = self._model.__dict__.get("_paceline_awaits_steps", False)  # train_on_batch
        if is_awaited:
            self._logs = None
        self._hand_out(batch)
        for _ in range(self._steps - 1):
            try:
                batch = next(iterator)
            except StopIteration:
                break
            self._hand_out(batch)
        if is_awaited:
            self._strategy.driver.join()
        # A worker that was lost after its push took the logs along.
        logs = self._logs if is_awaited else self._newest
        self._returned = self._model.get_metrics_result() if logs is None else logs
        return self._returned, (None,) * NUM_STATE_GROUPS[self._kind]

    @property
    def on_worker(self) -> Callable[[Any], Any]:
        """What a worker does with a batch."""
        return self._eagerly if self._is_eager else self.one_step

    def newer_than(self, logs: Any) -> Any:
        """The newest logs, if `logs` are those that were returned last."""
        return self._logs if logs is self._returned and self._logs is not None else logs

    def _hand_out(self, batch: Any) -> None:
        was_first: list[bool] = []

        def has_room() -> bool:
            if not was_first:  # what is done now and what later is the same when a run is replayed
                was_first.append(self._logs is None)
                self._newest = self._logs
            return self._num_under_way < self._most_under_way

        self._strategy.driver.wait_until(
            has_room,
            f"a worker to finish one of the {self._kind} steps of {self._model.name!r}",
        )
        with handover:  # workers count down
            self._num_under_way += 1
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(batch)]
        self._handed_out += 1
        try:
            work = self._strategy.hand_out(
                self.on_worker,
                (batch,),
                name=f"{self._kind} step",
                examples=next((shape[0] for shape in shapes if shape), 0),
                is_one_push=True,
                is_kept=self._is_fed_arrays,
                on_end=functools.partial(self._note, self._handed_out),
            )
        except BaseException:
            with handover:
                self._num_under_way -= 1
            raise
        if was_first[0]:
            self._await_first(work)

    def _await_first(self, work: Work) -> None:
        """Waits for the first batch, which says what the logs are, and fails early."""
        driver = self._strategy.driver
        try:
            driver.wait(work, is_last=False)
            with handover:
                driver.access()
                self._newest = self._logs
        except Exception:
            driver.join()  # raises the same error, or what called this off, and has then raised it
            raise

    def _eagerly(self, data: Any) -> Any:
        """A step that is not compiled holds the store for itself while it runs."""
        worker: Any = context.worker()  # set: workers run this
        if worker.driver.is_traced:
            worker.mark(data)
        return worker.apply(lambda: self._run_one(data), is_whole=True)

    def _note(self, number: int, work: Work) -> None:
        self._num_under_way -= 1
        if work.state != "finished" or work.result is None:
            return
        if number > self._logs_of:
            self._logs, self._logs_of = work.result, number
