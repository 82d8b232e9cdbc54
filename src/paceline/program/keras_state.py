"""The pieces of Keras's thread-local state that Paceline reads: the one place that names them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope

if TYPE_CHECKING:
    from collections.abc import Iterator


def active_scope() -> Any:
    """The innermost `keras.StatelessScope` of this thread, or None."""
    return get_stateless_scope()


@contextlib.contextmanager
def outside_of_scopes() -> Iterator[None]:
    """Suspends the active scope, so that variables can be made and initialised."""
    scope = get_stateless_scope()
    global_state.set_global_attribute("stateless_scope", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("stateless_scope", scope)


def creator() -> Any:
    """The Keras object whose constructor or build runs now, where known."""
    stack = global_state.get_global_attribute("name_scope_stack") or []
    return next((scope.caller for scope in reversed(stack) if scope.caller is not None), None)
