"""Clusters: what the workers of a strategy run on."""

from __future__ import annotations

from paceline.cluster.base import Cluster
from paceline.cluster.local import Local
from paceline.cluster.replay import Replay
from paceline.cluster.simulated import Simulated

__all__ = ["Cluster", "Local", "Replay", "Simulated"]
