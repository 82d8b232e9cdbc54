"""Keras's optimizers with the one method that matters across replicas extended.

`apply` first combines the gradients of the replicas; everything after it (clipping, accumulation,
weight decay, the update, EMA, constraints, loss scaling) then sees the gradient of the global
batch, is the same on every replica, and equals one device. tf.distribute clips and accumulates
each replica's own gradient, before the sum.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.program import context, meeting
from paceline.program.function import is_tracing
from paceline.program.keras_state import outside_of_scopes
from paceline.program.reread import reread
from paceline.program.split_scope import active_split, committed
from paceline.training.twins import Mixin, become_twin, twin
from paceline.variables import rules, slots
from paceline.variables.adoption import adopt
from paceline.variables.scatter import IndexedSlices, gradient_of_slices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.program.split_scope import SplitScope

_applied: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "paceline_applied", default=None
)


class FollowsStrategy(Mixin):
    """Mixin over a Keras optimizer: gradients are combined over the replicas at its entry.

    Inside `strategy.run` the gradients of the replicas are summed; in `fit` they are averaged with
    the replicas' shares of the examples. In cross-replica context a gradient is the global one.
    """

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Updates the variables (keras.Optimizer.apply)."""
        grads, variables = self._paired(grads, trainable_variables)
        self._make_variables(variables)
        grads = combined(grads, variables)
        if (scope := active_split()) is not None:
            scope.note_update(self.variables, _following_every_row(self))
        worker = context.worker()

        def update() -> Any:
            with context.applying():
                return super(FollowsStrategy, self).apply(grads, trainable_variables)

        return update() if worker is None or is_tracing() else worker.apply(update)

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> tuple[list[Any], list[Any]]:
        """Returns new values of the variables (keras.Optimizer.stateless_apply)."""
        trainable_variables = _global_values(self._trainable_variables, trainable_variables)
        is_outermost = not context.is_applying()
        grads = combined(list(grads), self._trainable_variables)
        given = list(trainable_variables), list(optimizer_variables)
        weights, own = given
        scope = active_split() if is_outermost else None
        if scope is not None:
            scope.note_update(self.variables, _following_every_row(self))
            # Keras's fit passes what the worker read; the update is of the current values.
            weights = _current(scope, self._trainable_variables, weights)
            own = _current(scope, self.variables, own)
        with context.applying():
            updated = super().stateless_apply(own, grads, weights)
        if scope is not None:
            updated = (
                _handed_back(given[0], weights, updated[0]),
                _handed_back(given[1], own, updated[1]),
            )
        if is_outermost and (results := _applied.get()) is not None:
            results += [*updated[0], *updated[1]]
        return updated

    def save_own_variables(self, store: Any) -> None:
        """Saves the state; slots of a table in shards are saved as those of the whole one."""
        groups = slots.as_saved(self)
        if groups is None:
            super().save_own_variables(store)
            return
        for i, group in enumerate(groups):
            parts = [np.asarray(variable) for variable in group]
            store[str(i)] = parts[0] if len(parts) == 1 else np.concatenate(parts)

    def load_own_variables(self, store: Any) -> None:
        """Loads the state, of tables in any number of shards."""
        groups = slots.as_saved(self)
        if groups is None or len(store.keys()) != len(groups):
            super().load_own_variables(store)  # which warns where the numbers differ
            return
        for i, group in enumerate(groups):
            value = store[str(i)]
            if len(group) == 1:
                group[0].assign(value)
                continue
            ends = itertools.accumulate(variable.shape[0] for variable in group)
            for variable, end in zip(group, ends, strict=True):
                variable.assign(value[end - variable.shape[0] : end])

    def _paired(self, grads: Any, trainable_variables: Any) -> tuple[list[Any], list[Any]]:
        """The gradients with the variables they belong to, as far as Keras will accept them."""
        if trainable_variables is None:
            trainable_variables = getattr(self, "_trainable_variables", [])
        return list(grads), list(trainable_variables)

    def _make_variables(self, variables: Sequence[Any]) -> None:
        """Slots, counters and rates live where the variables live, whoever made them and when."""
        strategy = _home_of(variables)
        if strategy is not None:
            for own in self.variables:
                adopt(own, strategy, owner=self)
        if self.built or not variables:
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(outside_of_scopes())
            stack.enter_context(jax.ensure_compile_time_eval())
            if strategy is not None:
                stack.enter_context(strategy._creation())
            stack.enter_context(keras.name_scope(self.name, caller=self))
            self.build(list(variables))
            self.built = True


