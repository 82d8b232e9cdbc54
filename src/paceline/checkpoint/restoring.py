"""Gives saved values to the state that exists, and to the rest when it comes to exist.

Keras makes much state late: a layer's at its first call, an optimizer's slots at its first step, a
model's metrics at its first batch. Until every saved value has found its place, the methods of the
unbuilt objects that make state are watched, object by object, and values are given out right after.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import keras

from paceline.checkpoint.leaves import (
    CopiesLeaf,
    ShardsLeaf,
    ValueLeaf,
    VariableLeaf,
    concretely,
)
from paceline.checkpoint.matching import match, unfit
from paceline.checkpoint.tree import state_of
from paceline.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from paceline.checkpoint.leaves import Leaf
    from paceline.checkpoint.manifest import Manifest
    from paceline.checkpoint.matching import Match
    from paceline.checkpoint.tree import Group, State

# The flag that says an object has its state, and the method that makes it.
_MAKERS = (("built", "build"), ("_built", "_build"), ("compiled", "compile"))


class Restoration:
    """One checkpoint on its way into the objects of a group.

    Args:
        path: where it was read from, for messages.
        group: what it is restored into.
        manifest, arrays: what was read.
    """

    def __init__(
        self, path: str, group: Group, manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]]
    ) -> None:
        self.path = path
        self._group = group
        self._manifest = manifest
        self._waiting = arrays
        self._aliases: dict[str, str] = {}
        self._written: dict[Any, Leaf] = {}  # by `_key`; holds the objects, so that ids stay theirs
        self._watched: dict[int, Any] = {}

    def start(self, *, is_strict: bool) -> None:
        """Gives out all values whose places exist.

        Raises:
            CheckpointError: a shape or dtype differs, nothing fits, or `is_strict` and a name on
                either side has no partner; nothing was changed.
        """
        state = state_of("", self._group)
        found = match(state, self._manifest)
        is_foreign = bool(state.leaves) and not found.found and not _unbuilt(state)
        is_short = is_strict and (found.missing or found.unexpected)
        if found.misfits or is_foreign or is_short:
            rule = "A checkpoint must fit the objects it is restored into; nothing was restored."
            raise unfit(self.path, found, rule)
        self._give_out(state, found)

    def go_on(self) -> None:
        """Gives out values whose places exist by now.

        Raises:
            CheckpointError: a shape or dtype differs.
        """
        if self._waiting:
            self._apply(state_of("", self._group))

    def cancel(self) -> None:
        """Forgets the values that wait: a later restore takes their place."""
        self._waiting = {}

    def check(self, *, may_be_partial: bool) -> None:
        """Checks that everything that exists has been restored.

        Args:
            may_be_partial: whether saved values may be left over.

        Raises:
            CheckpointError: it has not; every name is listed.
        """
        self.go_on()
        state = state_of("", self._group)
        found = match(state, self._manifest)
        left = [] if may_be_partial else [n for n in found.unexpected if n in self._waiting]
        lost = [name for name, leaf in state.leaves.items() if _key(leaf) not in self._written]
        if lost or left:
            what = "Everything that exists must be in the checkpoint" + (
                "." if may_be_partial else ", and everything in the checkpoint must exist."
            )
            raise unfit(self.path, type(found)(found.found, lost, left, ()), what)

    @property
    def has_written(self) -> bool:
        """Whether any value has found its place."""
        return bool(self._written)

    def _apply(self, state: State) -> None:
        state.aliases = self._aliases | state.aliases
        found = match(state, self._manifest)
        if found.misfits:
            rule = "A checkpoint must fit the objects it is restored into."
            raise unfit(self.path, found, rule)
        self._give_out(state, found)

    def _give_out(self, state: State, found: Match) -> None:
        self._aliases |= state.aliases
        given, owners = set(), {}
        for name, saved in found.found.items():
            leaf = state.leaves[name]
            if saved not in self._waiting or _key(leaf) in self._written:
                continue
            leaf.write(self._waiting[saved])
            self._written[_key(leaf)] = leaf
            given.add(saved)
            owner = getattr(leaf, "owner", None)
            if owner is not None:
                owners[id(owner)] = owner
        for saved in given:
            del self._waiting[saved]
        for owner in owners.values():
            _finalize(owner)
        if self._waiting:
            for name, item, method in _unbuilt(state):
                self._watch(name, item, method)

    def _watch(self, name: str, item: Any, method: str) -> None:
        if id(item) in self._watched:
            return
        self._watched[id(item)] = item

        def go_on() -> None:
            self._watched.pop(id(item), None)
            if self._waiting:
                self._apply(state_of(name, item))

        _after(item, method, go_on)


class RestoreStatus:
    """What `Checkpoint.restore` returns: checks of what was restored (tf.train's load status).

    Args:
        restoration: what is going on, or None where there was no checkpoint.
    """

    def __init__(self, restoration: Restoration | None) -> None:
        self._restoration = restoration

    def assert_consumed(self) -> RestoreStatus:
        """Checks that every saved value was restored, and everything that exists has one.

        Raises:
            CheckpointError: not so; the names are listed.
        """
        self._started().check(may_be_partial=False)
        return self

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Checks that everything that exists was restored; more may have been saved.

        Raises:
            CheckpointError: not so; the names are listed.
        """
        self._started().check(may_be_partial=True)
        return self

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Checks that something was restored.

        Raises:
            CheckpointError: nothing was.
        """
        restoration = self._started()
        restoration.go_on()
        if not restoration.has_written:
            raise CheckpointError(
                "At least one value must be restored. Received: "
                f"{restoration.path!r}, of which none has been. Restore it into objects made like "
                "those that were saved."
            )
        return self

    def expect_partial(self) -> RestoreStatus:
        """Says that values may be left over; Paceline does not warn of them in any case."""
        return self

    def initialize_or_restore(self, session: Any = None) -> None:
        """Restores what has come to exist since, where Paceline could not notice it by itself."""
        if self._restoration is not None:
            self._restoration.go_on()

    def _started(self) -> Restoration:
        if self._restoration is None:
            raise CheckpointError(
                "There is nothing to check where no checkpoint was restored. Received: "
                "restore(None). Check what latest_checkpoint returns first."
            )
        return self._restoration


def _key(leaf: Leaf) -> Any:
    if isinstance(leaf, ValueLeaf):
        return id(leaf.holder), leaf.key
    if isinstance(leaf, ShardsLeaf):
        return tuple(map(id, leaf.variables))
    return id(leaf.variable) if isinstance(leaf, VariableLeaf | CopiesLeaf) else id(leaf)


def _unbuilt(state: State) -> list[tuple[str, Any, str]]:
    return [(name, item, method) for name, item in state.objects for method in _makers(item)]


def _makers(item: Any) -> Iterator[str]:
    for flag, method in _MAKERS:
        if getattr(item, flag, True) is False and callable(getattr(item, method, None)):
            yield method


def _after(item: Any, method: str, then: Callable[[], None]) -> None:
    """Calls `then` once, after the next call of the object's method.

    Keras itself replaces `build` on every layer object, so objects of its classes allow this.
    """
    attributes = vars(item)
    original, replaced = getattr(item, method), attributes.get(method)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if attributes.get(method) is watched:
            if replaced is None:
                del attributes[method]
            else:
                attributes[method] = replaced
        then()
        return result

    attributes[method] = watched


def _finalize(owner: Any) -> None:
    """Lets a layer compute what it derives from its variables (keras.layers.Normalization)."""
    finalize = getattr(owner, "finalize_state", None)
    if isinstance(owner, keras.Layer) and callable(finalize):
        with concretely():
            finalize()
