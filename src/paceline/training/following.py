"""How a Keras model and what it is compiled with come to follow a strategy."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras

from paceline.errors import InvalidType
from paceline.program import context
from paceline.strategies.creation import Creation
from paceline.strategies.default import default_strategy
from paceline.training.losses import adopt_loss
from paceline.training.optimizers import adopt_optimizer
from paceline.variables.adoption import adopt

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRATEGY = "_paceline_strategy"  # in a model's __dict__


def follow(target: Any, strategy: Any) -> Any:
    """The implementation of `Strategy.distribute`: `target` itself, following `strategy`.

    Raises:
        InvalidType: neither a Keras model nor an optimizer.
        ContextError: it has variables of another strategy.
    """
    from paceline.training.model import TrainsOnReplicas  # that module needs this one

    if isinstance(target, keras.optimizers.Optimizer):
        adopt_optimizer(target)
        for variable in target.variables:
            adopt(variable, strategy, owner=target)
        return target
    if not isinstance(target, keras.Model):
        raise InvalidType(
            "strategy.distribute takes a keras.Model or a keras.optimizers.Optimizer. Received: "
            f"{target!r} of type {type(target).__name__}. For data use "
            "strategy.experimental_distribute_dataset."
        )
    TrainsOnReplicas.adopt(target)
    set_strategy(target, strategy)
    target.train_function = target.test_function = target.predict_function = None
    if strategy is not default_strategy():
        adopt_model(target, strategy)
    return target


def set_strategy(model: Any, strategy: Any) -> None:
    """Remembers the strategy that the model follows."""
    model.__dict__[_STRATEGY] = strategy


def strategy_of(model: Any) -> Any:
    """The strategy that `fit` of this model follows, or None for plain Keras.

    That is the one in whose scope the model was built. A model built outside of every scope
    follows the scope it is used in, or the one it was compiled in.
    """
    plain = (None, default_strategy())
    strategy = model.__dict__.get(_STRATEGY)
    if strategy not in plain:
        return strategy
    frame = context.current()
    if frame is not None and frame.replica is None and frame.strategy not in plain:
        return frame.strategy
    return _home_of_compiled(model)


def _home_of_compiled(model: Any) -> Any:
    optimizer = getattr(model, "optimizer", None)
    tracker = getattr(model, "_loss_tracker", None)
    for owner in (optimizer, tracker):
        for variable in [] if owner is None else owner.variables:
            placement = getattr(variable, "placement", None)
            if placement is not None and placement.home is not None:
                return placement.home
    return None


def adopt_model(model: Any, strategy: Any) -> None:
    """Makes everything the model holds follow `strategy`: variables, optimizer, losses, metrics."""
    for layer in model._flatten_layers():
        for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
            adopt(variable, strategy, owner=layer)
        for seeds in layer._seed_generators:
            adopt(seeds.state, strategy, owner=seeds)
    for variable in [*model.variables, *model.metrics_variables]:
        adopt(variable, strategy)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        adopt_optimizer(optimizer)
        for variable in optimizer.variables:
            adopt(variable, strategy, owner=optimizer)
    compiled = getattr(model, "_compile_loss", None)
    for entry in [] if compiled is None else compiled._flat_losses or []:
        adopt_loss(entry.loss)


@contextlib.contextmanager
def without_distribution() -> Iterator[None]:
    """Hides an open scope from Keras's data path, which would ask it for layouts."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, Creation):
        yield
        return
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)
