"""Update rules: how pushes are applied whose workers read older weights."""

from __future__ import annotations

from paceline.store.rules import (
    DelayCompensated,
    GapAware,
    Plain,
    StalenessScaled,
    UpdateRule,
)

__all__ = ["DelayCompensated", "GapAware", "Plain", "StalenessScaled", "UpdateRule"]
