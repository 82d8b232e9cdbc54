"""What `fit` does by itself: a line at the start, the report of staleness, the check of replicas.

The line says how the batch is shared, and how many updates an epoch makes. More replicas with the
same batch each make fewer updates per epoch; that is no fault, and easier to see in a line than in
a loss curve.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras.src.utils.io_utils import print_msg

from paceline.monitor.callback import StalenessReport
from paceline.monitor.divergence import DivergenceCheck


class Announcement(keras.callbacks.Callback):
    """Prints one line when training begins.

    Args:
        strategy: the strategy that trains the model.
        batch: examples of a batch, where `fit` was told.
    """

    def __init__(self, strategy: Any, batch: int | None) -> None:
        super().__init__()
        self._strategy = strategy
        self._batch = batch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keras calls this once it knows the number of steps."""
        if self._strategy.uses_messages:
            workers = self._strategy.cluster.workers
            who = "1 worker" if workers == 1 else f"{workers} workers"
            parts, whose = [who, f"pace {self._strategy.pace!r}"], "batch"
        else:
            parts, whose = [f"{self._strategy.num_replicas_in_sync} replicas"], "global batch"
        if self._batch is not None:
            parts.append(f"{whose} {self._batch}")
        params: dict[str, Any] = self.params or {}
        if (steps := params.get("steps")) is not None:
            parts.append(f"{steps} updates per epoch")
        optimizer: Any = self.model.optimizer  # pyright: ignore[reportOptionalMemberAccess]
        rate = float(np.asarray(optimizer.learning_rate))
        print_msg(", ".join([*parts, f"learning rate {rate:g}"]))


def announce(arguments: dict[str, Any], strategy: Any, is_fed_arrays: bool) -> None:
    """Adds to the callbacks of `fit` what comes by itself, before those that were given.

    That is the announcement; for workers that push the report; for replicas the check that their
    copies agree, which comes first so that no callback saves a model whose copies differ.

    Args:
        arguments: those of `fit`; changed in place.
        strategy: the strategy that trains the model.
        is_fed_arrays: whether `x` is arrays, so that `batch_size` counts.
    """
    given = arguments.get("callbacks") or []
    if isinstance(given, keras.callbacks.Callback):
        given = [given]
    if not isinstance(given, (list, tuple)):
        return
    verbose = arguments.get("verbose", "auto")
    added: list[Any] = []
    has_replicas = not strategy.uses_messages and strategy.num_replicas_in_sync > 1
    has_copies = has_replicas and not strategy.keeps_one_copy
    if has_copies and not any(isinstance(c, DivergenceCheck) for c in given):
        added.append(DivergenceCheck())
    if verbose != 0 and (strategy.uses_messages or has_replicas):
        batch = (arguments.get("batch_size") or 32) if is_fed_arrays else None
        added.append(Announcement(strategy, batch))
    if strategy.uses_messages and not any(isinstance(c, StalenessReport) for c in given):
        added.append(StalenessReport(print_table=verbose in ("auto", 1)))
    if added:
        arguments["callbacks"] = [*added, *given]
