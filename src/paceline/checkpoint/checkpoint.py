"""Checkpoint: saves what a run needs to go on, and restores it."""

from __future__ import annotations

import os
import threading
from typing import Any

import keras

from paceline.checkpoint import storage
from paceline.checkpoint.restoring import Restoration, RestoreStatus
from paceline.checkpoint.tree import Group, state_of
from paceline.errors import ContextError, InvalidArgument
from paceline.program import context
from paceline.program.keras_state import active_scope


class Checkpoint(Group):
    """Objects whose state is saved and restored together (tf.train.Checkpoint).

    The objects are attributes: `checkpoint.step += 1`, `checkpoint.model`. More can be set later.

    Args:
        root: an object whose state is named as if it were the checkpoint's own.
        objects: by name: Keras models, layers, optimizers, metrics and seed generators, variables,
            numbers, NumPy and JAX arrays, other checkpoints, and dicts and lists of these.

    Raises:
        InvalidType: an object that a checkpoint cannot hold.
        InvalidArgument: a name that the checkpoint needs for itself.

    Semantics:
        tf.train.Checkpoint. A variable is saved as one value, so a checkpoint does not depend on
        the number of replicas. Deviations: numbers and arrays can be saved, and are replaced in
        the checkpoint (`checkpoint.step`) or container that holds them; a checkpoint that exists
        is not overwritten unless asked; every array is checked against a digest before anything
        is restored, and a difference of shapes or dtypes raises at once. The vocabulary of a
        preprocessing layer is no variable and belongs to `model.save`.

    Example:
        checkpoint = paceline.train.Checkpoint(model=model, optimizer=optimizer, step=0)
        path = checkpoint.save("runs/one/ckpt")
        checkpoint.restore(path).assert_consumed()
    """

    root: Any
    members: dict[str, Any]
    save_counter: int

    def __init__(self, root: Any = None, **objects: Any) -> None:
        own = vars(self)
        own["root"], own["members"] = root, {}
        own["save_counter"] = 0
        own["_restoration"] = None
        own["_lock"] = threading.RLock()  # guards save_counter, _restoration and the objects' state
        for name, item in objects.items():
            self._check_name(name)
            self.members[name] = item
        state_of("", self)

    # The objects ------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        members = vars(self).get("members", {})
        if name in members:
            return members[name]
        raise AttributeError(f"{type(self).__name__} has no object {name!r}: {sorted(members)}")

    def __setattr__(self, name: str, item: Any) -> None:
        if name in vars(self) or name.startswith("_"):
            object.__setattr__(self, name, item)
            return
        self._check_name(name)
        is_new = name not in self.members
        self.members[name] = item
        restoration = vars(self)["_restoration"]
        if is_new and restoration is not None:
            restoration.go_on()

    def __delattr__(self, name: str) -> None:
        if name not in self.members:
            raise AttributeError(f"{type(self).__name__} has no object {name!r}.")
        del self.members[name]

    def _check_name(self, name: str) -> None:
        if name.startswith("_") or hasattr(type(self), name) or name in vars(self):
            raise InvalidArgument(
                "A name in a checkpoint must not start with an underscore or be one of the "
                f"checkpoint's own. Received: {name!r}. Choose another name."
            )

    # Saving -----------------------------------------------------------------------------------

    def save(self, file_prefix: str | os.PathLike[str]) -> str:
        """Saves the next numbered checkpoint, `<file_prefix>-<save_counter>`.

        Args:
            file_prefix: path and first part of the name; an existing folder means "ckpt" in it.

        Returns:
            The path to restore from.

        Raises:
            CheckpointError: that checkpoint exists, as when the run that wrote it was not
                restored, or another process saves it; or it cannot be written.
            InvalidArgument: a variable without one value across replicas.
            ContextError: called inside `run` or in a traced function.
        """
        prefix = os.fspath(file_prefix)
        if prefix.endswith(os.sep) or os.path.isdir(prefix):
            prefix = os.path.join(prefix, "ckpt")
        with self._lock:
            return self.save_number(prefix, self.save_counter + 1)

    def save_number(self, prefix: str, number: int) -> str:
        """Saves `<prefix>-<number>` and goes on counting from there; see `save`."""
        path = f"{prefix}-{number}"
        with self._lock:
            self._write(path, number, may_replace=False)
            self.save_counter = number
        return path

    def write(self, file_prefix: str | os.PathLike[str], *, overwrite: bool = False) -> str:
        """Saves a checkpoint at exactly this path, without a number.

        Args:
            file_prefix: the path.
            overwrite: whether to replace a checkpoint that is there.

        Returns:
            The path. For the exceptions see `save`.
        """
        path = os.fspath(file_prefix)
        with self._lock:
            self._write(path, self.save_counter, may_replace=overwrite)
        return path

    def _write(self, path: str, save_counter: int, *, may_replace: bool) -> None:
        _check_place("Checkpoint.save")
        if self._restoration is not None:
            self._restoration.go_on()
        state = state_of("", self)
        _synchronize(state.objects)
        arrays = {name: leaf.read() for name, leaf in state.leaves.items()}
        storage.write(path, arrays, state.aliases, save_counter, may_replace=may_replace)

    # Restoring --------------------------------------------------------------------------------

    def restore(
        self, save_path: str | os.PathLike[str] | None, *, strict: bool = False
    ) -> RestoreStatus:
        """Restores values now, and those of state that does not exist yet when it is made.

        Args:
            save_path: what `save` or `write` returned; None does nothing.
            strict: also raise, before anything is changed, when something that exists is not in
                the checkpoint or the other way round.

        Returns:
            A status with tf.train's checks; call `assert_consumed()` on it when all state exists.

        Raises:
            CheckpointError: there is no checkpoint, it is damaged or foreign, or a shape or dtype
                differs; nothing was changed, and all differences are listed.
            ContextError: called inside `run` or in a traced function.
        """
        return self._restore(save_path, is_strict=strict, with_counter=True)

    def read(self, save_path: str | os.PathLike[str]) -> RestoreStatus:
        """Restores what `write` wrote, and leaves `save_counter` as it is."""
        return self._restore(save_path, is_strict=False, with_counter=False)

    def _restore(
        self, save_path: str | os.PathLike[str] | None, *, is_strict: bool, with_counter: bool
    ) -> RestoreStatus:
        _check_place("Checkpoint.restore")
        if save_path is None:
            return RestoreStatus(None)
        path = os.fspath(save_path)
        manifest, arrays = storage.read(path)
        with self._lock:
            _synchronize(state_of("", self).objects)
            restoration = Restoration(path, self, manifest, arrays)
            restoration.start(is_strict=is_strict)
            if self._restoration is not None:
                self._restoration.cancel()
            self._restoration = restoration
            if with_counter:
                self.save_counter = manifest.save_counter
        return RestoreStatus(restoration)


def _check_place(what: str) -> None:
    if context.replica_context() is not None or context.component() is not None:
        raise ContextError(
            f"{what} needs cross-replica context. Received: a call inside strategy.run. Call it "
            "after run returned, or through get_replica_context().merge_call."
        )
    if active_scope() is not None:
        raise ContextError(
            f"{what} reads and writes files, and cannot be part of a traced function. Received: a "
            "call inside paceline.function or a Keras StatelessScope. Call it outside."
        )


def _synchronize(objects: list[tuple[str, Any]]) -> None:
    """Plain Keras's fit keeps the state out of the variables until it is asked for them."""
    for _, item in objects:
        if isinstance(item, keras.Model) and hasattr(item, "jax_state_sync"):
            item.jax_state_sync()
