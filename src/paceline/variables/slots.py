"""Which variables of an optimizer belong to the shards of one table, and how they are saved as one.

An optimizer knows shards as variables of their own, and has a slot for each. Saved by their places
in its lists, the slots of everything that comes after a table would move with its number of shards.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHARD = "_shard"  # in a variable's __dict__


@dataclasses.dataclass(frozen=True)
class Shard:
    """What a variable knows of the larger one that it is a shard of.

    Attributes:
        table: an object that the shards of one table share.
        index: the shard's place.
        count: how many shards there are.
    """

    table: object
    index: int
    count: int


def mark_shards(variables: Sequence[Any]) -> None:
    """Lets variables know that they are the shards of one table, in this order."""
    table = object()
    for i, variable in enumerate(variables):
        variable.__dict__[_SHARD] = Shard(table, i, len(variables))


def places(variables: Sequence[Any]) -> list[tuple[int, ...]]:
    """The places of variables that are one table, in the order of its shards; the others alone.

    In the order in which the tables would stand here if they were whole. A table of which not all
    shards are here counts as separate variables.
    """
    shards: dict[object, dict[int, int]] = {}
    for place, variable in enumerate(variables):
        if (shard := _shard(variable)) is not None:
            shards.setdefault(shard.table, {})[shard.index] = place
    found = []
    for place, variable in enumerate(variables):
        shard = _shard(variable)
        own = {} if shard is None else shards[shard.table]
        if shard is None or len(own) < shard.count:
            found.append((place,))
        elif min(own.values()) == place:
            found.append(tuple(own[i] for i in range(shard.count)))
    return found


@dataclasses.dataclass(frozen=True)
class Slots:
    """What one of an optimizer's lists holds for one variable, or for the shards of one table.

    Attributes:
        entries: variables, or None where the list has none for them.
        variables: what they are for.
    """

    entries: tuple[Any, ...]
    variables: tuple[Any, ...]

    @property
    def are_of_shards(self) -> bool:
        """Whether there is one for each of several shards."""
        return len(self.entries) > 1 and all(slot is not None for slot in self.entries)

    @property
    def are_rows(self) -> bool:
        """Whether, one after the other, they are what the list would hold for the whole table."""
        pairs = zip(self.entries, self.variables, strict=True)
        is_alike = len({slot.shape[1:] for slot in self.entries}) == 1
        return is_alike and all(slot.shape[:1] == own.shape[:1] for slot, own in pairs)

    @property
    def are_alike(self) -> bool:
        """Whether all have one shape."""
        return len({slot.shape for slot in self.entries}) == 1


def per_table(optimizer: Any, held: Any) -> list[Slots] | None:
    """One of an optimizer's lists, with what it holds for the shards of a table put together.

    Args:
        optimizer: an optimizer of Keras.
        held: what one of its attributes holds.

    Returns:
        In the order of `places`; None where `held` is no list of slots, or the optimizer has no
        table in shards.
    """
    variables = getattr(optimizer, "_trainable_variables", None) or ()
    all_of_it = (variables, getattr(optimizer, "_variables", None))
    is_slots = (
        isinstance(held, list)
        and not any(held is other for other in all_of_it)
        and len(held) == len(variables)
        and all(entry is None or isinstance(entry, keras.Variable) for entry in held)
    )
    if not is_slots or all(_shard(variable) is None for variable in variables):
        return None
    return [
        Slots(tuple(held[i] for i in group), tuple(variables[i] for i in group))
        for group in places(variables)
    ]


def per_table_in(held: Any) -> list[Slots] | None:
    """Like `per_table`, for the list of variables that a layer holds, and may train."""
    if not any(_shard(entry) is not None for entry in held):
        return None
    groups = [tuple(held[i] for i in group) for group in places(held)]
    return [Slots(group, group) for group in groups]


def as_saved(optimizer: Any) -> list[tuple[Any, ...]] | None:
    """All variables of an optimizer, in the order in which they are saved for whole tables.

    Returns:
        The slots of one table together, in the order of its shards, and all others alone. None
        without a table in shards, and where slots of one are no rows of a larger slot.
    """
    groups: dict[int, tuple[Any, ...]] = {}
    for one in _with_inner(optimizer):
        for held in vars(one).values():
            for slots in per_table(one, held) or ():
                if not slots.are_of_shards:
                    continue
                if not slots.are_rows:
                    return None
                groups.update((id(slot), slots.entries) for slot in slots.entries)
    if not groups:
        return None
    found, seen = [], set()
    for variable in optimizer.variables:
        if id(variable) not in seen:
            found.append(groups.get(id(variable), (variable,)))
            seen.update(map(id, found[-1]))
    return found


def _shard(variable: Any) -> Shard | None:
    return getattr(variable, "__dict__", {}).get(_SHARD)


def _with_inner(optimizer: Any) -> Iterator[Any]:
    yield optimizer
    inner = [*getattr(optimizer, "optimizers", ()), getattr(optimizer, "inner_optimizer", None)]
    for one in inner:
        if one is not None:
            yield from _with_inner(one)
