"""Loads Keras on its JAX backend, or says why it cannot be."""

from __future__ import annotations

import os
import sys

from paceline.errors import BackendError

_SETTING = "KERAS_BACKEND"


def load_keras() -> None:
    """Imports Keras on JAX; the environment is as before afterwards.

    Raises:
        BackendError: Keras is loaded already, with another backend.
    """
    if "keras" not in sys.modules:
        before = os.environ.get(_SETTING)
        os.environ[_SETTING] = "jax"
        try:
            import keras  # the backend is chosen by this import
        finally:
            if before is None:
                del os.environ[_SETTING]
            else:
                os.environ[_SETTING] = before
    else:
        import keras
    if keras.backend.backend() != "jax":
        raise BackendError(
            "Paceline runs Keras on its JAX backend. Received: Keras already loaded with the "
            f"{keras.backend.backend()!r} backend. Import paceline before keras, or set "
            "KERAS_BACKEND=jax before the program starts."
        )
