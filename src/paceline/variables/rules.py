"""What a write in replica context means: the declared aggregation takes effect here.

A write aggregates its *argument* over the replicas and then carries out the operation once on
every component, so `assign_add` adds the sum of the deltas (Keras's own `assign_add` is a read, an
addition and an `assign`, and would count the old value once per replica).
"""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from paceline.errors import InvalidArgument
from paceline.program import context, meeting
from paceline.program.keras_state import creator, is_inside_layer
from paceline.program.scope import combine, is_traced
from paceline.types import VariableAggregation

_SCALARS = (bool, int, float, complex, np.generic)
# What Keras's float8 layers note of the loss's gradient: in fit, where a replica's loss is a mean
# over its own examples, 1 / share of what one device would note.
_GRADIENT_STATISTICS = ("outputs_grad_scale", "outputs_grad_amax_history")
_SEED_STRIDE = np.uint32(0x9E3779B9)  # any odd number: replicas get distinct seeds


def write(variable: Any, operation: str, value: Any, replica: Any, current: Any) -> Any:
    """Returns the new component of `variable` on `replica`.

    Args:
        variable: the `Variable` written.
        operation: "assign", "add" or "sub".
        value: the replica's argument.
        replica: the replica context.
        current: the component before the write.

    Raises:
        InvalidArgument: the variable's aggregation does not allow this write.
    """
    is_single = replica.num_replicas_in_sync == 1
    if is_single or context.writes_are_direct() or variable.is_on_read:
        return combine(operation, current, value)
    if variable.is_seed_state:
        # The first replica's stream is the state itself: its successor is the new state of all.
        new = combine(operation, fold_seed(current, replica), value)
        return meeting.commit(new, VariableAggregation.ONLY_FIRST_REPLICA)
    return combine(operation, current, _aggregated(variable, operation, value, replica))


def fold_seed(component: Any, replica: Any) -> Any:
    """What a replica reads of a seed generator's state: the same state, another stream.

    The first replica reads the state itself, so one replica draws what a single device draws.
    """
    return shifted_seed(component, replica.replica_id_in_sync_group)


def shifted_seed(state: Any, index: Any) -> Any:
    """The seed state of stream `index`; index 0 is the state itself, -index leads back."""
    shift = jnp.asarray(index).astype(state.dtype)
    return state.at[0].add(shift * _SEED_STRIDE.astype(state.dtype))


def seen(variable: Any, component: Any, replica: Any) -> Any:
    """What a replica reads of a variable whose component is `component`."""
    if replica.num_replicas_in_sync == 1:
        return component
    if variable.is_seed_state:
        return fold_seed(component, replica)
    share = 1.0 if context.is_applying() else gradient_share(variable, replica)
    return component if share == 1 else component / share


def gradient_share(variable: Any, replica: Any) -> float:
    """What turns a replica's value of a statistic of gradients into the global one; else 1."""
    is_statistic = variable.overwrite_with_gradient and variable.name in _GRADIENT_STATISTICS
    return (replica.share or 1.0) if is_statistic and replica.loss_rule == "mean" else 1.0


def _aggregated(variable: Any, operation: str, value: Any, replica: Any) -> Any:
    aggregation = variable.effective_aggregation
    if isinstance(value, _SCALARS) and _is_same_everywhere(value, replica):
        return _aggregated_scalar(variable, aggregation, operation, value, replica)
    value = jnp.asarray(value, variable.storage_dtype)
    if aggregation is VariableAggregation.NONE:
        if variable.is_shared and operation != "assign":
            return meeting.commit(value)  # one shared variable: every replica's delta lands on it
        if variable.trainable and not variable.is_declared:
            if is_inside_layer():  # such as SpectralNormalization, which rewrites its kernel
                return mean(value, replica)
            raise InvalidArgument(_weight_text(variable))
        raise InvalidArgument(_none_text(variable, value, replica))
    if variable.is_optimizer_state:
        raise InvalidArgument(_weight_text(variable))
    if variable.is_aggregation_assumed:
        _warn_once(variable, aggregation)
    if aggregation is VariableAggregation.MEAN:
        return mean(value, replica)
    return meeting.commit(value, aggregation)


