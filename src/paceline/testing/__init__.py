"""Tools for tests, of Paceline and of programs that use it.

`paceline.testing.conformance` holds the checks that every cluster must pass.
"""

from paceline.testing.gates import Gate
from paceline.testing.tolerances import (
    CONVERGENCE,
    EXACT,
    GOLDEN,
    REFERENCE,
    Tolerance,
    assert_close,
)

__all__ = ["CONVERGENCE", "EXACT", "GOLDEN", "REFERENCE", "Gate", "Tolerance", "assert_close"]
