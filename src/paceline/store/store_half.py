"""The store half of a cut step, compiled, with an update rule on the way in and out.

It maps current values and the residuals of a push to the new values of the written variables. The
rule may change the gradients before the optimizer sees them, and scale the step that comes out.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from paceline.program.flat import evaluate_nodes, needed, value_of
from paceline.program.sparse import replaced
from paceline.store.row_update import corrected, evaluate, finished, rows_of, touched
from paceline.store.rules.base import UpdateRule, scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from paceline.program.split import Cut, Write


class StoreHalf:
    """What the store runs for one form of a step.

    Args:
        cut: the cut step.
        rule: the update rule.
        writes: those of the cut's writes that it carries out, as one server does.

    Attributes:
        variables: those whose current values it takes, in order.
        updated, kept: those it gives new values: by an optimizer's update, and otherwise (metrics,
            statistics, seeds, plain assignments).
        homes: the variable of each gradient, in the order of the gradients.
    """

    def __init__(self, cut: Cut, rule: UpdateRule, writes: Sequence[Write]) -> None:
        self._cut, self._rule = cut, rule
        self._updates = [write for write in writes if write.is_update]
        self._states = [write for write in writes if not write.is_update]
        self.updated = [write.variable for write in self._updates]
        self.kept = [write.variable for write in self._states]
        ours = {id(write.variable) for write in writes}
        self._gradients = [
            k for k, slot in enumerate(cut.residuals) if cut.commits.get(slot) in ours
        ]
        known = {id(v): v for v in [v for _, v in cut.currents] + self.updated + self.kept}
        self.homes = [known[cut.commits[cut.residuals[k]]] for k in self._gradients]
        self._rows = {slot: p for slot, p in cut.rows.items() if cut.commits[slot] in ours}
        self._in_rows = {k for k in self._gradients if cut.residuals[k] in self._rows}
        wanted = {write.result for write in writes if isinstance(write.result, int)}
        wanted |= {slot for write in writes for node in write.nodes for slot in node.needs}
        self._nodes = needed(cut.at_store, wanted)
        used = wanted | {slot for node in self._nodes for slot in node.needs}
        read = {id(variable) for slot, variable in cut.currents if slot in used}
        read |= {id(write.variable) for write in writes if write.own is not None}
        read |= {id(variable) for variable in self.homes}
        self.variables = [variable for key, variable in known.items() if key in read]
        self._places = {id(v): k for k, v in enumerate(self.variables)}
        self._at_home = [self._places[id(v)] for v in self.homes]
        self._alone = jax.jit(self._apply_alone, donate_argnums=1)
        self.keep = jax.jit(self._keep)
        self.correct = jax.jit(self._correct)
        self.update = jax.jit(self._update)

    @property
    def needs_backup(self) -> bool:
        """Whether the weights that the worker read must come with the gradients."""
        return self._rule.needs_backup

    @property
    def corrects(self) -> bool:
        """Whether the rule changes gradients before the optimizer sees them."""
        return type(self._rule).gradients is not UpdateRule.gradients

    @functools.cached_property
    def form(self) -> tuple[tuple[int, ...], ...]:
        """What the gradients belong to and what they update."""
        return tuple(map(id, self.homes)), tuple(map(id, self.updated))

    def of(self, values: dict[int, Any]) -> list[Any]:
        """The values of `variables`, given by the variables' `id`."""
        return [values[id(variable)] for variable in self.variables]

    def initial_state(self, current: Sequence[Any]) -> tuple[Any, Any]:
        """The rule's state: shared by the workers, and of one worker."""
        return self._rule.init([current[place] for place in self._at_home])

    def gradients_of(self, residuals: Sequence[Any]) -> list[Any]:
        """The gradients among the residuals of a push."""
        return [residuals[k] for k in self._gradients]

    def replaceable(self, residuals: Sequence[Any], are_new: Sequence[Any]) -> frozenset[int]:
        """Which of a push's arrays may become new values of the variables that they are for.

        Args:
            residuals: of a push.
            are_new: which of them nobody else has.
        """
        updated = set(map(id, self.updated))
        places: dict[int, int] = {}
        for k, home in zip(self._gradients, self.homes, strict=True):
            form = home._value.shape, home._value.dtype
            is_alike = k not in self._in_rows and (residuals[k].shape, residuals[k].dtype) == form
            if is_alike and are_new[k] and id(home) in updated:
                places.setdefault(id(home), k)  # there is one new value only
        return frozenset(places.values())

    def apply(
        self, current: Sequence[Any], residuals: Sequence[Any], given: frozenset[int],
        staleness: Any, backup: Any, shared: Any, own: Any,
    ) -> Any:  # fmt: skip
        """Applies a push that comes alone.

        Args:
            current: values of `variables`.
            residuals: of the push.
            given: which of them the new values may take the memory of; they are gone then.
            staleness: float32 scalar.
            backup, shared, own: the weights that the worker read, and the rule's states.

        Returns:
            New values of `updated` and `kept`, and the rule's states.
        """
        taken = [residuals[k] if k in given else None for k in range(len(residuals))]
        lent = [None if k in given else residuals[k] for k in range(len(residuals))]
        return self._alone(current, taken, lent, staleness, backup, shared, own)

    # Compiled: the first one for a push that comes alone; the others for the pushes of a group ----

    def _apply_alone(
        self, current: Any, taken: Any, lent: Any, staleness: Any, backup: Any, shared: Any,
        own: Any,
    ) -> Any:  # fmt: skip
        residuals = [b if a is None else a for a, b in zip(taken, lent, strict=True)]
        grads, shared, own = self._correct(current, residuals, staleness, backup, shared, own)
        env = self._environment(current, residuals, grads)
        kept = [self._new_value(write, env, current) for write in self._states]
        updated, shared = self._updated(env, current, self._rule.scale(staleness), shared)
        return updated, kept, shared, own

    def _keep(self, current: Any, residuals: Any) -> list[Any]:
        """Returns new values of `kept`."""
        env = self._environment(current, residuals, self.gradients_of(residuals))
        return [self._new_value(write, env, current) for write in self._states]

    def _correct(
        self, current: Any, residuals: Any, staleness: Any, backup: Any, shared: Any, own: Any
    ) -> Any:
        """Returns the gradients as the rule changes them, and the rule's states."""
        weights = [current[place] for place in self._at_home]
        grads = self.gradients_of(residuals)
        return corrected(self._rule, grads, weights, backup, staleness, shared, own)

    def _update(
        self, current: Any, residuals: Any, grads: Any, scale: Any, shared: Any
    ) -> tuple[list[Any], Any]:
        """Returns new values of `updated` from merged gradients, and the rule's shared state."""
        env = self._environment(current, residuals, grads)
        return self._updated(env, current, scale, shared)

    # --------------------------------------------------------------------------------------------

    def _environment(self, current: Any, residuals: Any, grads: Any) -> dict[int, Any]:
        residuals = list(residuals)
        for place, grad in zip(self._gradients, grads, strict=True):
            residuals[place] = grad
        env = dict(zip(self._cut.residuals, residuals, strict=True))
        env.update(self._cut.flat.consts)
        for slot, variable in self._cut.currents:
            place = self._places.get(id(variable))
            if place is not None:
                env[slot] = current[place]
        evaluate(self._nodes, self._rows, env)
        return env

    def _new_value(self, write: Write, env: dict[int, Any], current: Any) -> Any:
        variable = write.variable
        if write.own is not None:
            env = env | {write.own: current[self._places[id(variable)]]}
            evaluate_nodes(write.nodes, env)
        dtype = jax.dtypes.canonicalize_dtype(variable._dtype)
        return jnp.asarray(value_of(env, write.result), dtype)

    def _updated(self, env: Any, current: Any, scale: Any, shared: Any) -> tuple[list[Any], Any]:
        rows = touched(self._rows, env)
        new = {id(w.variable): self._new_value(w, env, current) for w in self._updates}
        homes, whole = list(map(id, self.homes)), [current[k] for k in self._at_home]
        indices = [rows.get(key) for key in homes]
        weights = dict(zip(homes, rows_of(whole, indices), strict=True))
        moved = [key for key in weights if key in new]
        old = [weights[key] for key in moved]
        values = scaled(old, [new[key] for key in moved], scale)
        new.update(zip(moved, values, strict=True))
        steps = [new.get(key, weights[key]) - weights[key] for key in homes]
        shared = finished(self._rule, shared, steps, whole, indices)
        for key, index in rows.items():
            new[key] = replaced(current[self._places[key]], index, new[key])
        return [new[id(write.variable)] for write in self._updates], shared


