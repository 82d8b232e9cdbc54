"""The base of all strategies: scopes, `run`, `reduce`, `gather`, and a home for variables."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from paceline.data.dataset import distribute, distribute_from_function
from paceline.errors import ContextError, InvalidArgument
from paceline.program import context
from paceline.program.context import Frame
from paceline.program.function import Function
from paceline.program.keras_state import active_scope
from paceline.program.scope import TraceScope, is_traced
from paceline.strategies import merging, reducing, running
from paceline.strategies.creation import Creation
from paceline.strategies.extended import StrategyExtended
from paceline.types import PerReplica, ReduceOp, ValueContext
from paceline.variables.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.program.backpressure import Backpressure


class Strategy:
    """How variables are placed and steps executed (tf.distribute.Strategy). Not made by users.

    Subclasses set `devices` (one per replica) and `mirrors_variables`.

    Args:
        devices: the replicas' devices, in replica order.
    """

    mirrors_variables = False
    uses_messages = False
    keeps_one_copy = False  # of a variable, on another device than the replicas'
    backpressure: Backpressure | None = None
    # The training layer is above this one; the package root, which knows both, sets this.
    _follow: Callable[[Any, Strategy], Any]

    def __init__(self, devices: tuple[Any, ...]) -> None:
        self.devices = devices

    # What it is ---------------------------------------------------------------------------------

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas take part in a step."""
        return len(self.devices)

    @property
    def cluster_resolver(self) -> Any:
        """The cluster resolver: None, these strategies run in one process."""
        return None

    @property
    def extended(self) -> StrategyExtended:
        """The less common members (tf.distribute.StrategyExtended)."""
        return StrategyExtended(self)

    def __copy__(self) -> NoReturn:
        raise ContextError(
            "A strategy cannot be copied: its variables belong to it. Received: copy.copy of "
            f"{self!r}. Pass the strategy itself."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Strategy:
        memo[id(self)] = self
        return self

    @property
    def num_components(self) -> int:
        """How many copies an ON_READ variable has: one per replica, or one per worker."""
        return self.num_replicas_in_sync

    # Scopes -------------------------------------------------------------------------------------

    def scope(self) -> StrategyScope:
        """Returns a context manager that makes this strategy current (tf.distribute's scope).

        Variables made inside belong to the strategy. The same strategy may be entered again; the
        manager may be used again after it exited.

        Raises:
            ContextError: on entering inside another strategy's scope, or inside `run`.
        """
        return StrategyScope(self)

    def _check_may_enter(self, what: str) -> None:
        frame = context.current()
        if frame is None:
            return
        if frame.replica is not None:
            raise ContextError(
                f"{what} needs cross-replica context. Received: a call inside strategy.run. Use "
                "get_replica_context().merge_call(fn) to run code across replicas from there."
            )
        if frame.strategy is not self:
            raise ContextError(
                f"Mixing strategies: {what} of {self!r} inside the scope of {frame.strategy!r}. "
                "Leave the other scope first."
            )

    @contextlib.contextmanager
    def _across(self, what: str) -> Iterator[None]:
        """Cross-replica context of this strategy, entered if it is not current."""
        self._check_may_enter(what)
        with context.entered(Frame(self)), self._creation():
            yield

    @contextlib.contextmanager
    def _creation(self) -> Iterator[None]:
        """Variables made in the block join this strategy."""
        if not self.mirrors_variables:
            yield
            return
        with Creation(self).scope():
            yield

    # Running ------------------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Calls `fn` once per replica (tf.distribute.Strategy.run).

        Args:
            fn: called in replica context. Inside a `paceline.function`, or being one itself, it is
                traced once and compiled for all replicas; otherwise it really runs once per
                replica, which is slow and shows everything.
            args, kwargs: nests; a per-replica value is replaced by the replica's own.
            options: accepted and ignored.

        Returns:
            The results leaf by leaf: per-replica values, or the bare object where all replicas
            returned the same one, and always with one replica.

        Raises:
            InvalidArgument: `args` is no tuple or list; the replicas return different structures.
            ContextError: called inside `run` or in another strategy's scope.
            ReplicaMismatch: the replicas meet a different number of times.
        """
        if not isinstance(args, (tuple, list)):
            raise InvalidArgument(
                "The positional arguments of run are a tuple or a list, as in args=(batch,). "
                f"Received: args={args!r}."
            )
        return self._run(fn, tuple(args), dict(kwargs or {}), "sum")

    def _run(
        self, fn: Callable[..., Any], args: Any, kwargs: Any, loss_rule: running.LossRule
    ) -> Any:
        with self._across("strategy.run"):
            self._check_parts((args, kwargs))
            if self.num_replicas_in_sync == 1:
                return running.run_inline(self, fn, args, kwargs, loss_rule)
            scope = active_scope()
            python_function = fn.python_function if isinstance(fn, Function) else fn
            if isinstance(scope, merging.AcrossScope):
                return merging.run_in_merge(scope, python_function, args, kwargs, loss_rule)
            if isinstance(scope, TraceScope):
                args, kwargs = self.stacked((args, kwargs))
                return running.run_compiled(self, python_function, args, kwargs, loss_rule, scope)
            if isinstance(fn, Function):
                return self._compiled(fn, loss_rule)(args, kwargs)
            return running.run_eager(self, fn, args, kwargs, loss_rule)

    def _check_parts(self, nest: Any) -> None:
        """Per-replica arguments must come from a strategy with as many replicas."""
        for leaf in jax.tree.leaves(nest, is_leaf=running.is_per_replica):
            if running.is_per_replica(leaf) and leaf.num_replicas != self.num_replicas_in_sync:
                raise InvalidArgument(
                    "A per-replica value has one part for each replica of the strategy. Received: "
                    f"a value with {leaf.num_replicas} parts under {self!r}. Use the dataset or "
                    "value that this strategy distributed."
                )

    def _compiled(self, fn: Function, loss_rule: running.LossRule) -> Function:
        """The `paceline.function` around `run(fn)`, one per function."""

        def around(python_function: Callable[..., Any]) -> Callable[..., Any]:
            def run(args: Any, kwargs: Any) -> Any:
                return self._run(python_function, args, kwargs, loss_rule)

            run.__name__ = getattr(python_function, "__name__", "run")
            return run

        return fn.derived((self, loss_rule), around)

    def _merge(self, replica: Any, merge_fn: Any, args: Any, kwargs: Any) -> Any:
        if self.num_replicas_in_sync == 1:
            with context.entered(Frame(self)):
                return merge_fn(self, *args, **kwargs)
        if replica.group is not None:
            return replica.group.merge((merge_fn, args, kwargs))
        return merging.merge_in_trace(replica, merge_fn, args, kwargs)

    # Values -------------------------------------------------------------------------------------

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Any) -> Any:
        """Reduces per-replica values to one (tf.distribute.Strategy.reduce).

        Args:
            reduce_op: SUM or MEAN, as member or string in any case.
            value: per-replica value, or a nest of them where `axis` is None.
            axis: None for elementwise over replicas, or the dim or dims to reduce as well; a MEAN
                then divides by the true number of elements, empty and short replicas included.

        Raises:
            InvalidArgument: an unknown op, shapes that differ, an axis that does not exist, or the
                SUM of a value that is not per replica.
            ContextError: called inside `run`.
        """
        op = ReduceOp.parse(reduce_op)
        with self._across("strategy.reduce"):
            return reducing.reduce(op, value, axis, self)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates per-replica values along `axis` in replica order.

        Raises:
            InvalidArgument: scalars, or shapes that differ in another dim.
            ContextError: called inside `run`, where `all_gather` of the replica context is meant.
        """
        frame = context.current()
        if frame is not None and frame.replica is not None:
            raise ContextError(
                "strategy.gather needs cross-replica context. Received: a call inside "
                "strategy.run. Use get_replica_context().all_gather(value, axis) there."
            )
        with self._across("strategy.gather"):
            return reducing.gather(value, axis, self)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The tuple of per-replica values; a nest gives a tuple of nests; others a 1-tuple.

        Arrays lie on their replicas' devices, so that JAX refuses to combine them; `reduce` and
        `gather` do, and NumPy.
        """
        if isinstance(value, Variable) and value.placement.home is self:
            return value.values
        leaves = jax.tree.leaves(value, is_leaf=running.is_per_replica)
        if not any(running.is_per_replica(leaf) for leaf in leaves):
            return (value,)
        return tuple(running.part_of(value, i) for i in range(self.num_replicas_in_sync))

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Calls `value_fn(ValueContext)` per replica and returns a nest of per-replica values."""
        count = self.num_replicas_in_sync
        values = [value_fn(ValueContext(i, count)) for i in range(count)]
        if count == 1 and not self.mirrors_variables:
            return values[0]
        for i, device in enumerate(self.devices):
            if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values[i])):
                values[i] = jax.tree.map(
                    lambda leaf, d=device: (
                        jax.device_put(leaf, d) if isinstance(leaf, jax.Array) else leaf
                    ),
                    values[i],
                )
        return jax.tree.map(lambda *leaves: PerReplica(leaves), *values)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Splits every global batch of `dataset` over the replicas.

        Args:
            dataset: anything re-iterable of batches (nests of arrays `[batch, ...]`), a generator,
                a Keras PyDataset, a Grain dataset, a tf.data dataset or a torch loader.
            options: tf's InputOptions; accepted.

        Returns:
            An iterable of nests of per-replica values, sizes within one of each other and the
            first replicas larger; no example is dropped.
        """
        return distribute(dataset, self, options)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> Any:
        """Feeds each replica its own batches from `dataset_fn(InputContext)`, in turn."""
        return distribute_from_function(dataset_fn, self, options)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def distribute(self, target: Any) -> Any:
        """Makes a plain Keras model or optimizer follow this strategy; returns the same object.

        Args:
            target: a `keras.Model` (built or not) or a `keras.optimizers.Optimizer`.

        Raises:
            InvalidType: neither a model nor an optimizer.
        """
        return self._follow(target, self)

    # What variables need of their home ----------------------------------------------------------

    @property
    def parameter_devices(self) -> tuple[Any, ...]:
        """The devices that hold variables."""
        return self.devices

    def make_variable(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `paceline.Variable(*args, **kwargs)` makes under this strategy.

        Args:
            make: makes one variable of these arguments.
            args, kwargs: the arguments.
        """
        return make(*args, **kwargs)

    def num_shards(self, shape: tuple[int, ...], dtype: Any) -> int:
        """In how many shards a variable of this shape and dtype is made under this strategy."""
        return 1

    def welcome(self, variable: Any) -> None:
        """Called when a variable has joined the strategy."""

    def note_access(self) -> None:
        """Called with the lock of `handover` held, before variables are read or written by
        anybody but workers; here nothing."""

    def settle(self) -> None:
        """Waits for what must come before a read or write across replicas; here nothing."""

    @property
    def device_set(self) -> set[Any]:
        """The devices that hold a variable."""
        return set(self.devices)

    def sharding(self, is_stacked: bool) -> Any:
        """How what a variable holds lies on the devices."""
        return SingleDeviceSharding(self.devices[0])

    def place(self, value: Any) -> Any:
        """Copies a value to the device of the only replica."""
        if is_traced(value):
            return value
        return jax.device_put(jnp.asarray(value), self.devices[0], may_alias=False)

    def store(self, value: Any) -> Any:
        """Puts what a variable holds where it lives."""
        return self.place(value)

    def place_stacked(self, value: Any) -> Any:
        """Puts row i of `[replica, ...]` on replica i."""
        return self.place(value)

    def join_stacked(self, parts: Sequence[Any]) -> Any:
        """Makes components one array `[component, ...]`."""
        return self.place(jnp.stack([jnp.asarray(part) for part in parts]))

    def stacked(self, nest: Any) -> Any:
        """Per-replica values in the form that a compiled step takes."""
        return nest


class StrategyScope:
    """The context manager of `Strategy.scope`."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._open: list[contextlib.ExitStack] = []

    def __enter__(self) -> Strategy:
        self._strategy._check_may_enter("strategy.scope()")
        stack = contextlib.ExitStack()
        stack.enter_context(context.entered(Frame(self._strategy)))
        stack.enter_context(self._strategy._creation())
        self._open.append(stack)
        return self._strategy

    def __exit__(self, *error: object) -> None:
        self._open.pop().close()
