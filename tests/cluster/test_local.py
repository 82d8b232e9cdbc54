"""Workers as threads of this process do what every cluster must do, and what is their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paceline.cluster import Local
from paceline.testing import conformance

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("check", conformance.CLUSTER, ids=lambda check: check.__name__)
@pytest.mark.case("R80", "R81", "R90", "R110", "R114", "R115")
def test_it_does_what_every_cluster_must_do(check: Callable[[Any], None]) -> None:
    check(Local)
