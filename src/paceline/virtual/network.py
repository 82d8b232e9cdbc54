"""How long arrays travel between workers and servers, when the links are shared."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """Latency of a message, and the bandwidth of each server's link, which its clients share.

    Transfers over one link come one after the other, at its full speed: as much goes through as if
    they shared it at the same time, and whoever asks first has it first. Each direction has a link
    of its own.

    Args:
        latency: seconds that a message is on its way, whatever its size.
        bandwidth: bytes a second of a server's link; infinite: size costs nothing.

    Raises:
        InvalidArgument: a negative latency, or a bandwidth that is not positive.
    """

    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        is_time = isinstance(self.latency, (int, float)) and 0 <= self.latency < math.inf
        is_speed = isinstance(self.bandwidth, (int, float)) and self.bandwidth > 0
        if not is_time or not is_speed:
            raise InvalidArgument(
                "A network has a latency of 0 or more seconds and a bandwidth of more than 0 bytes "
                f"a second. Received: latency={self.latency!r}, bandwidth={self.bandwidth!r}."
            )

    @property
    def is_instant(self) -> bool:
        """Whether nothing takes any time."""
        return self.latency == 0 and math.isinf(self.bandwidth)


def network_of(value: Any) -> Network:
    """A network; a number is a latency.

    Raises:
        InvalidArgument: neither.
    """
    if value is None:
        return Network()
    if isinstance(value, Network):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Network(latency=float(value))
    raise InvalidArgument(
        "`network` is a paceline.virtual.Network or a latency in seconds. Received: "
        f"network={value!r}."
    )


class Links:
    """The servers' links in one direction: when each one is free again.

    Args:
        network: latency and bandwidth.
        servers: how many links there are.

    Attributes:
        num_bytes: what went through all of them.
    """

    def __init__(self, network: Network, servers: int) -> None:
        self._network = network
        self._free_at = [0.0] * servers
        self.num_bytes = 0

    def send(self, now: float, sizes: Sequence[int]) -> float:
        """Sends bytes over each link from `now` on; returns when the last of them are there.

        Args:
            now: no earlier than in the call before.
            sizes: bytes per server.
        """
        bandwidth, arrived = self._network.bandwidth, now
        for server, size in enumerate(sizes):
            if not size:
                continue
            self.num_bytes += size
            if bandwidth != math.inf:
                began = max(now, self._free_at[server])
                self._free_at[server] = sent = began + size / bandwidth
                arrived = max(arrived, sent)
        return arrived + self._network.latency
