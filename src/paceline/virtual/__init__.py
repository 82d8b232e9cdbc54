"""Virtual time: a clock, how long things take, and what fails when. Pure, and all from seeds.

latency    how long a computation takes: constant, noisy, slow workers, a measured trace
network    how long arrays travel: latency, and bandwidth that a server's clients share
faults     who is lost when, by time or by (task, step), and when it comes back
clock      the events that are still to come, in order
"""

from __future__ import annotations

from paceline.virtual.clock import Clock
from paceline.virtual.faults import FaultPlan, Loss, Preemptions
from paceline.virtual.latency import (
    Constant,
    Latency,
    LogNormal,
    Measured,
    Pareto,
    RareSlow,
    Slow,
    Spread,
)
from paceline.virtual.network import Network

__all__ = [
    "Clock",
    "Constant",
    "FaultPlan",
    "Latency",
    "LogNormal",
    "Loss",
    "Measured",
    "Network",
    "Pareto",
    "Preemptions",
    "RareSlow",
    "Slow",
    "Spread",
]
