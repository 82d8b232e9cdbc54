"""The strategy outside every scope, and the functions that ask for the current one."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import keras

from paceline.errors import ContextError
from paceline.program import context
from paceline.program.context import Frame
from paceline.strategies.base import Strategy, StrategyScope
from paceline.strategies.creation import Creation


class _DefaultScope(StrategyScope):
    def __enter__(self) -> Strategy:
        if context.current() is not None:
            raise ContextError(
                "The default strategy's scope must not nest inside another strategy's. Received: "
                f"a scope of the default strategy under {get_strategy()!r}. Leave the other "
                "scope first."
            )
        return self._strategy

    def __exit__(self, *error: object) -> None:
        return None


class DefaultStrategy(Strategy):
    """One replica wherever JAX puts it. Reached by `get_strategy()`, not made by users."""

    def __init__(self) -> None:
        super().__init__((None,))

    def scope(self) -> StrategyScope:
        """Returns a scope that changes nothing; it cannot be entered inside another one."""
        return _DefaultScope(self)

    def place(self, value: Any) -> Any:
        """Leaves the placement to JAX."""
        return value

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Returns the very same dataset."""
        return dataset

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise ContextError("The default strategy cannot be copied. Use get_strategy().")

    def __repr__(self) -> str:
        return "DefaultStrategy()"


@functools.cache
def default_strategy() -> DefaultStrategy:
    """The one default strategy of the process."""
    return DefaultStrategy()


def get_strategy() -> Strategy:
    """The current strategy, or the default one (tf.distribute.get_strategy)."""
    frame = context.current()
    return default_strategy() if frame is None else frame.strategy


def has_strategy() -> bool:
    """Whether a strategy other than the default one is current (tf.distribute.has_strategy)."""
    frame = context.current()
    return frame is not None and frame.strategy is not default_strategy()


def in_cross_replica_context() -> bool:
    """Whether the code runs across replicas (tf.distribute.in_cross_replica_context)."""
    frame = context.current()
    return frame is not None and frame.replica is None


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Makes `strategy` current until further notice; None restores the default.

    Raises:
        ContextError: called inside a `with strategy.scope()` block.
    """
    frame = context.current()
    if frame is not None and not frame.is_global:
        raise ContextError(
            "experimental_set_strategy must not be called inside a scope. Received: "
            f"{strategy!r} inside the scope of {frame.strategy!r}. Leave the scope first."
        )
    context.set_global(None if strategy is None else Frame(strategy, is_global=True))
    keras.distribution.set_distribution(
        Creation(strategy) if strategy is not None and strategy.mirrors_variables else None
    )
