"""An embedding whose table a strategy may divide over its servers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import keras

from paceline.errors import InvalidArgument, Unsupported
from paceline.store import sharding
from paceline.strategies.default import default_strategy, get_strategy
from paceline.training import separable
from paceline.variables import rows
from paceline.variables.adoption import adopt
from paceline.variables.sharded import ShardedVariable

if TYPE_CHECKING:
    from collections.abc import Sequence

_STRATEGY = "_paceline_strategy"  # in a layer's __dict__


class Embedding(keras.layers.Embedding):
    """keras.layers.Embedding whose table lies in shards under a partitioner.

    Made or built in the scope of a `ParameterServerStrategy` with a `variable_partitioner` that
    asks for several shards, `embeddings` is a `ShardedVariable`. Its shards are the layer's
    weights, each with slots of its own; a step reads rows of them, and only rows travel back.
    Otherwise it is Keras's layer.

    Args:
        *args, **kwargs: as for keras.layers.Embedding.

    Semantics:
        tf.keras.layers.Embedding under tf.distribute's ParameterServerStrategy. The initializer
        draws the whole table, so that it does not depend on the number of shards, unless it takes
        `partition_shape` and `partition_offset`. What Keras saves holds the table whole, and can be
        loaded into any number of shards. Deviations: a constraint or regularizer that does not act
        on each shard as on the whole, such as a norm over all rows, keeps the table whole, with a
        warning; ids out of range raise in code that is not compiled.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Remembers the scope: a model may build its layers long after it."""
        layer = super().__new__(cls, *args, **kwargs)
        layer.__dict__[_STRATEGY] = _current()
        return layer

    # The table -------------------------------------------------------------------------------

    def build(self, input_shape: Any = None) -> None:
        """Makes the table, whole or in shards."""
        strategy = _current() or self.__dict__.get(_STRATEGY)
        num_shards = 1
        if not self.built and strategy is not None and not self.quantization_mode:
            num_shards = self._num_shards(strategy)
        if num_shards == 1:
            super().build(input_shape)
            return
        shape, dtype = (self.input_dim, self.output_dim), self.variable_dtype
        initializer: Any = self.embeddings_initializer
        self._embeddings = sharding.divided(
            functools.partial(initializer, shape, dtype=dtype),
            num_shards,
            constructor=functools.partial(self._new_shard, strategy),
            name="embeddings",
            dtype=dtype,
            shape=shape,
        )
        for i, shard in enumerate(self._embeddings):
            shard._name = f"embeddings_part_{i}"  # some optimizers name slots after it
        self.built = True
        if self.lora_rank:
            self.enable_lora(self.lora_rank)

    def _num_shards(self, strategy: Any) -> int:
        shape = (self.input_dim, self.output_dim)
        num_shards = strategy.num_shards(shape, self.variable_dtype)
        if num_shards == 1:
            return 1
        acts_on_shards = separable.check(
            self.embeddings_constraint, self.embeddings_regularizer, self.output_dim, self.name
        )
        return num_shards if acts_on_shards else 1

    def _new_shard(self, strategy: Any, *, initial_value: Any, name: str, dtype: Any) -> Any:
        """What `add_weight` makes, with another place among the names."""
        shard: Any = keras.Variable(
            lambda shape, dtype: jnp.asarray(initial_value, dtype),
            shape=tuple(initial_value.shape),
            dtype=dtype,
            name=name,
        )
        adopt(shard, strategy, owner=self)
        shard.regularizer = self.embeddings_regularizer
        shard.constraint = self.embeddings_constraint
        self._track_variable(shard)
        return shard

    @property
    def _shards(self) -> ShardedVariable | None:
        table = self.__dict__.get("_embeddings")
        return table if isinstance(table, ShardedVariable) else None

    # Calls -----------------------------------------------------------------------------------

    def call(self, inputs: Any) -> Any:
        """Looks up rows, each in the shard that has it."""
        table = self._shards
        if table is None:
            return super().call(inputs)
        ids: Any = keras.ops.convert_to_tensor(inputs, sparse=False)
        if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
            ids = keras.ops.cast(ids, "int32")
        ids = jnp.where(ids < 0, ids + self.input_dim, ids)  # as Keras counts on JAX
        found = rows.lookup(table.variables, ids, table.name, fill_value=jnp.nan)
        if self.lora_enabled:
            change = keras.ops.take(self.lora_embeddings_a, ids, axis=0)
            change = keras.ops.matmul(change, self.lora_embeddings_b)
            scale: Any = self.lora_alpha  # set: so is the rank
            found = found + (scale / self.lora_rank) * change
        return keras.ops.cast(found, self.compute_dtype)

    # Weights from outside --------------------------------------------------------------------

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the weights: one array per weight, or one for the whole table."""
        table, others = self._shards, self.weights
        if table is not None:
            others = others[len(table.variables) :]
            if len(weights) == 1 + len(others):
                weights = [*table.divided(_fitting(weights[0], table)), *weights[1:]]
        super().set_weights(weights)

    def load_own_variables(self, store: Any) -> None:
        """Loads what Keras saved, of a table in any number of shards."""
        table = self._shards
        if table is None:
            super().load_own_variables(store)
            return
        if len(store.keys()) != 1:
            raise InvalidArgument(
                "An embedding is loaded from what Keras saved of one: a table. Received: "
                f"{len(store.keys())} arrays for {self.name!r}. Load a table that is not quantized."
            )
        table.assign(_fitting(store["0"], table))
        if self.lora_enabled:  # what was saved is the sum
            for factor in (self.lora_embeddings_a, self.lora_embeddings_b):
                factor.assign(keras.ops.zeros(factor.shape))

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """Quantizes a table that is whole (keras.layers.Embedding.quantize).

        Raises:
            Unsupported: the table is in shards.
        """
        if self._shards is not None:
            raise Unsupported(
                "A table in shards is trained, and not quantized. Received: quantize of "
                f"{self.name!r}, which has {len(self._shards.variables)} shards. Save the model "
                "and load it outside of the scope."
            )
        # Keras refuses subclasses, which may compute something else.
        is_checked = type_check and type(self) is not Embedding
        super().quantize(mode, type_check=is_checked, config=config)


# Saved models name the class that plain Keras has, too.
Embedding.__module__ = "keras.layers"


def _current() -> Any:
    strategy = get_strategy()
    return None if strategy is default_strategy() else strategy


def _fitting(value: Any, table: ShardedVariable) -> Any:
    if tuple(value.shape) != table.shape:
        raise InvalidArgument(
            f"A table is set from one of its shape. Received: shape {tuple(value.shape)} for "
            f"{table.name!r} of shape {table.shape}."
        )
    return value
