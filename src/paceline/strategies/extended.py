"""The less common members of a strategy (tf.distribute.StrategyExtended)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import keras

from paceline.errors import ContextError, InvalidArgument
from paceline.program import context
from paceline.program.context import Frame
from paceline.types import Mirrored, PerReplica, ReduceOp
from paceline.variables.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class StrategyExtended:
    """Reached as `strategy.extended`.

    Args:
        strategy: the strategy.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Names of the devices that compute, in replica order."""
        return tuple(str(device) for device in self._strategy.devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Names of the devices that hold variables."""
        return tuple(str(device) for device in self._strategy.parameter_devices)

    def variable_created_in_scope(self, variable: Any) -> bool:
        """Whether `variable` belongs to this strategy by having been made under it."""
        return self._owns(variable) and not getattr(variable, "is_shared", False)

    def read_var(self, variable: Any) -> Any:
        """The value across replicas."""
        return variable.value

    @contextlib.contextmanager
    def colocate_vars_with(self, variable: Any) -> Iterator[None]:
        """Variables made in the block live where `variable` lives.

        Raises:
            ContextError: outside this strategy's scope.
            InvalidArgument: `variable` is not this strategy's.
        """
        frame = context.current()
        if frame is None or frame.strategy is not self._strategy:
            raise ContextError(
                "colocate_vars_with is used inside the strategy's scope. Received: a call outside. "
                "Write `with strategy.scope():` around it."
            )
        self._check_owned(variable)
        yield

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Calls `fn(component, *args)` on every component of `var`.

        Args:
            var: a variable of this strategy.
            fn: its assignments act on the one component, without aggregation.
            args, kwargs: per-replica values are matched to the components.
            group: return one mirrored value instead of a tuple of the components' results.

        Raises:
            InvalidArgument: the variable is not this strategy's, or a per-replica argument for a
                mirrored variable with an aggregation, whose copies would then differ.
        """
        replica = context.replica_context()
        kwargs = dict(kwargs or {})
        if replica is not None and replica.num_replicas_in_sync > 1:
            merged = replica.merge_call  # pyright: ignore[reportAttributeAccessIssue]
            return merged(
                lambda s, *a, **k: s.extended.update(var, fn, a, k, group), tuple(args), kwargs
            )
        self._check_owned(var)
        leaves = jax.tree.leaves((args, kwargs), is_leaf=_is_per_replica)
        is_split = any(_is_per_replica(leaf) and not isinstance(leaf, Mirrored) for leaf in leaves)
        if not getattr(var, "placement", Placement()).is_stacked:
            if is_split:
                raise InvalidArgument(
                    "The copies of a mirrored variable stay equal: update takes values that are "
                    f"the same on every replica. Received: a per-replica value for {var.path!r}. "
                    "Reduce it first with strategy.reduce, or use an ON_READ variable."
                )
            results = [self._update_one(var, fn, args, kwargs, 0)]
            results *= self._strategy.num_replicas_in_sync
        else:
            count = self._strategy.num_replicas_in_sync
            results = [self._update_one(var, fn, args, kwargs, i) for i in range(count)]
        if len(results) == 1:
            return results[0] if group else tuple(results)
        return Mirrored(results) if group else tuple(results)

    def _update_one(self, var: Any, fn: Any, args: Any, kwargs: Any, index: int) -> Any:
        args, kwargs = jax.tree.map(
            lambda leaf: leaf.values[index] if _is_per_replica(leaf) else leaf,
            (args, kwargs),
            is_leaf=_is_per_replica,
        )
        with context.entered(Frame(self._strategy, component=index)):
            return fn(var, *args, **kwargs)

    def reduce_to(
        self, reduce_op: ReduceOp | str, value: Any, destinations: Any, options: Any = None
    ) -> Any:
        """Reduces `value` over replicas; with one mesh every destination holds the result."""
        return self._strategy.reduce(reduce_op, value, axis=None)

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        """`reduce_to` for a list of pairs."""
        return [self.reduce_to(reduce_op, value, to) for value, to in value_destination_pairs]

    def value_container(self, component: Any) -> Any:
        """The distributed value a component belongs to; components here are plain arrays."""
        return component

    def _owns(self, variable: Any) -> bool:
        home = getattr(getattr(variable, "placement", None), "home", None)
        if self._strategy.devices == (None,):  # the default strategy, whose variables are plain
            return isinstance(variable, keras.Variable) and home is None
        return home is self._strategy

    def _check_owned(self, variable: Any) -> None:
        if not self._owns(variable):
            raise InvalidArgument(
                "The variable must belong to this strategy. Received: "
                f"{variable!r} under {self._strategy!r}. Make it inside the strategy's scope."
            )


def _is_per_replica(leaf: Any) -> bool:
    return isinstance(leaf, PerReplica)
