"""Counts reasons for dropped pushes, which are sentences with numbers in them.

"Worker 1 came late for round 7" and the same of round 9 are one reason, shown as "Worker 1 came
late for round N": a number that differs is shown as N, one that stays the same is kept. So a report
stays short, and memory does not grow with the run.
"""

from __future__ import annotations

import re

MOST_KINDS = 32
_OTHER = b"other reasons"
_NUMBER = re.compile(r"(\d+)")
_DIGITS = b"0123456789"
# So many different sentences tell which of their numbers differ.
_MOST_SAMPLES = 8


class _Kind:
    """How often one reason came, and the first different sentences."""

    __slots__ = ("count", "samples")

    def __init__(self, count: int = 0, samples: tuple[str, ...] = ()) -> None:
        self.count = count
        self.samples = set(samples)


class Reasons:
    """Counts sentences that differ in their numbers only as one."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[bytes, _Kind] = {}

    def add(self, reason: str) -> None:
        """Counts one sentence."""
        reason = reason or "no reason given"
        # Bytes lose their digits four times as fast as a string.
        kind = self._kind(reason.encode().translate(None, _DIGITS))
        kind.count += 1
        if len(kind.samples) < _MOST_SAMPLES:
            kind.samples.add(reason)

    @property
    def total(self) -> int:
        """How many sentences were counted."""
        return sum(kind.count for kind in self._kinds.values())

    def __add__(self, other: Reasons) -> Reasons:
        """What both counted."""
        result = Reasons()
        for reasons in (self, other):
            for words, kind in reasons._kinds.items():
                mine = result._kind(words)
                mine.count += kind.count
                mine.samples |= kind.samples
        return result

    def __sub__(self, earlier: Reasons) -> Reasons:
        """What was counted since `earlier`."""
        result = Reasons()
        for words, kind in self._kinds.items():
            before = earlier._kinds.get(words)
            count = kind.count - (before.count if before else 0)
            if count:
                result._kinds[words] = _Kind(count, tuple(kind.samples))
        return result

    def as_dict(self) -> dict[str, int]:
        """The sentences and how often each came, the most frequent first."""
        shown: dict[str, int] = {}
        for words, kind in self._kinds.items():
            text = _OTHER.decode() if words == _OTHER else _common(sorted(kind.samples))
            shown[text] = shown.get(text, 0) + kind.count
        return dict(sorted(shown.items(), key=lambda item: (-item[1], item[0])))

    def _kind(self, words: bytes) -> _Kind:
        kind = self._kinds.get(words)
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                words = _OTHER
            kind = self._kinds.setdefault(words, _Kind())
        return kind


def _common(sentences: list[str]) -> str:
    """The sentence with N for each number that is not the same in all of them."""
    columns = zip(*(_NUMBER.split(sentence) for sentence in sentences), strict=False)
    return "".join(parts[0] if len(set(parts)) == 1 else "N" for parts in columns)
