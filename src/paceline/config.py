"""Settings of the process: how many CPU devices there are."""

from __future__ import annotations

import jax

from paceline.errors import ContextError, InvalidArgument


def set_cpu_devices(num_devices: int) -> None:
    """Gives this process `num_devices` CPU devices.

    JAX fixes the number when the first array is made, so call this at the start of the program.

    Args:
        num_devices: how many, at least 1.

    Raises:
        InvalidArgument: not a positive integer.
        ContextError: too late: JAX already runs with another number.
    """
    if not isinstance(num_devices, int) or isinstance(num_devices, bool) or num_devices < 1:
        raise InvalidArgument(
            f"The number of CPU devices must be a positive integer. Received: {num_devices!r}."
        )
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError as error:
        available = len(jax.local_devices(backend="cpu"))
        if available == num_devices:
            return
        raise ContextError(
            "The number of CPU devices is fixed when JAX makes its first array. Received: "
            f"set_cpu_devices({num_devices}) while JAX runs with {available}. Call "
            "paceline.config.set_cpu_devices first thing in the program, before any model, "
            "variable or array is made."
        ) from error