class StoreHalves:
    """The store half of a step, divided over the servers that hold its variables.

    An optimizer's slots are updated where their variable is. Scalars such as step count and
    learning rate travel with each part, which reads all values as they were before the push. What
    depends on the gradients of several servers, as under a global norm, is one part.

    Args:
        cut: the cut step.
        rule: the update rule.
        server_of: the server of a variable that is no optimizer's.
        device: where the store is.

    Attributes:
        device: as given. What reads no variable is computed there, too, whoever asks for it.
        parts: one per server that has something to do.
        variables: those whose current values are taken.
        writes: those that get new values.
        homes: the variable of each gradient.
        form: pushes of one form can be merged.
    """

    def __init__(
        self, cut: Cut, rule: UpdateRule, server_of: Callable[[Any], int], device: Any
    ) -> None:
        self.device = device
        per_server = _divided(cut.writes, server_of)
        self.parts = [StoreHalf(cut, rule, per_server[server]) for server in sorted(per_server)]
        self.variables = union(part.variables for part in self.parts)
        self.writes = [v for part in self.parts for v in (*part.updated, *part.kept)]
        self.homes = [v for part in self.parts for v in part.homes]
        self.form = tuple(part.form for part in self.parts)

    def gradients_of(self, residuals: Sequence[Any]) -> list[Any]:
        """The gradients among the residuals of a push, in the order of `homes`."""
        return [gradient for part in self.parts for gradient in part.gradients_of(residuals)]

    def replaceable(self, residuals: Sequence[Any], are_new: Sequence[Any]) -> frozenset[int]:
        """Which of a push's arrays may become new values: none of those that several parts get."""
        if len(self.parts) != 1:
            return frozenset()
        return self.parts[0].replaceable(residuals, are_new)


def _divided(writes: Sequence[Write], server_of: Callable[[Any], int]) -> dict[int, list[Write]]:
    """The writes of each server; servers that need each other's gradients count as one."""
    known = {id(write.variable): write.variable for write in writes}
    together: dict[int, int] = {}

    def first(server: int) -> int:
        while server in together:
            server = together[server]
        return server

    servers = []
    for write in writes:
        homes = [known[home] for home in write.homes if home in known]
        servers.append([server_of(variable) for variable in homes or [write.variable]])
        own = set(map(first, servers[-1]))
        together |= dict.fromkeys(own - {min(own)}, min(own))
    divided: dict[int, list[Write]] = {}
    for write, homes in zip(writes, servers, strict=True):
        divided.setdefault(first(homes[0]), []).append(write)
    return divided


def union(groups: Iterable[Iterable[Any]]) -> list[Any]:
    """The variables of all groups, each once, in order."""
    return list({id(variable): variable for group in groups for variable in group}.values())
