"""The Keras callback that puts the measured staleness into logs, TensorBoard and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras.src.utils.io_utils import print_msg
from rich.console import Console

from paceline.monitor import tensorboard

if TYPE_CHECKING:
    import os

    from paceline.monitor.report import Report


class StalenessReport(keras.callbacks.Callback):
    """Reports what the strategy measured of every push.

    Adds `mean_staleness` and `steps_per_second` of the epoch to its logs, so that the progress bar,
    the history and callbacks after this one have them. At the end of training `report` is the
    report of the whole of it. Under a strategy that measures no staleness, because its replicas run
    in lockstep, it says so once and does nothing.

    Example:
        ```python
        model.fit(x, y, epochs=5, callbacks=[paceline.monitor.StalenessReport(log_dir="logs")])
        ```

    Args:
        log_dir: folder for TensorBoard; a report of each epoch is written to it.
        print_table: whether to print a table at the end of training.

    Raises:
        MissingExtra: `log_dir` is given and tensorboardX, of the extra `tensorboard`, is missing.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] | None = None, print_table: bool = True
    ) -> None:
        super().__init__()
        if log_dir is not None:
            tensorboard.load()  # better missed here than after the first epoch
        self._log_dir = log_dir
        self._print_table = print_table
        self._statistics: Any = None
        self._at_train_begin: Report | None = None
        self._at_epoch_begin: Report | None = None
        self._has_said_so = False
        self._writer: tensorboard.TensorBoardWriter | None = None
        self.report: Report | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Finds the strategy's statistics."""
        strategy = getattr(self.model, "distribute_strategy", None)
        self._statistics = getattr(strategy, "monitor", None)
        self.report = None
        if self._statistics is None:
            if not self._has_said_so:
                name = "without a strategy" if strategy is None else type(strategy).__name__
                print_msg(
                    "StalenessReport has nothing to report: training in lockstep has no staleness "
                    f"({name})."
                )
            self._has_said_so = True
            return
        self._at_train_begin = self._statistics.report()
        if self._log_dir is not None:
            self._close()  # a training that an error ended leaves its file open
            self._writer = tensorboard.TensorBoardWriter(self._log_dir)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes where the epoch begins."""
        if self._statistics is not None:
            self._at_epoch_begin = self._statistics.report()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds to the logs what was measured in the epoch."""
        if self._statistics is None or self._at_epoch_begin is None:
            return
        report = self._statistics.report().since(self._at_epoch_begin)
        if logs is not None:
            logs["mean_staleness"] = report.mean_staleness
            logs["steps_per_second"] = report.steps_per_second
        if self._writer is not None:
            self._writer.write(report, step=epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Prints the table and closes the event file."""
        if self._statistics is None or self._at_train_begin is None:
            return
        report = self._statistics.report().since(self._at_train_begin)
        self.report = report
        self._close()
        if self._print_table:
            Console().print(report.table())

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
