"""The worker half of a cut step, compiled: a snapshot and a batch in, residuals and results out."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from paceline.program.flat import evaluate_nodes, value_of
from paceline.program.step import has_any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.program.split import Cut


_CALLBACKS = {"pure_callback", "io_callback", "buffer_callback", "debug_callback", "debug_print"}


class WorkerHalf:
    """What a worker runs.

    Args:
        cut: the cut step.

    Attributes:
        variables: those whose snapshot it takes, in order.
        calls_back: whether it runs Python code while it computes.
    """

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self.calls_back = any(has_any(node.equation, _CALLBACKS) for node in cut.at_worker)
        used = {slot for node in cut.at_worker for slot in node.needs}
        used |= {slot for plan in cut.rows.values() for slot in plan.gradient.needs}
        used |= set(cut.residuals) | {r for r in cut.results if isinstance(r, int)}
        pairs = [p for p in zip(cut.flat.reads, cut.inputs, strict=True) if p[0] in used]
        of_variables = [(slot, i) for slot, i in pairs if i.kind in ("snapshot", "current")]
        self.variables = list({id(i.source): i.source for _, i in of_variables}.values())
        places = {id(variable): k for k, variable in enumerate(self.variables)}
        self._snapshot = [(slot, places[id(i.source)]) for slot, i in of_variables]
        self._fed = [(slot, i) for slot, i in pairs if i.kind == "fed"]
        self._index = [slot for slot, i in pairs if i.kind == "worker"]
        self._run = jax.jit(self._evaluate)
        self._consts: dict[Any, list[Any]] = {}

    @property
    def fed(self) -> list[Any]:
        """The inputs that are filled from fed batches, in order."""
        return [source for _, source in self._fed]

    def __call__(
        self, snapshot: Sequence[Any], fed: Sequence[Any], arrays: Any, index: int, device: Any
    ) -> Any:
        """Runs the half on `device`, the default one, where the arguments are, or of the host.

        Returns:
            The residuals, and the array leaves of the step's result. A gradient that travels as
            rows is one of `Rows`.
        """
        if device not in self._consts:
            self._consts[device] = [_placed(const, device) for _, const in self._cut.flat.consts]
        number = np.int32(index) if self._index else ()
        return self._run(snapshot, fed, arrays, number, self._consts[device])

    def shapes(self, fed: Sequence[Any], arrays: Sequence[Any]) -> Sequence[Any]:
        """The residuals' shapes and dtypes, for these arguments beside the snapshot."""
        residuals, _ = self._traced(fed, arrays).out_info
        return residuals

    def are_new(self, fed: Sequence[Any], arrays: Sequence[Any]) -> Sequence[Any]:
        """Which residuals are arrays that nobody else has, for these arguments.

        The others are arguments that came through, stand for several residuals, or are results.
        """
        traced = self._traced(fed, arrays)
        program = traced.jaxpr.jaxpr
        given = {*program.invars, *program.constvars}
        count = collections.Counter(map(id, program.outvars))
        are_new = [
            isinstance(out, jex.Var) and out not in given and count[id(out)] == 1
            for out in program.outvars
        ]
        residuals, _ = jax.tree.unflatten(jax.tree.structure(traced.out_info), are_new)
        return residuals

    def _traced(self, fed: Sequence[Any], arrays: Sequence[Any]) -> Any:
        stored = [v._value for v in self.variables]  # an ON_READ variable's: a copy per worker
        snapshot = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in stored]
        number = np.int32(0) if self._index else ()
        consts = [const for _, const in self._cut.flat.consts]
        return self._run.trace(tuple(snapshot), fed, arrays, number, consts)

    def _evaluate(self, snapshot: Any, fed: Any, arrays: Any, index: Any, consts: Any) -> Any:
        flat = self._cut.flat
        env = {slot: snapshot[place] for slot, place in self._snapshot}
        env.update(zip([slot for slot, _ in self._fed], fed, strict=True))
        env.update(dict.fromkeys(self._index, index))
        env.update(zip(flat.args, arrays, strict=True))
        env.update(zip([slot for slot, _ in flat.consts], consts, strict=True))
        evaluate_nodes(self._cut.at_worker, env)
        results = [jnp.asarray(value_of(env, atom)) for atom in self._cut.results]
        rows = {slot: plan.gradient.rows(env) for slot, plan in self._cut.rows.items()}
        return [rows.get(slot) or jnp.asarray(env[slot]) for slot in self._cut.residuals], results


def _placed(const: Any, device: Any) -> Any:
    """A constant as an array on a device: each of the host's would be put there in every call."""
    if isinstance(const, jax.Array):
        is_elsewhere = const.committed and const.devices() != {device}
        return jax.device_put(const, device) if is_elsewhere else const
    with jax.default_device(device):
        return jnp.asarray(const)
