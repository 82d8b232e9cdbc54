"""One replica's part of a step of fit, evaluate or predict.

Keras's own `train_step(state, data)`, or a user's, computes new values from the current ones; they
are then written by the rules of the variables. A `train_step(data)` in TensorFlow's form reads and
writes the variables itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from typing import Any, Literal

import jax.numpy as jnp
import keras

from paceline.errors import InvalidArgument
from paceline.program import context, meeting
from paceline.training.logs import aggregated, updated_metrics
from paceline.training.optimizers import applied_values
from paceline.types import VariableAggregation
from paceline.variables import rules

Kind = Literal["train", "test", "predict"]


def takes_only_data(model: Any, kind: Kind) -> bool:
    """Whether the model's step has TensorFlow's form, `train_step(self, data)`."""
    return _num_arguments(getattr(type(model), f"{kind}_step")) == 2


@functools.cache
def _num_arguments(function: Any) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in inspect.signature(function).parameters.values())


def variables_of(model: Any, kind: Kind) -> list[list[Any]]:
    """The groups of variables that Keras passes to the model's step, in its order."""
    groups = [model.trainable_variables, model.non_trainable_variables]
    if kind == "train":
        groups.append([] if model.optimizer is None else model.optimizer.variables)
    if kind != "predict":
        groups.append(model.metrics_variables)
    return groups


def run(model: Any, kind: Kind, data: Any) -> Any:
    """Runs one replica's step and returns its logs, alike on all replicas, or its predictions."""
    replica: Any = context.replica_context()  # set: a strategy runs this
    is_distributed = replica.num_replicas_in_sync > 1
    metrics = [] if kind == "predict" else model.metrics_variables
    before = {id(variable): variable.value for variable in metrics}
    if kind == "train":
        _check_compiled(model)
    if takes_only_data(model, kind):
        result = getattr(model, f"{kind}_step")(data)
    else:
        result = _with_state(model, kind, data, replica if is_distributed else None)
    if kind == "predict" or not is_distributed:
        return result
    updated = updated_metrics(model, before)
    if replica.local_examples == 0:
        # Metrics saw no example; what they made of none (0/0, a count per batch) is dropped.
        for variable in metrics:
            if getattr(variable, "is_on_read", False):
                variable.assign(before[id(variable)])
    return aggregated(updated, result, replica)


def _check_compiled(model: Any) -> None:
    """Keras's own step trains the variables that the optimizer was built with."""
    known = getattr(model.optimizer, "_trainable_variables", None)
    is_own_step = type(model).train_step is not keras.Model.train_step
    if is_own_step or not known or len(known) == len(model.trainable_variables):
        return
    raise InvalidArgument(
        "A compiled model trains the variables that were trainable when its optimizer was built. "
        f"Received: {model.name!r} with {len(model.trainable_variables)} trainable variables, its "
        f"optimizer with {len(known)}. Call compile again, with a new optimizer, after changing "
        "`trainable`."
    )


def _with_state(model: Any, kind: Kind, data: Any, replica: Any) -> Any:
    groups = variables_of(model, kind)
    state = tuple([variable.value for variable in group] for group in groups)
    with applied_values() as applied, context.collecting_met() as met:
        if kind == "predict":
            result, new = model.predict_step(state, data)
            _write(groups[1], state[1], new, met)
            return result
        result, new = getattr(model, f"{kind}_step")(state, data)
    non_trainable, metrics = 1, len(groups) - 1
    for i, (group, old, values) in enumerate(zip(groups, state, new, strict=True)):
        if i in (non_trainable, metrics):
            _write(group, old, values, met)
        else:
            _write_updated(model, group, old, values, applied, replica)
    return result


def _write(variables: list[Any], old: Any, new: Any, met: list[Any]) -> None:
    """Writes what has changed: what met when it was assigned as it is, the rest by its rules."""
    alike = set(map(id, met))
    for variable, before, value in zip(variables, old, new, strict=True):
        if value is before:
            continue
        is_direct = id(variable) in alike
        with context.applying() if is_direct else contextlib.nullcontext():
            variable.assign(value)


def _write_updated(
    model: Any, variables: list[Any], old: Any, new: Any, applied: list[Any], replica: Any
) -> None:
    """Writes trainable variables and the optimizer's: an optimizer's results are alike already."""
    ours = set(map(id, applied))
    for variable, before, value in zip(variables, old, new, strict=True):
        if value is before:
            continue
        if replica is not None and id(value) not in ours:
            if not applied:
                _warn_of_own_update(model)
            value = _mean(jnp.asarray(value), replica)
        with context.applying():
            variable.assign(value)


def _mean(value: Any, replica: Any) -> Any:
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return rules.mean(value, replica)
    return meeting.commit(value, VariableAggregation.ONLY_FIRST_REPLICA)


def _warn_of_own_update(model: Any) -> None:
    if model.__dict__.get("_paceline_warned"):
        return
    model.__dict__["_paceline_warned"] = True
    warnings.warn(
        f"The train_step of {model.name!r} updates weights without the compiled optimizer: each "
        "replica's new weights are averaged, weighted by its examples. Use "
        "self.optimizer.stateless_apply to have gradients combined before the update.",
        stacklevel=2,
    )
