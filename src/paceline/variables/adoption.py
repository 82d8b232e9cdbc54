"""How a Keras variable becomes a variable of a strategy, in place.

Keras asks the global distribution for the layout of every variable it makes; `scope()` answers with
a distribution that adopts the variable. Variables made elsewhere are adopted when `run` first uses
them. Identity is kept, so that optimizers and layers go on working with the objects they hold.
"""

from __future__ import annotations

from typing import Any

import jax
import keras

from paceline.errors import ContextError, InvalidArgument
from paceline.types import (
    VariableAggregation,
    VariableSynchronization,
    parse_aggregation,
    parse_synchronization,
)
from paceline.variables.placement import Kind, Placement, spread
from paceline.variables.variable import Variable

_SEED_STATE = "seed_generator_state"
# State that Keras's own layers write as a statistic of the batch, found by name where the layer
# that owns it is not known.
_KERAS_STATISTICS = {
    "moving_mean", "moving_variance", "renorm_mean", "renorm_variance", "renorm_stddev",
    "vector_u", "scale", "amax_history",
}  # fmt: skip


def adopt(variable: Any, strategy: Any, *, owner: Any = None, is_shared: bool = False) -> None:
    """Makes `variable` a variable of `strategy`; does nothing when it already is.

    Args:
        variable: any Keras variable, initialised or not.
        strategy: the strategy.
        owner: the layer, optimizer, metric or seed generator that made it, where known.
        is_shared: it was made outside every scope and is first used now.

    Raises:
        ContextError: it belongs to another strategy.
        InvalidArgument: its declarations are not possible on this strategy; nothing was changed.
    """
    placed = getattr(variable, "placement", None)
    if placed is not None and placed.home is not None:
        if placed.home is not strategy:
            raise ContextError(
                "Mixing strategies: a variable belongs to the strategy that made or first used "
                f"it. Received: {variable.path!r} of {placed.home!r} under {strategy!r}."
            )
        return
    kind = _kind(variable, strategy)
    old = variable.__dict__.get("_value")  # unset while Keras creates the variable
    if not isinstance(variable, Variable):
        variable.__class__ = Variable
        _assume(variable, owner)
    variable._placement = Placement(kind, strategy)
    variable._is_shared = is_shared
    strategy.welcome(variable)
    if old is None:
        return
    with jax.ensure_compile_time_eval():  # also in the middle of a trace the storage is concrete
        if variable.placement.is_stacked:
            old = spread(old, variable.effective_aggregation, strategy.num_replicas_in_sync)
        variable._set_storage(old)


def _kind(variable: Any, strategy: Any) -> Kind:
    aggregation = parse_aggregation(_declared(variable, "_aggregation"), variable.path)
    synchronization = parse_synchronization(_declared(variable, "_synchronization"), variable.path)
    # Under workers that push, a metric of Keras is one variable at the store, which loses nothing;
    # what a user makes ON_READ is every worker's own.
    is_per_worker = (
        strategy.uses_messages
        and isinstance(variable, Variable)
        and synchronization is VariableSynchronization.ON_READ
    )
    if not strategy.mirrors_variables and not is_per_worker:
        return Kind.SINGLE
    if synchronization is VariableSynchronization.NONE and isinstance(variable, Variable):
        raise InvalidArgument(
            "A variable under a strategy with replicas needs a synchronization: ON_WRITE (or AUTO) "
            f"or ON_READ. Received: synchronization=NONE for {variable.path!r}."
        )
    is_floating = keras.backend.is_float_dtype(variable._dtype)
    if aggregation is VariableAggregation.MEAN and not is_floating:
        raise InvalidArgument(
            "The mean over replicas needs a floating dtype. Received: aggregation=MEAN for "
            f"{variable.path!r} of dtype {variable._dtype}. Use SUM, or ONLY_FIRST_REPLICA for a "
            "counter that all replicas advance alike."
        )
    is_on_read = synchronization is VariableSynchronization.ON_READ
    return Kind.PER_REPLICA if is_on_read else Kind.MIRRORED


def _declared(variable: Any, attribute: str) -> Any:
    return getattr(variable, attribute, None)


def _assume(variable: Any, owner: Any) -> None:
    """Chooses what Keras leaves open: seeds, and the aggregation of state that declares none."""
    if isinstance(owner, keras.random.SeedGenerator) or variable.name == _SEED_STATE:
        variable._is_seed_state = True
        return
    variable._is_optimizer_state = isinstance(owner, keras.optimizers.Optimizer)
    is_undeclared = variable._aggregation in (None, "none")
    if not is_undeclared or variable.trainable:
        return
    is_floating = keras.backend.is_float_dtype(variable._dtype)
    variable._assumed_aggregation = (
        VariableAggregation.MEAN if is_floating else VariableAggregation.ONLY_FIRST_REPLICA
    )
    variable._is_aggregation_assumed = not _is_kerass_own(variable, owner)


def _is_kerass_own(variable: Any, owner: Any) -> bool:
    if owner is None:
        return variable.name in _KERAS_STATISTICS
    return type(owner).__module__.split(".")[0] in ("keras", "paceline")
