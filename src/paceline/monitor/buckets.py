"""Histograms with bounded memory: exact for small integers, in narrow buckets for durations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

EXACT_BELOW = 4096
_BITS_KEPT = EXACT_BELOW.bit_length() - 1
_PER_OCTAVE = 128


def rounded(number: int) -> int:
    """The number with its first 12 binary digits: at most one part in 2,048 too small."""
    shift = max(0, number.bit_length() - _BITS_KEPT)
    return number >> shift << shift


def of_seconds(seconds: float) -> int:
    """The bucket of a duration above 0; 128 of them for every doubling."""
    mantissa, exponent = math.frexp(seconds)
    return exponent * _PER_OCTAVE + int(mantissa * (2 * _PER_OCTAVE))


def to_seconds(bucket: int) -> float:
    """The middle of a bucket, at most 0.4% away from any duration in it."""
    exponent, place = divmod(bucket - _PER_OCTAVE, _PER_OCTAVE)
    return math.ldexp((place + _PER_OCTAVE + 0.5) / (2 * _PER_OCTAVE), exponent)


def percentile(counts: Mapping[int, int], percent: float) -> int:
    """The smallest key that at least `percent` of what was counted do not exceed; 0 for nothing."""
    needed = math.ceil(percent * sum(counts.values()) / 100)
    reached = 0
    for key in sorted(counts):
        reached += counts[key]
        if reached >= needed:
            return key
    return 0


def difference(later: Mapping[int, int], earlier: Mapping[int, int]) -> dict[int, int]:
    """What was counted after `earlier`."""
    return {
        key: count - earlier.get(key, 0)
        for key, count in later.items()
        if count != earlier.get(key, 0)
    }
