"""Clusters: what the workers of a strategy run on."""

from __future__ import annotations

from paceline.cluster.base import Cluster
from paceline.cluster.local import Local

__all__ = ["Cluster", "Local"]
