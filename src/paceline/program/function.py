"""`paceline.function`: trace once, compile, and call with the variables' current values.

The function is traced into a step program with every Keras variable that it touches as input and,
where it is written, as output; XLA compiles the program and each call feeds it what the variables
hold and puts back what comes out. Buffers of written variables are donated.
"""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend import core as jex

from paceline.errors import ContextError, TraceError
from paceline.program import context, nest
from paceline.program.handover import handover
from paceline.program.scope import TraceScope, is_traced, is_variable
from paceline.program.stacking import stacked
from paceline.program.step import StepProgram, evaluate, trace_step
from paceline.types import PerReplica

if TYPE_CHECKING:
    from collections.abc import Callable

_MANY_TRACES = 8


class StepOfWorkers(Exception):
    """Raised where a function that is traced turns out to be a step of a strategy's workers.

    Args:
        strategy: the strategy; its `run_step` takes calls of the function.
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy)
        self.strategy = strategy


class Function:
    """A Python function that runs as one compiled program (tf.function's result).

    Arrays among the arguments, in any nest, are traced: a new shape or dtype means a new trace.
    Everything else (numbers, strings, None, objects) is part of the program: a new value means a
    new trace. Inside another `function`, a tape or a JAX transformation it is simply called.

    Args:
        python_function: the function.
    """

    def __init__(self, python_function: Callable[..., Any]) -> None:
        self.python_function = python_function
        self._derived: dict[Any, Function] = {}
        self._compiled: dict[Any, _Compiled] = {}
        self._of_workers: Callable[[], Any] = lambda: None
        functools.update_wrapper(self, python_function)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Makes methods work: `self` is a static argument."""
        if instance is None:
            return self
        bound = instance.__dict__.get(self._attribute) if hasattr(instance, "__dict__") else None
        # copy.copy of an instance copies this attribute, too.
        if bound is None or bound.python_function.__self__ is not instance:
            bound = Function(self.python_function.__get__(instance, owner))
            if hasattr(instance, "__dict__"):
                instance.__dict__[self._attribute] = bound
        return bound

    def __reduce__(self) -> Any:
        """Copies and pickles are made without the programs, which belong to the original."""
        method = self.python_function
        if isinstance(method, types.MethodType):
            return getattr, (method.__self__, method.__name__)
        return method.__qualname__

    @property
    def _attribute(self) -> str:
        return f"_paceline_function_{getattr(self.python_function, '__name__', 'call')}_{id(self)}"

    def derived(self, key: Any, make: Callable[[Callable[..., Any]], Any]) -> Function:
        """The function around this one that `make` gives for `key`, compiled once per key."""
        if key not in self._derived:
            self._derived[key] = Function(make(self.python_function))
        return self._derived[key]

    @property
    def num_traces(self) -> int:
        """How many programs were traced so far."""
        return len(self._compiled)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program for these arguments, tracing it if it is new.

        Raises:
            TraceError: Python code that depends on the value of a traced array.
        """
        if is_tracing():
            return self.python_function(*args, **kwargs)
        if (worker := context.worker()) is not None:
            return worker.execute(self, args, kwargs)
        if (strategy := self._of_workers()) is not None:
            return strategy.run_step(self, args, kwargs)
        replica = context.replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            return self._from_replica(replica, args, kwargs)
        frame = context.current()
        if frame is not None:
            args, kwargs = frame.strategy.stacked((args, kwargs))
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_whole)
        if any(isinstance(leaf, (PerReplica, dict)) for leaf in leaves):
            whole = nest.opened(tree.unflatten(map(_stacked, leaves)))
            leaves, tree = jax.tree.flatten(whole, is_leaf=is_variable)
        key = (tree, _frame_key(), *map(signature, leaves))
        compiled = self._compiled.get(key)
        if compiled is None:
            try:
                compiled = self._compiled[key] = _Compiled(self.python_function, leaves, tree)
            except StepOfWorkers as found:
                self._of_workers = weakref.ref(found.strategy)
                return found.strategy.run_step(self, args, kwargs)
            self._warn_of_many_traces()
        return compiled([leaf for leaf in leaves if is_array(leaf)])

    def _from_replica(self, replica: Any, args: Any, kwargs: Any) -> Any:
        """Called by eager replicas: they meet, and the compiled step runs for all of them."""
        return replica.merge_call(
            lambda strategy, *a, **k: strategy.run(self, args=a, kwargs=k), args, kwargs
        )

    def _warn_of_many_traces(self) -> None:
        if len(self._compiled) == _MANY_TRACES:
            warnings.warn(
                f"{self.__name__!r} has been traced {_MANY_TRACES} times. Every new shape, dtype "  # pyright: ignore[reportAttributeAccessIssue]
                "or Python value among its arguments costs a compilation; pass numbers that change "
                "as arrays, and keep batch shapes equal.",
                stacklevel=3,
            )


def function(python_function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compiles a function (tf.function); usable as decorator with and without arguments.

    Args:
        python_function: the function; it may read and assign variables, call `strategy.run`,
            open a `GradientTape`, and take and return nests.
        options: tf.function's options (`jit_compile`, `reduce_retracing`, `input_signature`, ...);
            accepted and ignored, everything is compiled by XLA.

    Semantics:
        tf.function. Python side effects happen while tracing only. `if`, `while` and `for` on
        traced values are not rewritten (no AutoGraph): use `jax.lax.cond`, `jnp.where` or
        `jax.lax.fori_loop`. Collectives and `apply_gradients` may stand in nested functions.
    """
    if python_function is None:
        return lambda fn: Function(fn)
    return python_function if isinstance(python_function, Function) else Function(python_function)


class _Compiled:
    """One traced and compiled form of a function."""

    def __init__(self, python_function: Callable[..., Any], leaves: list[Any], tree: Any) -> None:
        self._static = [leaf for leaf in leaves if not is_array(leaf)]  # keeps ids in keys alive
        scope = TraceScope()
        self._program = program = trace_call(python_function, leaves, tree, scope)
        written = {id(variable) for variable in program.writes}
        self._only_read = [v for v in program.reads if id(v) not in written]
        self._home = _home_of(program, scope)
        places = {id(v): i for i, v in enumerate([*program.writes, *self._only_read])}
        order = [places[id(variable)] for variable in program.reads]

        def run(written: list[Any], only_read: list[Any], arrays: list[Any], consts: Any) -> Any:
            storages = [*written, *only_read]
            step = evaluate(program, [storages[i] for i in order], arrays, consts)
            try:
                next(step)
            except StopIteration as stop:
                results = stop.value
                token = jnp.zeros((), bool)  # ready when the step is; nobody donates it
                return results[: len(program.writes)], results[len(program.writes) :], token
            raise ContextError(
                "Replicas meet only inside strategy.run(...). Received: a collective in a "
                "paceline.function outside of it."
            )

        run.__name__ = getattr(python_function, "__name__", "function")
        self._run = jax.jit(run, donate_argnums=0, out_shardings=self._shardings())
        self._consts = [self._placed(const) for const in program.consts]

    def __call__(self, arrays: list[Any]) -> Any:
        with handover:
            if self._home is not None:
                self._home.note_access()
            return self._dispatch(arrays)

    def _dispatch(self, arrays: list[Any]) -> Any:
        program = self._program
        written = [self._own_storage(variable) for variable in program.writes]
        only_read = [self._storage(variable) for variable in self._only_read]
        if self._home is not None:
            arrays = [self._placed(array) for array in arrays]
        new, results, token = self._run(written, only_read, arrays, self._consts)
        if self._home is not None and self._home.backpressure is not None:
            self._home.backpressure.admit(token)
        for variable, value in zip(program.writes, new, strict=True):
            kept = value
            if self._home is not None and self._home.keeps_one_copy:
                kept = variable.placement.place(value)
            variable._value = kept
            variable.__dict__["_owned"] = kept
        return program.restore(results)

    def _shardings(self) -> Any:
        """Where new storages and the token go: XLA alone would put a constant on one device."""
        if self._home is None:
            return None
        same = self._home.sharding(False)
        stacked = [
            getattr(getattr(variable, "placement", None), "is_stacked", False)
            for variable in self._program.writes
        ]
        return [self._home.sharding(is_stacked) for is_stacked in stacked], None, same

    def _storage(self, variable: Any) -> Any:
        value = variable._value
        if self._home is not None and not _is_on(value, self._home):
            value = self._home.place(value)
            if not self._home.keeps_one_copy:
                variable._value = value
        return value

    def _own_storage(self, variable: Any) -> Any:
        """What the variable holds, in a buffer that nobody else can see, to be donated."""
        value = variable._value
        is_owned = value is not None and variable.__dict__.get("_owned") is value
        if is_owned and (self._home is None or _is_on(value, self._home)):
            return value  # what the last step left: in its place, and seen by nobody
        return jnp.copy(self._storage(variable))

    def _placed(self, array: Any) -> Any:
        if self._home is None or not isinstance(array, jax.Array) or not array.committed:
            return array
        return array if _is_on(array, self._home) else self._home.place(array)


def trace_call(
    python_function: Callable[..., Any], leaves: list[Any], tree: Any, scope: TraceScope
) -> StepProgram:
    """Traces a call of `python_function` under `scope`.

    Args:
        python_function: the function.
        leaves, tree: its arguments `(args, kwargs)`, flattened; arrays among them are traced.
        scope: a new scope.

    Raises:
        TraceError: Python code that depends on the value of a traced array.
    """

    def call(*arrays: Any) -> Any:
        remaining = iter(arrays)
        filled = [next(remaining) if is_array(leaf) else leaf for leaf in leaves]
        args, kwargs = nest.closed(jax.tree.unflatten(tree, filled))
        return python_function(*args, **kwargs)

    avals = [jax.ShapeDtypeStruct(x.shape, _dtype(x)) for x in leaves if is_array(x)]
    try:
        return _without_leaks(trace_step(call, avals, scope))
    except jax.errors.TracerBoolConversionError as error:
        raise TraceError(
            _trace_text("a Python condition (if, while, and, or, assert) on", error)
        ) from error
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        raise TraceError(_trace_text("Python code that needs the number behind", error)) from error
    except jax.errors.UnexpectedTracerError as error:
        raise TraceError(
            _trace_text(
                "a value kept by an earlier call (a side effect on a list, attribute or "
                "global), used as",
                error,
            )
        ) from error


def _without_leaks(program: StepProgram) -> StepProgram:
    leaked = [const for const in program.consts if is_traced(const)]
    if leaked:
        raise jax.errors.UnexpectedTracerError(f"leaked placeholder {leaked[0]}")
    return program


def _trace_text(what: str, error: Exception) -> str:
    detail = str(error).split("\n", 1)[0]
    return (
        "A paceline.function is traced once with placeholders for its arrays, so their values are "
        f"not known to Python. Received: {what} a traced array. Use jnp.where, jax.lax.cond or "
        "jax.lax.fori_loop, return values instead of storing them, or call the function without "
        f"paceline.function while debugging. JAX says: {detail}"
    )


def _home_of(program: StepProgram, scope: TraceScope) -> Any:
    """The strategy that the program's variables and runs belong to, or the current one, if any.

    Raises:
        ContextError: they belong to several, whose devices no one program can use.
    """
    found: dict[Any, str] = {}
    for variable in program.reads:
        placement = getattr(variable, "placement", None)
        if placement is not None and placement.home is not None:
            found.setdefault(placement.home, f"variable {variable.path!r}")
    for strategy in scope.strategies:
        found.setdefault(strategy, "a strategy.run")
    if len(found) > 1:
        uses = " and ".join(f"{use} of {strategy!r}" for strategy, use in found.items())
        raise ContextError(
            "Mixing strategies: a paceline.function is one program, for the devices of one "
            f"strategy. Received: a function with {uses}. Give each strategy a function of its "
            "own, and pass arrays between them."
        )
    frame = context.current()
    if not found and frame is not None and getattr(frame.strategy, "mesh", None) is not None:
        return frame.strategy
    return next(iter(found), None)


def _is_on(array: Any, home: Any) -> bool:
    return array.sharding.device_set == home.device_set


def is_tracing() -> bool:
    """Whether this code is being traced."""
    with jex.take_current_trace() as trace:
        return type(trace).__name__ != "EvalTrace"


def is_array(leaf: Any) -> bool:
    """Whether `leaf` is an argument that is traced."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _is_whole(leaf: Any) -> bool:
    return is_variable(leaf) or (isinstance(leaf, PerReplica) and leaf.array is None)


def _stacked(leaf: Any) -> Any:
    return stacked(leaf) if isinstance(leaf, PerReplica) else leaf


def _dtype(array: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(array.dtype)


def signature(leaf: Any) -> Any:
    """What of an argument a program depends on: shape and dtype, or what it is."""
    if is_array(leaf):
        return leaf.shape, leaf.dtype
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), id(leaf)
    if type(leaf) in (float, complex):
        return type(leaf), repr(leaf)  # 0.0 and -0.0 are equal, and NaN is not even itself
    return type(leaf), id(leaf) if isinstance(leaf, keras.Variable) else leaf


def _frame_key() -> Any:
    frame = context.current()
    if frame is None:
        return None
    return frame.strategy, frame.replica is None, frame.component
