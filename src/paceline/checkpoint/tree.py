"""Names for all state that objects hold, by where it is: `model/layers/0/kernel`.

Keras's own variable paths hold numbers that depend on what else the process made ("dense_1"), so
state is named by attributes, keys and indices on the way from the checkpoint. What is reached on
several ways is stored once; the other ways are kept as aliases, so that objects that are put
together in another way still find it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import keras

from paceline.checkpoint.leaves import (
    CopiesLeaf,
    Leaf,
    ShardsLeaf,
    ValueLeaf,
    VariableLeaf,
    is_value,
)
from paceline.errors import InvalidArgument, InvalidType
from paceline.variables import slots
from paceline.variables.per_worker import PerWorkerVariable
from paceline.variables.sharded import ShardedVariable

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIABLES = (keras.Variable, ShardedVariable, PerWorkerVariable)
_KERAS_OBJECTS = (
    keras.Layer,
    keras.Metric,
    keras.Loss,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
)
# Keras's own lists of what an object's attributes hold: looked at last, for what is in no
# attribute that can be walked (a set, an object of the user's).
_TRACKED = (
    "_layers",
    "_metrics",
    "_seed_generators",
    "_trainable_variables",
    "_non_trainable_variables",
    "_variables",
)
# The functional model inside a Sequential has the same layers under other numbers.
_SKIPPED = ("_tracker", "_functional", "_operations", "_nodes")


class Group:
    """A checkpoint as the tree sees it.

    Attributes:
        root: an object whose state is named as if it were the group's own, or None.
        members: objects by name.
    """

    root: Any
    members: dict[str, Any]


@dataclasses.dataclass
class State:
    """All state that was found.

    Attributes:
        leaves: by name.
        aliases: other names of an object, each with the name it has in `leaves`.
        objects: every Keras object on the way, with its name.
    """

    leaves: dict[str, Leaf] = dataclasses.field(default_factory=dict)
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)
    objects: list[tuple[str, Any]] = dataclasses.field(default_factory=list)


def state_of(name: str, item: Any) -> State:
    """Names all state that a group, a Keras object or a nest of them holds.

    Args:
        name: the name of `item` itself; "" for a checkpoint.
        item: where to look.

    Raises:
        InvalidType: an object that a checkpoint cannot hold.
        InvalidArgument: two keys of a dict that read alike.
    """
    walk = _Walk()
    walk.visit(name, item)
    return walk.state


class _Walk:
    def __init__(self) -> None:
        self.state = State()
        self._names: dict[int, str] = {}  # of every object seen, by id
        self._alive: list[Any] = []  # an id is unique while its object is alive

    def visit(self, name: str, item: Any) -> None:
        """Names the state of an object that was given to the checkpoint, at any depth."""
        if isinstance(item, _VARIABLES):
            self._add_variable(name, item, None)
        elif isinstance(item, _KERAS_OBJECTS):
            self._visit_keras_object(name, item)
        elif not isinstance(item, Group | dict | list | tuple):
            raise _unsupported(name, item)
        elif not self._is_known(name, item):
            if isinstance(item, Group) and item.root is not None:
                self.visit(name, item.root)
            held = item.members if isinstance(item, Group) else item
            for key, value in _entries(held):
                self._visit_entry(joined(name, key), held, key, value)

    def _visit_entry(self, name: str, holder: Any, key: Any, value: Any) -> None:
        if value is None:  # a place that is not filled yet
            return
        if not is_value(value):
            self.visit(name, value)
            return
        if isinstance(holder, tuple):
            raise InvalidType(
                "A checkpoint replaces numbers and arrays in what holds them, and a tuple cannot "
                f"be changed. Received: {value!r} at {name!r}. Use a list or a dict, or a variable."
            )
        self._add(name, ValueLeaf(holder, key))

    def _visit_keras_object(self, name: str, item: Any) -> None:
        if self._is_known(name, item):
            return
        self.state.objects.append((name, item))
        if isinstance(item, keras.Model) and _has_numbered_layers(item):
            self._visit_held(joined(name, "layers"), item.layers, item)
        attributes = vars(item)
        for attribute in sorted(attributes, key=lambda key: (key.startswith("_"), key)):
            if attribute not in _SKIPPED and attribute not in _TRACKED:
                public = attribute.lstrip("_")
                shown = attribute if public in attributes and public != attribute else public
                self._visit_held(joined(name, shown), attributes[attribute], item)
        for attribute in _TRACKED:
            # An optimizer's trainable variables are the model's.
            is_own = not isinstance(item, keras.optimizers.Optimizer) or attribute == "_variables"
            for i, held in enumerate(attributes.get(attribute) or ()) if is_own else ():
                if id(held) not in self._names:
                    self._visit_held(joined(joined(name, attribute), i), held, item)

    def _visit_held(self, name: str, held: Any, owner: Any) -> None:
        """What a Keras object holds: variables and Keras objects count, all else is its config."""
        if isinstance(held, _VARIABLES):
            self._add_variable(name, held, owner)
        elif isinstance(held, _KERAS_OBJECTS):
            self._visit_keras_object(name, held)
        elif isinstance(held, dict | list | tuple) and not self._is_known(name, held):
            for key, value in _held_entries(held, owner):
                if isinstance(value, slots.Slots):
                    self._add_shards(joined(name, key), value, owner)
                else:
                    self._visit_held(joined(name, key), value, owner)

    def _add_variable(self, name: str, variable: Any, owner: Any) -> None:
        if self._is_known(name, variable):
            return
        if isinstance(variable, ShardedVariable):
            shards = tuple(variable)
            self._add_shards(name, slots.Slots(shards, shards), owner)
        elif isinstance(variable, PerWorkerVariable):
            self._add(name, CopiesLeaf(name, variable, owner))
            self._is_known(name, variable.copies)
        else:
            self._add(name, VariableLeaf(name, variable, owner))

    def _add_shards(self, name: str, held: slots.Slots, owner: Any) -> None:
        if any(id(entry) in self._names for entry in held.entries):
            return  # wherever else they are held, they are saved already
        self._add(name, ShardsLeaf(name, held.entries, owner, held.are_rows))
        for entry in held.entries:
            self._is_known(name, entry)

    def _add(self, name: str, leaf: Leaf) -> None:
        if name in self.state.leaves:
            raise InvalidArgument(
                "Every value in a checkpoint needs a name of its own. Received: two values named "
                f"{name!r}. Rename one of the keys."
            )
        self.state.leaves[name] = leaf

    def _is_known(self, name: str, item: Any) -> bool:
        known = self._names.get(id(item))
        if known is None:
            self._names[id(item)] = name
            self._alive.append(item)
            return False
        if known != name:
            self.state.aliases.setdefault(name, known)
        return True


def joined(name: str, key: Any) -> str:
    """The name of what `name` holds under `key`."""
    part = str(key).replace("%", "%25").replace("/", "%2F") or "%"
    return f"{name}/{part}" if name else part


def _entries(held: Any, is_strict: bool = True) -> Iterator[tuple[Any, Any]]:
    if not isinstance(held, dict):
        yield from enumerate(held)
        return
    for key, value in held.items():
        if is_strict and not isinstance(key, str | int):
            raise InvalidType(
                "The keys of a dict in a checkpoint become names, so they are strings or integers. "
                f"Received: key {key!r} of type {type(key).__name__}."
            )
        yield key, value


def _held_entries(held: Any, owner: Any) -> Iterator[tuple[Any, Any]]:
    """What a Keras object's list or dict holds; the shards of a table count as one entry."""
    if isinstance(held, dict):
        yield from _entries(held, is_strict=False)
        return
    is_optimizers = isinstance(owner, keras.optimizers.Optimizer)
    groups = slots.per_table(owner, held) if is_optimizers else slots.per_table_in(held)
    if groups is None:
        yield from enumerate(held)
        return
    for i, group in enumerate(groups):
        if group.are_of_shards and (group.are_rows or group.are_alike):
            yield i, group
        elif len(group.entries) == 1:
            yield i, group.entries[0]
        else:
            yield from ((f"{i}.{part}", entry) for part, entry in enumerate(group.entries))


def _has_numbered_layers(model: keras.Model) -> bool:
    return isinstance(model, keras.Sequential) or hasattr(model, "_operations")


def _unsupported(name: str, item: Any) -> InvalidType:
    return InvalidType(
        "A checkpoint holds Keras models, layers, optimizers, metrics, seed generators and "
        "variables, numbers and arrays of numbers, other checkpoints, and dicts and lists of them. "
        f"Received: {name}={item!r} of type {type(item).__name__}. Pass the variables that it "
        "holds, in a dict; turn a random key into an array with jax.random.key_data."
    )
