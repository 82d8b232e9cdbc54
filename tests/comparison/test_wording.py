"""Numbers in few words."""

from __future__ import annotations

import math

import pytest

from paceline.comparison import wording


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (415.04, "415"),
        (12_345.6, "12,346"),
        (37.06, "37.1"),
        (0.1183, "0.118"),
        (0.000012, "1.20e-05"),
        (3e12, "3.00e+12"),
        (None, wording.ABSENT),
        (math.nan, wording.ABSENT),
        (math.inf, wording.ABSENT),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [
        (wording.seconds, 55.5, "55.5 s"),
        (wording.seconds, 0.0123, "12.3 ms"),
        (wording.seconds, 86_400.0, "86,400 s"),
        (wording.seconds, 0.0, "0 s"),
        (wording.share, 0.39, "39%"),
        (wording.share, 0.083, "8.3%"),
        (wording.share, 0.0, "0%"),
        (wording.percent, 0.9606, "96.1%"),
        (wording.size, 999.0, "999 B"),
        (wording.size, 123_136_000, "123 MB"),
        (wording.size, 2e12, "2.00 TB"),
        (wording.count, 20_000, "20,000"),
    ],
)
def test_units(shown: object, value: float, text: str) -> None:
    assert callable(shown)
    assert shown(value) == text
    assert shown(None) == wording.ABSENT


def test_the_target() -> None:
    assert wording.target({"target": {"metric": "accuracy", "value": 0.925}}) == "accuracy 92.5%"
    assert wording.target({"target": {"metric": "loss", "value": 0.2}}) == "loss 0.2"
    assert wording.target({"target": None}) == ""


def test_many() -> None:
    assert (wording.many(1, "run"), wording.many(4, "run")) == ("1 run", "4 runs")
