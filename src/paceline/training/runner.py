"""The functions that Keras's loops call per batch, made for a strategy.

State stays in the variables at all times, so that callbacks can read and assign it after any
batch; Keras's loops are handed placeholders. A batch is split over the replicas, and the step of
all of them is one compiled program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.data import placing
from paceline.program import context
from paceline.program.context import Frame
from paceline.program.function import Function
from paceline.program.keras_state import active_scope
from paceline.strategies import running
from paceline.training import replica_step
from paceline.types import PerReplica

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.training.replica_step import Kind

NUM_STATE_GROUPS = {"train": 4, "test": 3, "predict": 2}


class Runner:
    """Called as `runner(state, iterator)`; returns logs or predictions, and placeholders.

    Args:
        model: the model.
        kind: which of its steps.
        strategy: the strategy whose replicas run it.
    """

    def __init__(self, model: Any, kind: Kind, strategy: Any) -> None:
        self._model = model
        self._kind: Kind = kind
        self._strategy = strategy
        self._is_eager = model.run_eagerly or not model.jit_compile
        self._steps = model.steps_per_execution
        self.has_run = False
        self.one_step = Function(_named(self._run_one, kind))
        self.many_steps = Function(_named(self._run_many, kind))

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """Runs the next batch, or the next `steps_per_execution` ones."""
        batches = [next(iterator)]
        self.has_run = True
        while len(batches) < self._steps:
            try:
                batches.append(next(iterator))
            except StopIteration:
                break
        placeholders = (None,) * NUM_STATE_GROUPS[self._kind]
        # One frame whether fit is called in the scope or outside: one compiled program.
        with context.entered(Frame(self._strategy)):
            if self._fits_one_program(batches):
                data = placing.per_replica_steps(batches, self._strategy)
                return self.many_steps(data), placeholders
            results = [self._one(batch) for batch in batches]
        if self._kind != "predict" or len(results) == 1:
            return results[-1], placeholders
        return jax.tree.map(lambda *parts: np.concatenate(parts), *results), placeholders

    def _one(self, batch: Any) -> Any:
        data = placing.per_replica(batch, self._strategy, is_kept=self._is_fed_arrays)
        return self._run_one(data) if self._is_eager else self.one_step(data)

    @property
    def _is_fed_arrays(self) -> bool:
        """Whether batches are cut from arrays that stay as they are, said by the model's loop."""
        return self._model.__dict__.get("_paceline_fed_arrays", {}).get(self._kind, False)

    def _fits_one_program(self, batches: Sequence[Any]) -> bool:
        is_one = self._steps == 1 or len(batches) < self._steps
        if is_one or self._is_eager or self._kind == "predict":
            return False
        if getattr(self._strategy, "mesh", None) is None:
            return False
        shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(batch)] for batch in batches]
        is_alike = all(shape == shapes[0] for shape in shapes[1:])
        return is_alike and shapes[0][0][0] % self._strategy.num_replicas_in_sync == 0

    def _step(self, data: Any) -> Any:
        return replica_step.run(self._model, self._kind, data)

    def _run_one(self, data: Any) -> Any:
        strategy, scope = self._strategy, active_scope()
        with strategy._across("fit"):
            if strategy.num_replicas_in_sync == 1:
                return running.run_inline(strategy, self._step, (data,), {}, "mean")
            if scope is None:
                result = running.run_eager(strategy, self._step, (data,), {}, "mean")
                return jax.tree.map(self._joined, result, is_leaf=running.is_per_replica)
            result = running.run_compiled(
                strategy,
                self._step,
                (data,),
                {},
                "mean",
                scope,
                is_result_alike=self._kind != "predict",
            )
        return jax.tree.map(self._joined, result, is_leaf=running.is_per_replica)

    def _run_many(self, data: Any) -> Any:
        strategy = self._strategy
        if strategy.num_replicas_in_sync == 1:
            data = jax.tree.map(lambda array: PerReplica.stacked(array[None]), data)
        with strategy._across("fit"):
            return running.run_compiled(
                strategy,
                self._step,
                (data,),
                {},
                "mean",
                active_scope(),
                num_steps=self._steps,
                is_result_alike=True,
            )

    def _joined(self, leaf: Any) -> Any:
        """Predictions of the replicas in replica order, which is input order; logs are alike."""
        if not running.is_per_replica(leaf):
            return leaf
        if self._kind != "predict":
            return leaf.values[0]
        if leaf.array is not None and leaf.shapes is None:
            array = leaf.array
            return array.reshape((-1, *array.shape[2:])) if array.ndim > 1 else array[0]
        values = leaf.values
        if not jnp.ndim(values[0]):
            return values[0]
        is_traced = leaf.array is not None and active_scope() is not None
        return jnp.concatenate(values) if is_traced else np.concatenate(values)


def _named(function: Any, kind: str) -> Any:
    def step(data: Any) -> Any:
        return function(data)

    step.__name__ = f"{kind}_step"
    return step
