"""The result of work that may not have ended yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from paceline.cluster.arguments import Deferred
from paceline.errors import ClosureInputError, WaitTimeout
from paceline.program.handover import handover

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.cluster.base import ClusterDriver
    from paceline.cluster.work import Work


class RemoteValue(Deferred):
    """What scheduled work will return (tf.distribute.experimental.coordinator.RemoteValue).

    Where an array is expected (arithmetic, `float`, NumPy, JAX, `strategy.reduce`) it waits and
    stands for its value; passed to scheduled work, it is waited for by the worker. It need not be
    held: dropped, the work is done all the same.

    Args:
        driver: who runs the work.
        work: the work.
    """

    __array_priority__ = 100

    def __init__(self, driver: ClusterDriver, work: Work) -> None:
        self._driver = driver
        self._work = work

    def get(self) -> Any:
        """Waits and returns the result, with JAX arrays (tf's `get`).

        Raises:
            Cancelled: the work was called off.
            WaitTimeout: nothing has happened anywhere for the cluster's deadline.
            Exception: the work's own error.
        """
        return self._driver.wait(self._work)

    def fetch(self) -> Any:
        """Waits and returns the result with NumPy leaves (tf's `fetch`); raises like `get`."""
        return jax.tree.map(_on_host, self.get())

    def on_worker(self, worker: Any) -> Any:
        """Waits and returns the result, for work on `worker` that it is passed to.

        Raises:
            ClosureInputError: there is no result.
        """
        try:
            return self.get()
        except WaitTimeout:
            raise
        except Exception as error:
            worker.check()  # is it the waiting work that was called off?
            raise ClosureInputError(
                "Scheduled work needs the results that it is passed. Received: the result of "
                f"{self._work.name}, which ended with {error!r}. Schedule that again first."
            ) from error

    @property
    def has_ended(self) -> bool:
        """Whether `get` would return or raise at once."""
        with handover:
            self._driver.access()
            return self._work.has_ended

    def __jax_array__(self) -> Any:
        return jax.numpy.asarray(self.get())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.get(), dtype=dtype)

    def __getitem__(self, key: Any) -> Any:
        return self.get()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __add__(self, other: Any) -> Any:
        return self.get() + other

    def __radd__(self, other: Any) -> Any:
        return other + self.get()

    def __sub__(self, other: Any) -> Any:
        return self.get() - other

    def __rsub__(self, other: Any) -> Any:
        return other - self.get()

    def __mul__(self, other: Any) -> Any:
        return self.get() * other

    def __rmul__(self, other: Any) -> Any:
        return other * self.get()

    def __truediv__(self, other: Any) -> Any:
        return self.get() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.get()

    def __repr__(self) -> str:
        return f"<paceline RemoteValue of {self._work.name}, {self._work.state}>"


def resolved(nest: Any) -> Any:
    """The nest with every remote value in it waited for."""
    return jax.tree.map(
        lambda leaf: leaf.get() if isinstance(leaf, RemoteValue) else leaf,
        nest,
        is_leaf=lambda leaf: isinstance(leaf, RemoteValue),
    )


def _on_host(leaf: Any) -> Any:
    # [()] makes it a number where there are no dims.
    return np.asarray(leaf)[()] if isinstance(leaf, jax.Array) else leaf
