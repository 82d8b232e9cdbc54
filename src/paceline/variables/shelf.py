"""The variables as the arrays of a store: what a variable holds is its one current value."""

from __future__ import annotations

from typing import Any


class Shelf:
    """A mapping whose keys are variables and whose values are what they hold.

    There is no second copy: code across workers reads and assigns the same variables, and the
    store's next update sees it.
    """

    def __getitem__(self, variable: Any) -> Any:
        # Someone else holds the array from here on: the next step must not donate it.
        variable.__dict__["_owned"] = None
        return variable._value

    def __setitem__(self, variable: Any, value: Any) -> None:
        variable._value = value
