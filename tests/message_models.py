"""Models under the strategies whose workers push, and plain Keras as their oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import paceline as tf

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 8


def parameter_servers(workers: int = 3, **options: Any) -> Any:
    """A strategy with that many workers, all on one device: one compilation serves them all."""
    cluster = tf.cluster.Local(workers, devices=["cpu:0"], deadline=60.0, grace=20.0)
    return tf.distribute.ParameterServerStrategy(cluster=cluster, **options)


def central_storage(workers: int = 2, **options: Any) -> Any:
    """Workers on devices of their own, and the variables on the first one."""
    devices = [f"cpu:{i}" for i in range(workers)]
    return tf.distribute.experimental.CentralStorageStrategy(devices, **options)


STRATEGIES: dict[str, Callable[..., Any]] = {
    "parameter servers": parameter_servers,
    "central storage": central_storage,
}


def compiled(
    strategy: Any,
    build: Callable[[Any], Any],
    compile_args: Callable[[Any], dict[str, Any]],
) -> Any:
    """`build(k)` made and compiled in the scope of `strategy`; None: by plain Keras."""
    keras.utils.set_random_seed(7)  # a layer like Dropout draws its seed when it is made
    if strategy is None:
        model = build(keras)
        model.compile(**compile_args(keras))
        return model
    with strategy.scope():
        model = build(tf.keras)
        model.compile(**compile_args(tf.keras))
    return model


def history_of(model: Any, *data: Any, **fit: Any) -> dict[str, Any]:
    """The history of a fit from a fixed seed, without what only asynchronous training reports."""
    fit = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0} | fit
    keras.utils.set_random_seed(3)
    history = model.fit(*data, **fit).history
    own = ("mean_staleness", "steps_per_second")
    return {name: np.float32(values) for name, values in history.items() if name not in own}


def evaluated(model: Any, *data: Any, **options: Any) -> dict[str, Any]:
    """What evaluate returns, by name."""
    options = {"batch_size": BATCH, "verbose": 0} | options
    results = model.evaluate(*data, return_dict=True, **options)
    return {name: np.float32(value) for name, value in results.items()}
