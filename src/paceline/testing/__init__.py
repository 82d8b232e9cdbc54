"""Tools for tests, of Paceline and of programs that use it.

`paceline.testing.conformance` holds the checks that every cluster must pass.
"""

from paceline.testing.gates import Gate
from paceline.testing.runs import (
    assert_counted_once,
    assert_same_pushes,
    assert_staleness,
    pushes_of,
)
from paceline.testing.tolerances import (
    CONVERGENCE,
    EXACT,
    GOLDEN,
    REFERENCE,
    Tolerance,
    assert_close,
)
from paceline.virtual import Clock, FaultPlan, Loss, Preemptions

__all__ = [
    "CONVERGENCE",
    "EXACT",
    "GOLDEN",
    "REFERENCE",
    "Clock",
    "FaultPlan",
    "Gate",
    "Loss",
    "Preemptions",
    "Tolerance",
    "assert_close",
    "assert_counted_once",
    "assert_same_pushes",
    "assert_staleness",
    "pushes_of",
]