class ScalesLoss(FollowsStrategy):
    """Mixin over `LossScaleOptimizer`: a step is skipped on all replicas or on none.

    Whether the gradient is finite is asked of the combined one. Keras's own `apply` assigns inside
    `cond`, which cannot be traced, so the update is computed statelessly and then assigned.
    """

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Updates the variables (keras.optimizers.LossScaleOptimizer.apply)."""
        grads, variables = self._paired(grads, trainable_variables)
        if not grads:
            return
        self._make_variables(variables)
        self._check_variables_are_known(variables)
        given = dict(zip(map(id, variables), grads, strict=True))
        everything = [*self._trainable_variables, *self.variables]
        values = [variable.value for variable in everything]
        num_trainable = len(self._trainable_variables)
        with warnings.catch_warnings():
            if len(variables) < num_trainable:
                # Keras warns of variables without gradient; these were left out on purpose.
                warnings.filterwarnings("ignore", message="Gradients do not exist")
            trainable, own = self.stateless_apply(
                values[num_trainable:],
                [given.get(id(v)) for v in self._trainable_variables],
                values[:num_trainable],
            )
        with context.applying():
            for variable, old, new in zip(everything, values, [*trainable, *own], strict=True):
                if new is not old:
                    variable.assign(new)


def distributed(cls: type) -> type:
    """Returns the optimizer class `cls` extended to follow strategies."""
    is_scaling = issubclass(cls, keras.optimizers.LossScaleOptimizer)
    return twin(ScalesLoss if is_scaling else FollowsStrategy, cls)


def adopt_optimizer(optimizer: Any) -> None:
    """Makes a plain Keras optimizer follow strategies, in place."""
    is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    become_twin(optimizer, ScalesLoss if is_scaling else FollowsStrategy)


def combined(grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """The gradients of the global batch; None stays None, and slices become arrays.

    What a scatter into zeros makes is recognised where it is to travel, and travels as rows.
    """
    replica = context.replica_context()
    if context.is_applying():
        return list(grads)
    if any(isinstance(grad, IndexedSlices) for grad in grads):
        pairs = zip(grads, variables, strict=True)
        grads = [gradient_of_slices(v, g) if isinstance(g, IndexedSlices) else g for g, v in pairs]
    if replica is None or replica.num_replicas_in_sync == 1:
        is_split = active_split() is not None
        return committed(list(grads), list(variables)) if is_split else list(grads)
    return [
        grad if grad is None else _combine(grad, variable, replica)
        for grad, variable in zip(grads, variables, strict=True)
    ]


def _current(scope: SplitScope, variables: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The current values of `variables`, where `values` are the ones that a worker read."""
    with context.applying():
        return [scope.current(v, value) for v, value in zip(variables, values, strict=True)]


def _handed_back(given: Sequence[Any], taken: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """The results of an update of `taken`: what was left as it is, is what was `given`."""
    triples = zip(given, taken, new, strict=True)
    return [old if value is current else reread(value) for old, current, value in triples]


def _following_every_row(optimizer: Any) -> list[Any]:
    """Variables of an optimizer that go on changing with rows of weights that have no gradient.

    Sums of gradients, and averages of weights: where one of them is kept of a table, the table
    can't be updated by rows alone.
    """
    inner = [*getattr(optimizer, "optimizers", ()), getattr(optimizer, "inner_optimizer", None)]
    found = [v for one in inner if one is not None for v in _following_every_row(one)]
    found += getattr(optimizer, "_model_variables_moving_average", ())
    found += getattr(optimizer, "_accumulated_gradients", ())
    if isinstance(optimizer, keras.optimizers.ScheduleFreeAdamW):
        found += optimizer.variables
    return [variable for variable in found if variable is not None]


def _combine(grad: Any, variable: Any, replica: Any) -> Any:
    grad = jnp.asarray(grad)
    if getattr(variable, "overwrite_with_gradient", False):
        return _largest(grad * rules.gradient_share(variable, replica), replica)
    if replica.loss_rule == "mean":
        return rules.mean(grad, replica)
    if replica.share == 0:
        # No examples: what is not finite was computed from none; a regulariser's part counts.
        grad = jnp.where(jnp.isfinite(grad), grad, jnp.zeros_like(grad))
    return meeting.commit(grad)


def _global_values(variables: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The values of `variables` across replicas, where a replica's own read gave `values`."""
    replica = context.replica_context()
    if replica is None or replica.num_replicas_in_sync == 1 or context.is_applying():
        return list(values)
    shares = [rules.gradient_share(variable, replica) for variable in variables]
    return [x if share == 1 else x * share for x, share in zip(values, shares, strict=True)]


def _largest(value: Any, replica: Any) -> Any:
    """The largest over replicas: float8 training passes absolute maxima as gradients."""
    count = replica.num_replicas_in_sync
    rows = meeting.all_gather(value[None], 0, (1,) * count)
    sizes = replica.example_sizes or (1,) * count
    return jnp.max(jnp.stack([rows[i] for i, size in enumerate(sizes) if size]), axis=0)


def _home_of(variables: Sequence[Any]) -> Any:
    """The strategy of the variables, or the current one where they have none yet."""
    for variable in variables:
        placement = getattr(variable, "placement", None)
        if placement is not None and placement.home is not None:
            return placement.home
    frame = context.current()
    return frame.strategy if frame is not None and frame.strategy.mirrors_variables else None


@contextlib.contextmanager
def applied_values() -> Iterator[list[Any]]:
    """Collects the values that `stateless_apply` returns in the block: alike on all replicas."""
    results: list[Any] = []
    token = _applied.set(results)
    try:
        yield results
    finally:
        _applied.reset(token)
