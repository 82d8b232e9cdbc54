"""`tf.train`'s names."""

from __future__ import annotations

from paceline.checkpoint import Checkpoint, CheckpointManager, latest_checkpoint
from paceline.cluster.spec import ClusterSpec

__all__ = ["Checkpoint", "CheckpointManager", "ClusterSpec", "latest_checkpoint"]
