"""Data for the small model of `checkpoint_models`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from checkpoint_models import NUM_FEATURES


@pytest.fixture
def batches() -> list[tuple[Any, Any]]:
    """Ten batches of 12 examples: 12 divides by 1, 2, 3 and 4 replicas."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(10, 12, NUM_FEATURES)).astype("float32")
    return list(zip(x, (x.sum(axis=2) > 0).astype("int32"), strict=True))
