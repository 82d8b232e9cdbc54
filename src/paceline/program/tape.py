"""`paceline.GradientTape`: tf.GradientTape's behaviour on JAX."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import keras
from jax.extend import core as jax_core

from paceline.errors import ContextError
from paceline.program import tape_arguments as arguments
from paceline.program.recording import Record, RecordingTrace, pullback
from paceline.program.tape_arguments import UnconnectedGradients
from paceline.program.tape_reads import VariableReads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

__all__ = ["GradientTape", "UnconnectedGradients", "is_recording", "notify_read"]

Unconnected = UnconnectedGradients | Literal["none", "zero"]


class _Active(threading.local):
    def __init__(self) -> None:
        self.tapes: list[GradientTape] = []
        # Closed traces to open again, at most as many as tapes were ever nested.
        self.traces: list[RecordingTrace] = []


_active = _Active()


def notify_read(variable: Any, raw_value: Any) -> None:
    """Tells the tapes active on this thread that `variable` was read as `raw_value`.

    Scopes and variables call this at each read, with the value before any autocast. The gradient
    with respect to the variable is the sum of the gradients with respect to all values it was
    read as.

    Args:
        variable: A Keras variable.
        raw_value: The array or tracer that stands for it from here on.
    """
    for tape in reversed(_active.tapes):
        tape._note_read(variable, raw_value)


def is_recording() -> bool:
    """Whether a tape records on this thread, so that buffers must not be donated."""
    return any(tape._recording for tape in _active.tapes)


class GradientTape:
    """Records operations for automatic differentiation.

    Operations that run on the same thread inside the `with` block are recorded; `gradient` then
    differentiates a result with respect to watched values: variables read inside the block
    (trainable ones by themselves, others after `watch`), and arrays given to `watch`. The tape
    works eagerly, under `jax.jit`, in a `paceline.function`, and inside `strategy.run`, where
    gradients are those of the replica. Functions with custom derivatives keep them, and
    control flow and jitted functions may be called inside.

    Example:
        ```python
        w = paceline.Variable(3.0)
        with paceline.GradientTape() as tape:
            loss = w * w
        tape.gradient(loss, w)  # 6.0
        ```

    Semantics: as tf.GradientTape, with these differences.

    * `gradient` runs the operations between sources and target again. Under `jit` the compiler
      merges them with the first run; eagerly the forward pass costs twice. Callbacks such as
      `jax.debug.print` do not run again, unless their results are used or they are inside a
      function with custom derivatives.
    * Values are matched by identity. Two plain Keras variables that hold the very same array get
      the same, total gradient (Paceline's variables always own a copy), and eagerly the result of
      an operation before the block that returned its argument itself, such as
      `jax.lax.stop_gradient`, is that argument.
    * A plain Keras variable read outside Paceline's scopes is known by the value it holds when
      `gradient` is called; assign to it after that, not between. `watched_variables` does
      not list it unless it was watched.
    * A result computed in the block is accepted as a source even if nothing it was computed from
      is watched, unless `watch_accessed_variables=False`.
    * An operation with a zero derivative, such as rounding, gives zeros rather than None.
    * A jitted function that closes over a variable must not be called from within a loop body
      or a custom derivative; this raises `Unsupported`. Replicas that run on threads of their own
      do not record on a tape that was opened outside `run`.

    Args:
        persistent: Whether `gradient` and `jacobian` may be called more than once. The record is
            kept until the tape is dropped, instead of until the first call.
        watch_accessed_variables: Whether trainable variables read in the block are watched. With
            False only operations on watched values are recorded, which takes less memory.

    Raises:
        InvalidType: An argument is not a bool.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        arguments.check_flag("persistent", persistent)
        arguments.check_flag("watch_accessed_variables", watch_accessed_variables)
        self._persistent = persistent
        self._watch_accessed = watch_accessed_variables
        self._record: Record | None = None
        self._released = False
        self._recording = False
        self._trace: RecordingTrace | None = None
        self._outer: Any = None
        self._reads = VariableReads(watch_accessed_variables)

    def __enter__(self) -> GradientTape:
        """Starts recording; entering again adds to the same record.

        Raises:
            ContextError: The tape is already entered.
        """
        if self._trace is not None:
            raise ContextError(
                "A GradientTape cannot be entered while it is active. Received: a second `with` on "
                "the tape inside its own block. Use a new GradientTape for a nested block."
            )
        self._start_recording()
        self._trace = _active.traces.pop() if _active.traces else RecordingTrace()
        self._trace.open(_current_trace(), self._recording_to)
        self._outer = jax_core.set_current_trace(self._trace)
        self._outer.__enter__()
        _active.tapes.append(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops recording and restores what was active before.

        Raises:
            ContextError: Another tape, or a JAX transformation, entered later is still active.
        """
        if self._trace is None or _current_trace() is not self._trace:
            raise ContextError(
                "GradientTapes are left in the reverse order of entering, on the thread that "
                "entered them. Received: the exit of a tape that is not the innermost one here. "
                "Nest `with` blocks instead of calling __enter__ and __exit__."
            )
        self._outer.__exit__(exc_type, exc, traceback)
        self._trace.close()
        _active.traces.append(self._trace)
        self._outer = self._trace = None
        self._recording = False
        _active.tapes.remove(self)

    def watch(self, tensor: Any) -> None:
        """Makes the tape differentiate with respect to `tensor` from here on.

        Args:
            tensor: An array, a variable, or a nested structure of them.

        Raises:
            ContextError: The tape was not entered, or its record is released.
            InvalidType: Something is neither a JAX array nor a Keras variable.
        """
        leaves = arguments.flatten(arguments.separated(tensor), "tensor")
        record = self._record or arguments.refuse_without_record("watch", self._released)
        for leaf in leaves:
            if not arguments.is_floating(leaf, "watched tensor"):
                continue
            if isinstance(leaf, keras.Variable):
                self._reads.watch(record, leaf)
            else:
                record.watch(leaf)

    def watched_variables(self) -> tuple[Any, ...]:
        """The watched variables, in the order in which they were first read or watched."""
        return self._reads.variables()

    @contextlib.contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Does not record the operations in this block.

        Raises:
            ContextError: The tape is not recording.
        """
        if not self._recording:
            arguments.refuse_not_recording("stop_recording")
        self._recording = False
        try:
            yield
        finally:
            if self._trace is not None:
                self._start_recording()

    def reset(self) -> None:
        """Forgets everything recorded and watched so far, and goes on recording.

        Raises:
            ContextError: The tape is not recording.
        """
        if not self._recording:
            arguments.refuse_not_recording("reset")
        self._record = None
        self._start_recording()

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Unconnected = UnconnectedGradients.NONE,
    ) -> Any:
        """Differentiates the sum of the elements of `target`.

        Called inside the block of a persistent tape, its operations are recorded as well; a tape
        that is not persistent stops recording.

        Args:
            target: A floating array or variable, or a nested structure; several are summed.
            sources: A watched array or a variable, or a nested structure of them. A sharded
                variable stands for the list of its shards.
            output_gradients: Gradients to start from, one per target (None for ones), each of the
                shape of its target. They are cast to the target's dtype.
            unconnected_gradients: What to return for a source that `target` does not depend on:
                None or zeros.

        Returns:
            One gradient, of the source's shape and dtype, or None, in the structure of `sources`.
            For complex values the convention is TensorFlow's: the conjugate of JAX's.

        Raises:
            ContextError: The tape recorded nothing, or it isn't persistent and was used before.
            InvalidType: A target or source is neither a JAX array nor a Keras variable.
            InvalidArgument: `unconnected_gradients` is unknown, or `output_gradients` do not fit.
        """
        mode = arguments.unconnected(unconnected_gradients)
        targets = arguments.flatten(target, "target")
        sources = arguments.separated(sources)
        flat_sources = arguments.flatten(sources, "sources")
        with self._differentiating("gradient") as record:
            targets = [self._reads.target_value(leaf) for leaf in targets]
            starts = arguments.cotangents(output_gradients, targets)
            floating = [arguments.is_floating(leaf, "target") for leaf in targets]
            targets = [leaf for leaf, keep in zip(targets, floating, strict=True) if keep]
            starts = [start for start, keep in zip(starts, floating, strict=True) if keep]
            pull = self._pull(record, targets, flat_sources)
            grads = pull(starts)
        filled = [
            jnp.zeros(leaf.shape, arguments.dtype_of(leaf))
            if grad is None and mode is UnconnectedGradients.ZERO
            else grad
            for grad, leaf in zip(grads, flat_sources, strict=True)
        ]
        return keras.tree.pack_sequence_as(sources, filled)

    def jacobian(
        self,
        target: Any,
        sources: Any,
        unconnected_gradients: Unconnected = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Differentiates every element of `target`.

        Args:
            target: A floating array or variable.
            sources: A watched array or a variable, or a nested structure of them.
            unconnected_gradients: What to return for a source that `target` does not depend on.
            parallel_iterations: Ignored; for compatibility.
            experimental_use_pfor: Whether all elements are differentiated at once (`jax.vmap`), or
                one after the other (`jax.lax.map`), which takes less memory.

        Returns:
            In the structure of `sources`, arrays of shape `target.shape + source.shape`, or None.

        Raises:
            ContextError: The tape recorded nothing, or it isn't persistent and was used before.
            InvalidType: The target or a source is neither a JAX array nor a Keras variable.
            InvalidArgument: `unconnected_gradients` is unknown.
        """
        del parallel_iterations
        mode = arguments.unconnected(unconnected_gradients)
        arguments.check_leaf(target, "target")
        sources = arguments.separated(sources)
        flat_sources = arguments.flatten(sources, "sources")
        shape = tuple(target.shape)
        size = math.prod(shape)

        def basis(dtype: Any) -> Any:
            return jnp.eye(size, dtype=dtype).reshape(size, *shape)

        with self._differentiating("jacobian") as record:
            rows = self._rows(record, target, flat_sources, basis, experimental_use_pfor)
            results: list[Any] = []
            for row, leaf in zip(rows, flat_sources, strict=True):
                full = (*shape, *leaf.shape)
                if row is not None:
                    results.append(row.reshape(full))
                elif mode is UnconnectedGradients.ZERO:
                    results.append(jnp.zeros(full, arguments.dtype_of(leaf)))
                else:
                    results.append(None)
        return keras.tree.pack_sequence_as(sources, results)

    def batch_jacobian(
        self,
        target: Any,
        source: Any,
        unconnected_gradients: Unconnected = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Differentiates every element of each example with respect to the same example.

        Args:
            target: A floating array of shape `[batch, ...]`, where `target[i]` depends on
                `source[i]` only.
            source: A watched array or a variable of shape `[batch, ...]`.
            unconnected_gradients: Checked and ignored: the result is never None, as in TensorFlow.
            parallel_iterations: Ignored; for compatibility.
            experimental_use_pfor: As in `jacobian`.

        Returns:
            An array of shape `target.shape + source.shape[1:]`, zeros if unconnected.

        Raises:
            ContextError: The tape recorded nothing, or it isn't persistent and was used before.
            InvalidType: The target or source is neither a JAX array nor a Keras variable.
            InvalidArgument: The shapes do not fit, or `unconnected_gradients` is unknown.
        """
        del parallel_iterations
        arguments.unconnected(unconnected_gradients)
        arguments.check_leaf(target, "target")
        arguments.check_leaf(source, "source")
        arguments.check_batch(target, source)
        shape, tail = tuple(target.shape), tuple(source.shape[1:])
        size = math.prod(shape[1:])

        def basis(dtype: Any) -> Any:
            eye = jnp.eye(size, dtype=dtype)[:, None]
            return jnp.broadcast_to(eye, (size, shape[0], size)).reshape(size, *shape)

        with self._differentiating("batch_jacobian") as record:
            (row,) = self._rows(record, target, [source], basis, experimental_use_pfor)
            if row is None:
                return jnp.zeros((*shape, *tail), arguments.dtype_of(source))
            return jnp.moveaxis(row, 0, 1).reshape(*shape, *tail)

    def _recording_to(self) -> Record | None:
        return self._record if self._recording else None

    def _start_recording(self) -> None:
        if self._record is None:
            self._record = Record(record_all=self._watch_accessed)
            self._reads = VariableReads(self._watch_accessed)
        self._recording = True

    @contextlib.contextmanager
    def _differentiating(self, method: str) -> Iterator[Record]:
        record = self._record or arguments.refuse_without_record(method, self._released)
        if not self._persistent:
            self._recording = False
        yield record
        if not self._persistent:
            self._record, self._released = None, True
            self._reads.release()

    def _note_read(self, variable: Any, raw_value: Any) -> None:
        record = self._recording_to()
        if record is not None:
            self._reads.note(record, variable, raw_value)

    def _pull(
        self, record: Record, targets: Sequence[Any], sources: Sequence[Any]
    ) -> Callable[[Sequence[Any]], list[Any]]:
        """A function from cotangents of `targets` to gradients of `sources` (None: unconnected)."""
        roots = [self._reads.roots(record, source) for source in sources]
        connected, pull = pullback(record, [root for some in roots for root in some], targets)
        keys = [{id(root.value) for root in some} & connected for some in roots]

        def gradients(starts: Sequence[Any]) -> list[Any]:
            found = pull([_conjugate(start) for start in starts])
            return [_total([_conjugate(found[key]) for key in some]) for some in keys]

        return gradients

    def _rows(
        self,
        record: Record,
        target: Any,
        sources: Sequence[Any],
        basis: Callable[[Any], Any],
        vectorize: bool,
    ) -> list[Any]:
        """The gradients of `sources` for each cotangent in `basis`, stacked (None: unconnected)."""
        value = self._reads.target_value(target)
        if not arguments.is_floating(value, "target"):
            return [None] * len(sources)
        pull = self._pull(record, [value], sources)
        if vectorize:
            return jax.vmap(lambda start: pull([start]))(basis(value.dtype))
        return jax.lax.map(lambda start: pull([start]), basis(value.dtype))


def _current_trace() -> Any:
    with jax_core.take_current_trace() as trace:
        return trace


def _conjugate(value: Any) -> Any:
    return jnp.conj(value) if jnp.iscomplexobj(value) else value


def _total(values: Sequence[Any]) -> Any:
    """The sum, or None of nothing."""
    return sum(values[1:], start=values[0]) if values else None
