"""What a test looks at in a run: its pushes, one by one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidType
from paceline.testing.tolerances import EXACT, Tolerance, assert_close

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.monitor import PushRecord


@contextlib.contextmanager
def pushes_of(strategy: Any) -> Iterator[list[PushRecord]]:
    """Collects what is noted of each push while the context is open, in the order of their ends.

    Example:
        ```python
        with paceline.testing.pushes_of(strategy) as pushes:
            model.fit(x, y)
        paceline.testing.assert_staleness(pushes, mean=3, most=7)
        ```

    Args:
        strategy: a strategy whose workers push.

    Yields:
        A list of `paceline.monitor.PushRecord` that grows.

    Raises:
        InvalidType: a strategy without workers of its own.
    """
    monitor = getattr(strategy, "monitor", None)
    if monitor is None:
        raise InvalidType(
            "Only workers of a ParameterServerStrategy push. Received: "
            f"{type(strategy).__name__}, whose replicas run in lockstep."
        )
    pushes: list[PushRecord] = []
    monitor.listeners.append(pushes.append)
    try:
        yield pushes
    finally:
        monitor.listeners.remove(pushes.append)


def assert_same_pushes(actual: Sequence[PushRecord], expected: Sequence[PushRecord]) -> None:
    """Checks that two runs pushed the same at the same times.

    Args:
        actual, expected: as `pushes_of` collects them.

    Raises:
        AssertionError: they part; shows the first push that is another one.
    """
    for number, (one, other) in enumerate(zip(actual, expected, strict=False)):
        if one != other:
            raise AssertionError(
                f"The runs part at push {number}. Actual: {one}. Expected: {other}."
            )
    if len(actual) != len(expected):
        longer = actual if len(actual) > len(expected) else expected
        number = min(len(actual), len(expected))
        raise AssertionError(
            f"Actual: {len(actual)} pushes. Expected: {len(expected)}. The first that only one "
            f"run has: {longer[number]}."
        )


def assert_staleness(
    pushes: Sequence[PushRecord],
    *,
    mean: float | None = None,
    most: int | None = None,
    tolerance: Tolerance = EXACT,
) -> None:
    """Checks how stale the pushes were that were applied.

    Args:
        pushes: as `pushes_of` collects them; leave out those of the start if they are not meant.
        mean: their mean staleness, within `tolerance`; None: any.
        most: the largest staleness that is allowed; None: any.
        tolerance: for the mean.

    Raises:
        AssertionError: another mean; a push that is more stale, which is shown; or no push at all.
    """
    applied = [push for push in pushes if push.outcome == "applied"]
    if not applied:
        raise AssertionError(f"Expected: pushes that were applied. Actual: none of {len(pushes)}.")
    if most is not None:
        stalest = max(applied, key=lambda push: push.staleness)
        if stalest.staleness > most:
            raise AssertionError(f"Expected: no staleness above {most}. Actual: {stalest}.")
    if mean is not None:
        found = sum(push.staleness for push in applied) / len(applied)
        assert_close(found, float(mean), tolerance)


def assert_counted_once(pushes: Sequence[PushRecord], examples: int) -> None:
    """Checks that every example reached the weights exactly once, whoever was lost or came late.

    Args:
        pushes: as `pushes_of` collects them.
        examples: how many the data holds.

    Raises:
        AssertionError: the pushes that were applied stand for more examples, or for fewer.
    """
    counted = sum(push.examples for push in pushes if push.outcome == "applied")
    if counted != examples:
        dropped = sum(push.outcome == "dropped" for push in pushes)
        raise AssertionError(
            f"Expected: {examples} examples in the weights. Actual: {counted}, in {len(pushes)} "
            f"pushes of which {dropped} were dropped."
        )
