"""CheckpointManager: the numbered checkpoints of a run, of which it keeps the last ones."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.checkpoint import storage
from paceline.errors import CheckpointError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.checkpoint.checkpoint import Checkpoint

_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d+)")


class CheckpointManager:
    """Saves numbered checkpoints into a folder and removes old ones (tf.train.CheckpointManager).

    Args:
        checkpoint: what to save.
        directory: the folder; made when first needed.
        max_to_keep: how many to keep; None keeps all.
        checkpoint_name: the part of the names before the number.
        step_counter: with `checkpoint_interval`: a variable that counts steps.
        checkpoint_interval: save only when so many steps have passed since the last time.
        init_fn: called by `restore_or_initialize` where there is nothing to restore.

    Raises:
        InvalidArgument: a number below 1, or an interval without a counter.

    Semantics:
        tf.train.CheckpointManager. Deviations: what checkpoints there are is read from the folder,
        where only whole ones have a name, and not from a state file; checkpoints that were there
        before also count for `max_to_keep`; there is no `keep_checkpoint_every_n_hours`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None,
        *,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise InvalidArgument(
                "At least one checkpoint is kept. Received: "
                f"max_to_keep={max_to_keep!r}. Pass a positive number, or None to keep all."
            )
        if checkpoint_interval is not None and (checkpoint_interval < 1 or step_counter is None):
            raise InvalidArgument(
                "An interval is a positive number of steps of a counter. Received: "
                f"checkpoint_interval={checkpoint_interval!r}, step_counter={step_counter!r}."
            )
        self.checkpoint = checkpoint
        self._directory = os.fspath(directory)
        self._max_to_keep = max_to_keep
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._last_step: int | None = None

    @property
    def directory(self) -> str:
        """The folder."""
        return self._directory

    @property
    def checkpoint_interval(self) -> int | None:
        """The least number of steps between two checkpoints."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """Paths of the whole checkpoints in the folder, oldest number first."""
        return [path for _, path in _numbered(self._directory).get(self._name, [])]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the checkpoint with the highest number, or None."""
        return next(reversed(self.checkpoints), None)

    def save(self, checkpoint_number: int | None = None, check_interval: bool = True) -> str | None:
        """Saves the next checkpoint, and removes those beyond `max_to_keep`.

        Args:
            checkpoint_number: its number; default one more than that of the last one saved or
                restored.
            check_interval: whether to do nothing before `checkpoint_interval` steps have passed.

        Returns:
            Its path, or None where nothing was saved.

        Raises:
            CheckpointError: a checkpoint of this number exists; or it cannot be written.
        """
        step = None if self._step_counter is None else int(self._step_counter)
        if check_interval and not self._is_due(step):
            return None
        if checkpoint_number is None:
            checkpoint_number = self.checkpoint.save_counter + 1
        prefix = os.path.join(self._directory, self._name)
        path = self.checkpoint.save_number(prefix, int(checkpoint_number))
        self._last_step = step
        self._sweep(path)
        return path

    def restore_or_initialize(self) -> str | None:
        """Restores the latest checkpoint, or calls `init_fn` where there is none.

        Returns:
            The path of the checkpoint, or None.
        """
        latest = self.latest_checkpoint
        if latest is not None:
            self.checkpoint.restore(latest)
            self._last_step = None if self._step_counter is None else int(self._step_counter)
        elif self._init_fn is not None:
            self._init_fn()
        return latest

    def _is_due(self, step: int | None) -> bool:
        if self._interval is None or step is None or self._last_step is None:
            return True
        return step - self._last_step >= self._interval

    def _sweep(self, saved: str) -> None:
        storage.remove_leftovers(Path(self._directory))
        if self._max_to_keep is None:
            return
        others = [path for path in self.checkpoints if path != saved]
        for path in others[: max(0, len(others) + 1 - self._max_to_keep)]:
            storage.remove(path)


def latest_checkpoint(
    checkpoint_dir: str | os.PathLike[str], latest_filename: Any = None
) -> str | None:
    """The path of the latest checkpoint in a folder, or None (tf.train.latest_checkpoint).

    Args:
        checkpoint_dir: where numbered checkpoints were saved. Under one name the highest number is
            the latest; of several names, the one saved last.
        latest_filename: accepted and ignored: there is no state file.
    """
    last = [numbered[-1][1] for numbered in _numbered(os.fspath(checkpoint_dir)).values()]
    if len(last) < 2:
        return next(iter(last), None)
    return max(last, key=_saved_at)


def _numbered(directory: str) -> dict[str, list[tuple[int, str]]]:
    """The whole checkpoints in a folder by name, as sorted (number, path)."""
    found: dict[str, list[tuple[int, str]]] = {}
    try:
        entries = os.listdir(directory)
    except FileNotFoundError:
        return found
    for entry in entries:
        matched = None if entry.startswith(".") else _NUMBERED.fullmatch(entry)
        if matched is not None and storage.is_checkpoint(Path(directory, entry)):
            paths = found.setdefault(matched["name"], [])
            paths.append((int(matched["number"]), os.path.join(directory, entry)))
    return {name: sorted(paths) for name, paths in found.items()}


def _saved_at(path: str) -> int:
    try:
        return storage.read_manifest(path).saved_at_ns
    except CheckpointError:  # damaged: any other is better
        return -1
