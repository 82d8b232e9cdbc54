"""`tf.distribute.experimental`'s names."""

from __future__ import annotations

from paceline.distribute import partitioners
from paceline.strategies.hints import CommunicationImplementation, CommunicationOptions
from paceline.types import ValueContext

__all__ = ["CommunicationImplementation", "CommunicationOptions", "ValueContext", "partitioners"]
