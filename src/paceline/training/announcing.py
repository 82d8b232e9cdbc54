"""What `fit` says at the start: how the batch is shared, and how many updates an epoch makes.

More replicas with the same batch each make fewer updates per epoch; that is no fault, and easier to
see in a line than in a loss curve.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras.src.utils.io_utils import print_msg


class Announcement(keras.callbacks.Callback):
    """Prints one line when training begins.

    Args:
        num_replicas: how many replicas share a batch.
        global_batch: examples of a batch, where `fit` was told.
    """

    def __init__(self, num_replicas: int, global_batch: int | None) -> None:
        super().__init__()
        self._num_replicas = num_replicas
        self._global_batch = global_batch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keras calls this once it knows the number of steps."""
        parts = [f"{self._num_replicas} replicas"]
        if self._global_batch is not None:
            parts.append(f"global batch {self._global_batch}")
        params: dict[str, Any] = self.params or {}
        if (steps := params.get("steps")) is not None:
            parts.append(f"{steps} updates per epoch")
        optimizer: Any = self.model.optimizer  # pyright: ignore[reportOptionalMemberAccess]
        rate = float(np.asarray(optimizer.learning_rate))
        print_msg(", ".join([*parts, f"learning rate {rate:g}"]))


def announce(arguments: dict[str, Any], num_replicas: int, is_fed_arrays: bool) -> None:
    """Adds the announcement to the callbacks among the arguments of `fit`."""
    callbacks = arguments.get("callbacks") or []
    is_list = isinstance(callbacks, (list, tuple, keras.callbacks.Callback))
    if num_replicas == 1 or arguments.get("verbose", "auto") == 0 or not is_list:
        return
    batch = (arguments.get("batch_size") or 32) if is_fed_arrays else None
    given = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    arguments["callbacks"] = [Announcement(num_replicas, batch), *given]
