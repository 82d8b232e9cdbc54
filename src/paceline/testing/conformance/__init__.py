"""What every cluster must do, as checks that any cluster can be put through.

A check takes a function that makes a cluster, called with `workers=`, `deadline=` and `grace=` (see
`paceline.cluster.Local`), and raises `AssertionError` where the cluster's driver does anything else
than `paceline.cluster.base` says. Workers are held at gates and let go in the order of the check,
so that no check sleeps and none depends on luck.

Example:
    ```python
    @pytest.mark.parametrize("check", conformance.CLUSTER, ids=lambda check: check.__name__)
    def test_my_cluster(check):
        check(MyCluster)
    ```
"""

from __future__ import annotations

from paceline.testing.conformance.errors import ERRORS
from paceline.testing.conformance.lab import Lab
from paceline.testing.conformance.loss import LOSS
from paceline.testing.conformance.pacing import PACE
from paceline.testing.conformance.queue import QUEUE

CLUSTER = (*QUEUE, *ERRORS, *LOSS, *PACE)
"""All checks of a cluster."""

__all__ = ["CLUSTER", "Lab"]
