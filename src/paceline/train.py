"""`tf.train`'s names."""

from __future__ import annotations

from paceline.checkpoint import Checkpoint, CheckpointManager, latest_checkpoint

__all__ = ["Checkpoint", "CheckpointManager", "latest_checkpoint"]
