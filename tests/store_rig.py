"""Runs the two halves of steps by hand: no threads, pushes overlap as a test says."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.cluster.local import Local
from paceline.cluster.steps import Step
from paceline.program import context
from paceline.program.context import Frame
from paceline.store.rules import Plain
from paceline.store.step_update import GroupUpdate, RuleStates, StepUpdate
from paceline.store.store import Push, Store
from paceline.strategies.parameter_server import ParameterServerStrategy
from paceline.variables.shelf import Shelf
from paceline.variables.worker_scope import WorkerScope

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.program.split import Cut
    from paceline.store.rules import UpdateRule
    from paceline.store.step_update import Merge

NUM_WORKERS = 4
HEAVY = {"dot_general", "conv_general_dilated", "scan", "while", "sort"}


@dataclasses.dataclass(frozen=True)
class Computed:
    """What one run of a worker half gave: the push on its way, and the step's result."""

    push: Push
    result: Any


class Rig:
    """A strategy's store, and workers that are moved by hand.

    Args:
        rule: how stale pushes are applied.
        servers: how many servers variables are divided over, in turn.
    """

    def __init__(self, rule: UpdateRule | None = None, *, servers: int = 1) -> None:
        self.strategy = ParameterServerStrategy(cluster=Local(NUM_WORKERS, servers))
        self.rule = rule or Plain()
        self.states = RuleStates(self.rule)
        self.store = Store(Shelf())
        self._sequence = 0

    def step(self, function: Callable[..., Any], *args: Any) -> Step:
        """Traces a step for arguments like these and cuts it."""
        leaves, tree = jax.tree.flatten((args, {}))
        with context.entered(Frame(self.strategy)):
            return Step(function, leaves, tree, WorkerScope(self.strategy), self.rule)

    def compute(self, step: Step, *args: Any, worker: int = 0) -> Computed:
        """Pulls and runs the worker half."""
        half = step.worker_half
        snapshot = self.store.pull(step.pulled)
        values = snapshot.values[: len(half.variables)]
        arrays = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args) if hasattr(leaf, "shape")]
        residuals, results = half(values, [], arrays, worker, jax.devices()[0])
        backups = step.backups(snapshot.values)
        update = StepUpdate(step.store_halves, residuals, backups, worker, self.states)
        self._sequence += 1
        push = Push(worker, 0, self._sequence, snapshot.version, update, None, step.examples)
        return Computed(push, step.result(results))

    @staticmethod
    def counted(push: Push, examples: int) -> Push:
        """The push, as one of so many examples."""
        return dataclasses.replace(push, examples=examples)

    def apply(self, *computed: Computed) -> None:
        """Applies pushes one by one, in this order."""
        for one in computed:
            self.store.apply(one.push.update, one.push.read_version)

    def apply_group(self, *computed: Computed, merge: Merge = "mean") -> None:
        """Applies pushes as one update."""
        version = self.store.version
        group = [(one.push, version - one.push.read_version) for one in computed]
        self.store.apply(GroupUpdate(group, merge), group[0][0].read_version)

    def run(self, step: Step, *args: Any, worker: int = 0) -> Any:
        """Computes and applies at once; returns the step's result."""
        computed = self.compute(step, *args, worker=worker)
        self.apply(computed)
        return computed.result

    def overlap(self, step: Step, *calls: tuple[Any, ...]) -> list[Any]:
        """Computes all calls on one snapshot, each by its own worker, then applies them in order.

        Returns:
            The results.
        """
        computed = [self.compute(step, *args, worker=k) for k, args in enumerate(calls)]
        self.apply(*computed)
        return [one.result for one in computed]


def f32(*values: Any) -> np.ndarray:
    """A float32 scalar of one number, a vector of several."""
    return np.asarray(values if len(values) > 1 else values[0], np.float32)


def num_bytes(arrays: Any) -> int:
    """Bytes of a nest of arrays or variables."""
    return sum(int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(arrays))


def primitives(nodes: Any) -> set[str]:
    """Names of the operations among a cut's nodes."""
    return {node.equation.primitive.name for node in nodes}


def cut_of(step: Step) -> Cut:
    """How the step was cut."""
    return step.worker_half._cut


def store_primitives(step: Step) -> set[str]:
    """Names of the operations that the store runs for a step."""
    cut = cut_of(step)
    return primitives([*cut.at_store, *(node for write in cut.writes for node in write.nodes)])
