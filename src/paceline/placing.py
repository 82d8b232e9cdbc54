"""Placing: which server holds which variable, and the report of it."""

from __future__ import annotations

from paceline.store.placing import BySize, PlacementReport, Placing, RoundRobin, ServerLoad

__all__ = ["BySize", "PlacementReport", "Placing", "RoundRobin", "ServerLoad"]
