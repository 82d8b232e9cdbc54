"""What is compared: a pace and an update rule, under a name that says it in words."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidArgument
from paceline.pace import Asynchronous, BoundedStaleness, Softsync, Synchronous
from paceline.store.rules import DelayCompensated, GapAware, Plain, StalenessScaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.pace import Pace
    from paceline.store.rules import UpdateRule

_RULES: dict[str, Callable[[], UpdateRule]] = {
    "plain": Plain,
    "scaled": StalenessScaled,
    "compensated": DelayCompensated,
    "adaptive": DelayCompensated.adaptive,
    "gap": GapAware,
}
_RULE_WORDS = {
    "plain": "plain",
    "scaled": "steps scaled by staleness",
    "compensated": "delay-compensated",
    "adaptive": "adaptively delay-compensated",
    "gap": "gap-aware",
}


_PLAIN: dict[str, Callable[[int], tuple[str, Pace]]] = {
    "lockstep": lambda _: ("lockstep", Synchronous()),
    "async": lambda _: ("asynchronous", Asynchronous()),
}
_COUNTED: dict[str, Callable[[int], tuple[str, Pace]]] = {
    "backups": lambda count: (
        f"lockstep, {count} backup{'s' * (count != 1)}",
        Synchronous(backups=count),
    ),
    "bounded": lambda count: (f"staleness bound {count}", BoundedStaleness(count)),
    "softsync": lambda count: (f"groups of {count}", Softsync(count)),
    "async": lambda count: (f"asynchronous, at most {count} stale", Asynchronous(count)),
}


@dataclasses.dataclass(frozen=True)
class Mode:
    """One way to train.

    Attributes:
        name: in words.
        pace: how far workers may drift apart.
        update_rule: how stale pushes are applied.
    """

    name: str
    pace: Pace
    update_rule: UpdateRule = dataclasses.field(default_factory=StalenessScaled)

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Reads a mode as the command line has it.

        Args:
            text: "lockstep", "backups:2", "bounded:4", "softsync:8", "async" or "async:64" (a cap
                on the staleness), and then perhaps "/" and an update rule: plain, scaled (the
                default), compensated, adaptive or gap.

        Raises:
            InvalidArgument: something else.
        """
        pace_text, _, rule = text.partition("/")
        kind, colon, count = pace_text.partition(":")
        make = _COUNTED.get(kind) if colon else _PLAIN.get(kind)
        if make is None or (colon and not count.isdecimal()) or (rule and rule not in _RULES):
            raise InvalidArgument(
                "A mode is lockstep, backups:N, bounded:N, softsync:N, async or async:N, perhaps "
                f"with a rule, as in async/{'|'.join(_RULES)}. Received: {text!r}."
            )
        name, pace = make(int(count or 0))
        if rule:
            name = f"{name}, {_RULE_WORDS[rule]}"
        return cls(name, pace, _RULES[rule]() if rule else StalenessScaled())


def default_modes(workers: int) -> list[Mode]:
    """Lockstep, lockstep with a backup for every tenth worker, a bound of 4, and free-running."""
    backups = max(1, workers // 10)
    texts = ["lockstep", f"backups:{backups}", "bounded:4", "async"]
    return [Mode.parse(text) for text in texts if workers > backups or "backups" not in text]


def as_mode(value: Any) -> Mode:
    """A mode, or one that is read from text."""
    return value if isinstance(value, Mode) else Mode.parse(str(value))
