"""Saved state that does not depend on the number of replicas; `paceline.train` has tf's names."""

from paceline.checkpoint.checkpoint import Checkpoint
from paceline.checkpoint.manager import CheckpointManager, latest_checkpoint
from paceline.checkpoint.restoring import RestoreStatus

__all__ = ["Checkpoint", "CheckpointManager", "RestoreStatus", "latest_checkpoint"]
