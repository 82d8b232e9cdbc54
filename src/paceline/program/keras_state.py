"""The pieces of Keras's thread-local state that Paceline reads: the one place that names them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope
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
