"""The pieces of Keras's thread-local state that Paceline reads: the one place that names them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

import keras
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.utils.naming import auto_name

if TYPE_CHECKING:
    from collections.abc import Iterator


def active_scope() -> Any:
    """The innermost `keras.StatelessScope` of this thread, or None."""
    return get_stateless_scope()


@contextlib.contextmanager
def outside_of_scopes() -> Iterator[None]:
    """Suspends the active scope, so that variables can be made and initialised."""
    with inside_of_scope(None):
        yield


@contextlib.contextmanager
def inside_of_scope(scope: Any) -> Iterator[None]:
    """Makes a scope that was entered further out, or none, the active one."""
    previous = get_stateless_scope()
    global_state.set_global_attribute("stateless_scope", scope)
    try:
        yield
    finally:
        global_state.set_global_attribute("stateless_scope", previous)


def creator() -> Any:
    """The Keras object whose constructor or build runs now, where known."""
    stack = global_state.get_global_attribute("name_scope_stack") or []
    return next((scope.caller for scope in reversed(stack) if scope.caller is not None), None)


def is_inside_layer() -> bool:
    """Whether the code runs inside a Keras layer's call."""
    return global_state.get_global_attribute("current_call_ctx") is not None


def model_called_for_shapes() -> Any:
    """The Keras layer or model that is called without arrays, to find shapes, or None.

    Keras does this with a compiled model when it is first trained or evaluated.
    """
    call = global_state.get_global_attribute("current_call_ctx")
    return call.entry_layer if call is not None and in_symbolic_scope() else None


def model_being_compiled() -> Any:
    """The Keras model whose `compile` runs now, or None.

    It makes variables, but unlike `build` it leaves no trace of the model other than the call.
    """
    code, frame = _code_of_compile(), sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


@functools.cache
def _code_of_compile() -> Any:
    return inspect.unwrap(keras.Model.compile).__code__


def initialize_now(variable: Any) -> None:
    """Gives a variable the initial value that Keras puts off until the open scope ends."""
    waiting = global_state.get_global_attribute("uninitialized_variables") or []
    # Keras raises on a variable that it finds initialised when the scope ends.
    rest = [other for other in waiting if other is not variable]
    global_state.set_global_attribute("uninitialized_variables", rest)
    with outside_of_scopes():
        variable._deferred_initialize()


def new_name(prefix: str) -> str:
    """The name that Keras gives to the next object that has none, such as "variable_3"."""
    return auto_name(prefix)
