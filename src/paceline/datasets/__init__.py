"""Data sets that are shipped with the package."""

from paceline.datasets import digits

__all__ = ["digits"]
