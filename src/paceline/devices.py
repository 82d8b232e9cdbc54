"""Device names in TensorFlow's spellings, and the devices they mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jax

from paceline import config
from paceline.errors import ContextError, InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Sequence

# "cpu:0", "/cpu:0", "/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:1", "GPU"
_NAME = re.compile(
    r"^(?:/job:[a-z]+)?(?:/replica:\d+)?(?:/task:(?P<task>\d+))?/?(?:device:)?"
    r"(?P<kind>[a-z]+)(?::(?P<index>\d+))?$",
    re.IGNORECASE,
)


def parse(name: str) -> tuple[str, int]:
    """Returns kind ("cpu", "gpu", "tpu") and index of a device name.

    Raises:
        InvalidArgument: not a device name, or a device of another task.
    """
    match = _NAME.match(name)
    if match is None:
        raise InvalidArgument(
            f"A device is named like 'cpu:0', 'GPU:1' or '/device:CPU:0'. Received: {name!r}."
        )
    if int(match["task"] or 0):
        raise InvalidArgument(
            f"A strategy in one process uses devices of that process (task 0). Received: {name!r}."
        )
    return match["kind"].lower(), int(match["index"] or 0)


def resolve(devices: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the JAX devices for names or devices, asking for CPU devices while it still can.

    Raises:
        InvalidArgument: a name that means no device, or the same device twice.
        InvalidType: neither a name nor a device.
    """
    _ask_for_cpu_devices(devices)
    found = tuple(_resolve_one(device) for device in devices)
    if len(set(found)) != len(found):
        raise InvalidArgument(
            "Every replica needs a device of its own. Received: the same device twice in "
            f"devices={list(devices)!r}."
        )
    return found


def all_devices() -> tuple[Any, ...]:
    """All accelerators of this process, or else all of its CPU devices."""
    return tuple(jax.local_devices())


def _ask_for_cpu_devices(devices: Sequence[Any]) -> None:
    """While JAX has not started, `devices=["cpu:0", "cpu:1"]` is itself the request for two."""
    indices = [parse(d)[1] for d in devices if isinstance(d, str) and parse(d)[0] == "cpu"]
    if len(indices) < 1 or max(indices) == 0:
        return
    wanted = max(indices) + 1
    if int(jax.config.jax_num_cpu_devices) >= wanted:  # pyright: ignore[reportAttributeAccessIssue]
        return
    try:
        config.set_cpu_devices(wanted)
    except ContextError as error:
        if len(jax.local_devices(backend="cpu")) < wanted:
            raise InvalidArgument(
                f"There is no device cpu:{max(indices)}: JAX already runs with "
                f"{len(jax.local_devices(backend='cpu'))} CPU device(s). Received: "
                f"devices={list(devices)!r}. Make the strategy, or call "
                f"paceline.config.set_cpu_devices({wanted}), before the first array is made."
            ) from error


def _resolve_one(device: Any) -> Any:
    if isinstance(device, jax.Device):
        return device
    if not isinstance(device, str):
        raise InvalidType(
            "A device is a name such as 'cpu:0' or a jax.Device. Received: "
            f"{device!r} of type {type(device).__name__}."
        )
    kind, index = parse(device)
    try:
        available = jax.local_devices(backend=kind)
    except RuntimeError as error:
        raise InvalidArgument(
            f"This process has no {kind.upper()} devices. Received: {device!r}. Available: "
            f"{[str(d) for d in jax.local_devices()]}."
        ) from error
    if index >= len(available):
        raise InvalidArgument(
            f"This process has {len(available)} {kind.upper()} device(s). Received: {device!r}. "
            f"Available: {[str(d) for d in available]}."
        )
    return available[index]
