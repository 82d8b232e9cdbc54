"""How far workers may drift apart: one file per policy, pure machines."""

from __future__ import annotations

from paceline.pace.asynchronous import Asynchronous
from paceline.pace.base import Apply, Decision, Drop, Hold, Pace, PaceMachine, Permission
from paceline.pace.bounded_staleness import BoundedStaleness
from paceline.pace.softsync import Softsync
from paceline.pace.synchronous import Synchronous

__all__ = [
    "Apply",
    "Asynchronous",
    "BoundedStaleness",
    "Decision",
    "Drop",
    "Hold",
    "Pace",
    "PaceMachine",
    "Permission",
    "Softsync",
    "Synchronous",
]
