"""Reports which numbered behaviours of the tf.distribute contract have passing tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTRACT_ITEMS = frozenset(range(1, 122))


def contract_items(item: pytest.Item) -> list[int]:
    """Returns the numbers that a test's `contract` markers name."""
    numbers = [n for mark in item.iter_markers("contract") for n in mark.args]
    if wrong := [n for n in numbers if n not in CONTRACT_ITEMS]:
        raise pytest.UsageError(
            f"contract() takes numbers of the contract's list in scope, {spans(CONTRACT_ITEMS)}. "
            f"Received: {wrong} at {item.nodeid}."
        )
    return numbers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # `user_properties` travel with the report from the process that ran the test.
    for item in items:
        item.user_properties += [("contract", n) for n in contract_items(item)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints which items of the contract have tests, and whether they all passed."""
    outcomes = {
        outcome: Counter(
            number
            for report in terminalreporter.getreports(outcome)
            for name, number in report.user_properties
            if name == "contract"
        )
        for outcome in ("passed", "failed")
    }
    covered = set(outcomes["passed"]) - set(outcomes["failed"])
    if not (covered or outcomes["failed"]):
        return
    terminalreporter.section("contract")
    terminalreporter.line(
        f"{len(covered)} of {len(CONTRACT_ITEMS)} items covered: {spans(covered)}"
    )
    for title, numbers in (
        ("failing", set(outcomes["failed"])),
        ("no test", CONTRACT_ITEMS - covered - set(outcomes["failed"])),
    ):
        if numbers:
            terminalreporter.line(f"{title}: {spans(numbers)}")


def spans(numbers: Iterable[int]) -> str:
    """Writes 1, 2, 3, 7 as "1-3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"