def mean(value: Any, replica: Any) -> Any:
    """The mean over replicas, each counting with its share of the step's examples."""
    if replica.share * replica.num_replicas_in_sync == 1:
        total = meeting.commit(value)
        return (total / replica.num_replicas_in_sync).astype(value.dtype)
    return meeting.commit(value, VariableAggregation.MEAN, replica.share)


def _is_same_everywhere(value: Any, replica: Any) -> bool:
    """Whether all replicas pass this scalar: compiled they do, eagerly they can be asked."""
    if replica.group is None:
        return True
    return all(other == value for other in replica.group.exchange(value))


def _aggregated_scalar(
    variable: Any, aggregation: VariableAggregation, operation: str, value: Any, replica: Any
) -> Any:
    """A Python or NumPy scalar is the same on every replica."""
    is_shared_delta = variable.is_shared and operation != "assign"
    if aggregation is VariableAggregation.NONE and is_shared_delta:
        return value * replica.num_replicas_in_sync
    if aggregation is VariableAggregation.SUM and value != 0:
        count = replica.num_replicas_in_sync
        raise InvalidArgument(
            "A Python or NumPy scalar is the same on every replica and cannot be summed over them "
            f"without saying how often it counts. Received: {value!r} for variable "
            f"{variable.path!r} with aggregation=SUM. Pass an array, as in "
            f"jnp.asarray({value!r}), if each of the {count} replicas contributes it (total "
            f"{value * count!r}), or assign the total in cross-replica context."
        )
    return value


def refuse_plain_optimizer(variable: Any) -> None:
    """Checks a write by a worker: its gradients must have been sent to the store before.

    An optimizer of plain Keras would compute the worker's own update from what the worker has
    read, and others' momentum would be lost.

    Raises:
        InvalidArgument: an optimizer that does not follow the strategy makes it.
    """
    if context.is_applying() or not isinstance(creator(), keras.optimizers.Optimizer):
        return
    raise InvalidArgument(
        "The weights of a model under a strategy are updated by an optimizer that follows it. "
        f"Received: an assignment to {variable.path!r} on a worker, by an optimizer of plain "
        "Keras. Use the optimizer of paceline.keras.optimizers, or strategy.distribute(optimizer)."
    )


def _weight_text(variable: Any) -> str:
    return (
        "The weights of a model under a strategy are updated by an optimizer that follows it. "
        f"Received: an assignment to {variable.path!r} inside run, by an optimizer of plain Keras "
        "or by hand. Use the optimizer of paceline.keras.optimizers, or "
        "strategy.distribute(optimizer); to assign by hand, create the weight with "
        "aggregation='mean', 'sum' or 'only_first_replica'."
    )


def _none_text(variable: Any, value: Any, replica: Any) -> str:
    """The message for an array under NONE: what each aggregation would give here."""
    if is_traced(value):
        outcome = {
            "SUM": "the sum of the replicas' values",
            "MEAN": "their mean",
            "ONLY_FIRST_REPLICA": "replica 0's value",
        }
    else:
        parts = np.stack([np.asarray(part) for part in replica.group.exchange(value)])
        outcome = {
            "SUM": str(parts.sum(axis=0)),
            "MEAN": str(parts.mean(axis=0)),
            "ONLY_FIRST_REPLICA": str(parts[0]),
        }
    choices = "; ".join(f"{name} gives {result}" for name, result in outcome.items())
    return (
        "A variable that is mirrored over replicas needs an aggregation before replicas can assign "
        f"arrays to it. Received: an assignment to {variable.path!r} with aggregation=NONE on "
        f"{replica.num_replicas_in_sync} replicas. Create it with aggregation=..., of which here "
        f"{choices}; NONE keeps this error. If an optimizer of plain Keras made this write, use "
        "the optimizer of paceline.keras.optimizers, or strategy.distribute(optimizer)."
    )


def _warn_once(variable: Any, aggregation: VariableAggregation) -> None:
    variable.is_aggregation_assumed = False
    warnings.warn(
        f"Variable {variable.path!r} declares no aggregation and is written inside replicas: "
        f"Paceline combines the writes with {aggregation.name}. Pass "
        f"aggregation={aggregation.name.lower()!r} to add_weight (or 'sum', "
        "'only_first_replica') to be explicit.",
        stacklevel=2,
    )
