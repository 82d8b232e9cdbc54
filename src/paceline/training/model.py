"""`Model` and `Sequential` whose fit, evaluate and predict follow a strategy.

Keras's own loops run; what they call per batch is replaced (`runner`), and the state stays in the
variables, so that callbacks can read and assign it at any time.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import keras
from keras.src.models.functional import Functional as KerasFunctional
from keras.src.models.model import functional_init_arguments

from paceline.errors import ContextError, InvalidArgument
from paceline.program import context
from paceline.strategies.default import default_strategy, get_strategy
from paceline.training import following, replica_step
from paceline.training.announcing import announce
from paceline.training.feeding import feed, is_arrays
from paceline.training.message_runner import MessageRunner
from paceline.training.runner import Runner
from paceline.training.twins import Mixin, become_twin

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.training.replica_step import Kind


class TrainsOnReplicas(Mixin):
    """Mixin over a Keras model: steps run on the replicas of its strategy.

    Semantics:
        tf.distribute with Keras. Batches are global; a short, uneven or empty replica batch counts
        by its examples. Logs of every batch are those of all replicas.
    """

    @functools.wraps(keras.Model.fit)
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return self._loop("train", super().fit, args, kwargs)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return self._loop("test", super().evaluate, args, kwargs)

    @functools.wraps(keras.Model.predict)
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        return self._loop("predict", super().predict, args, kwargs)

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        return self._on_batch("train", super().train_on_batch, args, kwargs)

    @functools.wraps(keras.Model.test_on_batch)
    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        return self._on_batch("test", super().test_on_batch, args, kwargs)

    @functools.wraps(keras.Model.predict_on_batch)
    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        return self._on_batch("predict", super().predict_on_batch, args, kwargs)

    def _on_batch(self, kind: Kind, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Makes one step; what it returns is of this batch, and who calls may reuse the arrays."""
        self._settle(kind)
        self.__dict__.setdefault("_paceline_fed_arrays", {})[kind] = False
        self.__dict__["_paceline_awaits_steps"] = True
        try:
            with following.without_distribution():
                return call(*args, **kwargs)
        finally:
            self.__dict__["_paceline_awaits_steps"] = False

    def _settle(self, kind: Kind) -> None:
        """Waits for steps that are under way, as when a callback or an error began this loop.

        Raises:
            ContextError: a worker's function trains or evaluates, which is work for all workers.
        """
        strategy = self.distribute_strategy
        if not strategy.uses_messages:
            return
        if context.worker() is None:
            strategy.driver.join()
        elif kind != "predict":
            raise ContextError(
                "fit and evaluate hand out batches to workers, so they belong to the program that "
                f"coordinates. Received: a {kind} step of {self.name!r} in a function that runs "
                "on a worker. Schedule a function that makes one step by itself."
            )

    def _loop(self, kind: Kind, loop: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs one of Keras's loops, which do not know all datasets and stumble over empty ones."""
        arguments = inspect.signature(loop).bind(*args, **kwargs).arguments
        arguments.update(arguments.pop("kwargs", {}))
        self._settle(kind)
        self.__dict__.setdefault("_paceline_fed_arrays", {})[kind] = is_arrays(arguments.get("x"))
        strategy = self.distribute_strategy
        if kind == "train":
            announce(arguments, strategy, is_arrays(arguments.get("x")))
        feed(arguments, strategy.num_replicas_in_sync)
        runner = getattr(self, f"{kind}_function")
        if isinstance(runner, Runner):
            runner.has_run = False
        try:
            with following.without_distribution():
                result = loop(**arguments)
        except StopIteration as error:
            raise InvalidArgument(self._no_data_text()) from error
        except UnboundLocalError as error:
            if self._has_run(kind):
                raise
            raise InvalidArgument(self._no_data_text()) from error
        if kind == "test" and not self._has_run(kind):
            raise InvalidArgument(self._no_data_text())  # Keras would report a loss of 0
        return result

    def _has_run(self, kind: Kind) -> bool:
        runner = getattr(self, f"{kind}_function")
        return not isinstance(runner, Runner) or runner.has_run

    def _no_data_text(self) -> str:
        return (
            "There is no data: a loop over a dataset needs at least one batch. Received: data "
            f"without any for {self.name!r}. Check its length, and that a generator has not been "
            "read before."
        )

    @staticmethod
    def adopt(model: Any) -> None:
        """Gives a plain Keras model this mixin, in place."""
        become_twin(model, TrainsOnReplicas)

    @property
    def distribute_strategy(self) -> Any:
        """The strategy that the model follows (tf.keras.Model.distribute_strategy)."""
        return following.strategy_of(self) or default_strategy()

    def make_train_function(self, force: bool = False) -> Any:
        """Makes `train_function`; Keras calls this before it trains."""
        return self._make("train", force, super().make_train_function)

    def make_test_function(self, force: bool = False) -> Any:
        """Makes `test_function`; Keras calls this before it evaluates."""
        return self._make("test", force, super().make_test_function)

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes `predict_function`; Keras calls this before it predicts."""
        return self._make("predict", force, super().make_predict_function)

    def _make(self, kind: Kind, force: bool, plainly: Callable[..., Any]) -> Any:
        strategy = self._managing_strategy()
        if strategy is None:
            return plainly(force)
        if strategy is not default_strategy():
            following.adopt_model(self, strategy)
        name = f"{kind}_function"
        groups = replica_step.variables_of(self, kind)
        key = (strategy, [[id(variable) for variable in group] for group in groups])
        keys = self.__dict__.setdefault("_paceline_keys", {})
        is_made = isinstance(getattr(self, name), Runner)
        if force or not is_made or keys.get(kind) != key:
            is_by_messages = strategy.uses_messages and kind != "predict"
            make = MessageRunner if is_by_messages else Runner
            setattr(self, name, make(self, kind, strategy))
            keys[kind] = key
        return getattr(self, name)

    def _managing_strategy(self) -> Any:
        """The strategy whose replicas run the steps, or None where Keras's own functions do."""
        strategy = following.strategy_of(self)
        if strategy is not None:
            return strategy
        kinds: tuple[Kind, ...] = ("train", "test", "predict")
        is_tensorflows = any(replica_step.takes_only_data(self, kind) for kind in kinds)
        return default_strategy() if is_tensorflows else None

    def _get_jax_state(self, **groups: bool) -> tuple[Any, ...]:
        """The state lives in the variables: Keras's loops carry placeholders."""
        if self._managing_strategy() is None:
            return super()._get_jax_state(**groups)
        names = [name for name in groups if name != "purge_model_variables" and groups[name]]
        return (None,) * len(names)

    def jax_state_sync(self) -> None:
        """Where the state lives in the variables, only what is under way is waited for."""
        strategy = self._managing_strategy()
        if strategy is None:
            super().jax_state_sync()
        elif strategy.uses_messages and context.worker() is None:
            strategy.driver.join()

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        """What an epoch reports: by messages, a step's own logs are known after the loop's end."""
        for runner in (self.train_function, self.test_function):
            if isinstance(runner, MessageRunner):
                logs = runner.newer_than(logs)
        return super()._get_metrics_result_or_logs(logs)

    def _compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super()._compute_loss(*args, **kwargs)
        replica = context.replica_context()
        if replica is None or replica.local_examples != 0:
            return loss
        # A mean of no examples that a user's loss computed; the replica's share is 0.
        return jnp.where(jnp.isfinite(loss), loss, jnp.zeros_like(loss))


class Model(TrainsOnReplicas, keras.Model):
    """keras.Model following the strategy in whose scope it is built (see `TrainsOnReplicas`)."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes a functional model of `Model(inputs, outputs)`, as Keras does."""
        is_functional = cls is Model and functional_init_arguments(args, kwargs)
        instance = super().__new__(Functional if is_functional else cls, *args, **kwargs)
        following.set_strategy(instance, get_strategy())
        return instance

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        is_sequential = isinstance(self, keras.Sequential)
        if is_sequential or not functional_init_arguments(args, kwargs):
            super().__init__(*args, **kwargs)
            return
        # Keras would put its functional class among the bases of this class, for everyone.
        if not isinstance(self, KerasFunctional):
            own: Any = type(self)
            object.__setattr__(self, "__class__", _functional_form(own))
        KerasFunctional.__init__(self, *args, **kwargs)  # pyright: ignore[reportArgumentType]


class Functional(Model, KerasFunctional):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A model made from input and output tensors, following its strategy."""


class Sequential(Model, keras.Sequential):  # pyright: ignore[reportIncompatibleMethodOverride]
    """keras.Sequential following the strategy in whose scope it is built."""


@functools.cache
def _functional_form(cls: type) -> type:
    """A user's subclass of `Model`, for an object that is made from inputs and outputs."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, KerasFunctional), names)


# Saved models name the classes of plain Keras, where they can be loaded too.
Functional.__module__ = KerasFunctional.__module__
Sequential.__module__ = "keras"
