"""What a step reports: metric results over all replicas, with one collective per dtype."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.program import meeting
from paceline.types import VariableAggregation
from paceline.variables import rules


def updated_metrics(model: Any, before: dict[int, Any]) -> list[Any]:
    """The metrics that the step has updated.

    Args:
        model: the model.
        before: the metric variables' values before the step, by identity.
    """
    return [m for m in model.metrics if any(_is_new(v, before) for v in m.variables)]


def aggregated(updated: list[Any], logs: Any, replica: Any) -> Any:
    """Replaces a replica's logs by those of the global batch, alike on all replicas.

    Args:
        updated: the metrics that the step updated: what they report comes from them, over all
            replicas; a user's own number is averaged.
        logs: what `train_step` or `test_step` returned; usually a dict.
        replica: the replica context.
    """
    results = _results(updated, replica) if isinstance(logs, dict) else {}

    def report(name: str, value: Any) -> Any:
        return (
            results[name] if name in results else jax.tree.map(lambda x: _mean(x, replica), value)
        )

    if isinstance(logs, dict):
        return {name: report(name, value) for name, value in logs.items()}
    return jax.tree.map(lambda x: _mean(x, replica), logs)


def _is_new(variable: Any, before: dict[int, Any]) -> bool:
    return id(variable) not in before or variable.value is not before[id(variable)]


def _results(metrics: list[Any], replica: Any) -> dict[str, Any]:
    variables = [variable for metric in metrics for variable in metric.variables]
    totals = list(zip(variables, _over_replicas(variables, replica), strict=True))
    results = {}
    with keras.StatelessScope(state_mapping=totals):
        for metric in metrics:
            result = metric.result()
            results.update(result if isinstance(result, dict) else {metric.name: result})
    return results


def _over_replicas(variables: list[Any], replica: Any) -> list[Any]:
    """The values across replicas; per-replica ones are summed, all of a dtype at once."""
    values = [variable.value for variable in variables]
    by_dtype: dict[Any, list[int]] = {}
    for i, variable in enumerate(variables):
        if not getattr(variable, "is_on_read", False):
            continue
        by_dtype.setdefault(values[i].dtype, []).append(i)
        if variable.effective_aggregation in _FIRST:
            is_first = jnp.asarray(replica.replica_id_in_sync_group) == 0
            values[i] = jnp.where(is_first, values[i], jnp.zeros_like(values[i]))
    for places in by_dtype.values():
        flat = meeting.all_reduce(jnp.concatenate([values[i].ravel() for i in places]))
        ends = np.cumsum([values[i].size for i in places])
        for i, part in zip(places, jnp.split(flat, ends[:-1]), strict=True):
            values[i] = part.reshape(values[i].shape).astype(values[i].dtype)
            if variables[i].effective_aggregation is VariableAggregation.MEAN:
                values[i] = values[i] / replica.num_replicas_in_sync
    return values


_FIRST = (VariableAggregation.NONE, VariableAggregation.ONLY_FIRST_REPLICA)


def _mean(value: Any, replica: Any) -> Any:
    """The mean over replicas of a number that a user's step returned."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        return value
    value = jnp.asarray(value)
    is_floating = jnp.issubdtype(value.dtype, jnp.inexact)
    return rules.mean(value if is_floating else value.astype(keras.config.floatx()), replica)
