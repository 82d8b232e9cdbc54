"""Update rules: what a push's gradients and step become when its worker read older weights.

One file per rule, `base` for what a rule is, `merging` for groups of pushes. A rule is a frozen
description. Its functions are pure and elementwise, so that they are traced into the store half,
and so that a store may be divided over servers by variable.
"""

from paceline.store.rules.base import Plain, UpdateRule, scaled
from paceline.store.rules.delay_compensated import DelayCompensated
from paceline.store.rules.gap_aware import GapAware
from paceline.store.rules.merging import group_scale, merge_weights, merged
from paceline.store.rules.staleness_scaled import StalenessScaled

__all__ = [
    "DelayCompensated",
    "GapAware",
    "Plain",
    "StalenessScaled",
    "UpdateRule",
    "group_scale",
    "merge_weights",
    "merged",
    "scaled",
]
