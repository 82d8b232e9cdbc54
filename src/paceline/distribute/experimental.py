"""`tf.distribute.experimental`'s names."""

from __future__ import annotations

from paceline.distribute import coordinator, partitioners
from paceline.strategies.central_storage import CentralStorageStrategy
from paceline.strategies.hints import CommunicationImplementation, CommunicationOptions
from paceline.strategies.parameter_server import ParameterServerStrategy
from paceline.types import ValueContext

__all__ = [
    "CentralStorageStrategy",
    "CommunicationImplementation",
    "CommunicationOptions",
    "ParameterServerStrategy",
    "ValueContext",
    "coordinator",
    "partitioners",
]
