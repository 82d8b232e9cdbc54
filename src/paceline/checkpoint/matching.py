"""Which saved array belongs to which leaf, and what does not fit."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from paceline.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from paceline.checkpoint.manifest import Manifest
    from paceline.checkpoint.tree import State

_MAX_SHOWN = 50


@dataclasses.dataclass(frozen=True)
class Match:
    """How the state that exists and the saved arrays fit together.

    Attributes:
        found: the saved name of each leaf that has one.
        missing: leaves without a saved array.
        unexpected: saved arrays without a leaf.
        misfits: leaves whose saved array has another shape or dtype, one line each.
    """

    found: Mapping[str, str]
    missing: Sequence[str]
    unexpected: Sequence[str]
    misfits: Sequence[str]


def match(state: State, manifest: Manifest) -> Match:
    """Finds the saved array of every leaf, by any of its names."""
    found: dict[str, str] = {}
    others = _aliases_by_name(state.aliases)
    for name in state.leaves:
        for candidate in _candidates(name, others):
            saved = _resolved(candidate, manifest.aliases)
            if saved in manifest.arrays:
                found[name] = saved
                break
    misfits = []
    for name, saved in found.items():
        info = manifest.arrays[saved]
        reason = state.leaves[name].misfit(info.shape, info.dtype)
        if reason is not None:
            misfits.append(f"{name}: {reason}")
    taken = set(found.values())
    return Match(
        found,
        [name for name in state.leaves if name not in found],
        [name for name in manifest.arrays if name not in taken],
        misfits,
    )


def unfit(path: str, found: Match, rule: str) -> CheckpointError:
    """The error for a checkpoint and objects that do not belong together, with every difference."""
    lines = [f"{rule} Received: {path!r}:"]
    parts = (
        ("of another shape or dtype", found.misfits),
        ("not in the checkpoint", found.missing),
        ("only in the checkpoint", found.unexpected),
    )
    for title, names in parts:
        if names:
            lines.append(f"  {title}: {_listed(names)}")
    lines.append("Restore it into objects made like those that were saved.")
    return CheckpointError("\n".join(lines))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_SHOWN])
    rest = len(names) - _MAX_SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown


def _aliases_by_name(aliases: Mapping[str, str]) -> dict[str, list[str]]:
    others: dict[str, list[str]] = {}
    for alias, name in aliases.items():
        others.setdefault(name, []).append(alias)
    return others


def _candidates(name: str, others: Mapping[str, Iterable[str]]) -> Iterator[str]:
    yield name
    for prefix, rest in _splits(name):
        for alias in others.get(prefix, ()):
            yield alias + rest


def _resolved(name: str, aliases: Mapping[str, str]) -> str:
    for prefix, rest in _splits(name):
        if prefix in aliases:
            # An alias stands for a name that was given out before it, so this ends.
            return _resolved(aliases[prefix] + rest, aliases)
    return name


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """`a/b/c` as (a/b/c, ""), (a/b, /c), (a, /b/c), ("", /a/b/c)."""
    end = len(name)
    while end > 0:
        yield name[:end], name[end:]
        end = name.rfind("/", 0, end)
