"""A thread that comes back from XLA while the interpreter ends aborts the process.

    python docs/limits/threads_at_exit.py          # ends with status 134 (SIGABRT), nearly always
    python docs/limits/threads_at_exit.py --join   # ends well

Plain JAX, without Paceline.
"""

from __future__ import annotations

import atexit
import sys
import threading

import jax
import jax.numpy as jnp


def main() -> None:
    """Leaves a daemon thread at work, or ends it first."""
    step = jax.jit(lambda x: x @ x / jnp.sum(x))
    is_over = threading.Event()
    has_begun = threading.Event()

    def work() -> None:
        x = jnp.ones((300, 300))
        while not is_over.is_set():
            x = jax.block_until_ready(step(x))
            has_begun.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    has_begun.wait()
    if "--join" in sys.argv:

        def end() -> None:
            is_over.set()
            for thread in threads:
                thread.join()

        atexit.register(end)


if __name__ == "__main__":
    main()
