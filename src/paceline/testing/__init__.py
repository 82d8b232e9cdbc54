"""Tools for tests, of Paceline and of programs that use it."""

from paceline.testing.tolerances import (
    CONVERGENCE,
    EXACT,
    GOLDEN,
    REFERENCE,
    Tolerance,
    assert_close,
)

__all__ = ["CONVERGENCE", "EXACT", "GOLDEN", "REFERENCE", "Tolerance", "assert_close"]
