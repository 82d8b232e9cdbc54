"""Colours that can be told apart, also by those who see fewer of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from paceline.comparison.palette import DARK, HUES, LIGHT, PRINT, coloured, look

# Machado, Oliveira and Fernandes (2009), full severity, for linear RGB.
SIGHT = {
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
WHITE = [0.9505, 1.0, 1.089]
APART = 10.0  # CIE76; 2.3 is what one just notices side by side


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    x, y, z = (
        np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116
        for v in TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(np.dot(TO_XYZ[1], linear(colour))) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", [LIGHT, DARK, PRINT], ids=["light", "dark", "print"])
def test_runs_are_told_apart(theme: dict[str, str], sight: str) -> None:
    seen = [lab(SIGHT[sight] @ linear(theme[f"run{i}"])) for i in range(HUES)]
    nearest = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))
    assert nearest >= APART


@pytest.mark.parametrize("theme", [LIGHT, DARK, PRINT], ids=["light", "dark", "print"])
def test_contrast_is_that_of_wcag_aa(theme: dict[str, str]) -> None:
    for ground in ("background", "surface"):
        for text in ("ink", "muted"):
            assert contrast(theme[text], theme[ground]) >= 4.5
    for i in range(HUES):
        assert contrast(theme[f"run{i}"], theme["background"]) >= 3


def test_print_is_black_on_white() -> None:
    assert (PRINT["ink"], PRINT["background"]) == ("#000000", "#ffffff")


def test_forty_runs_look_different() -> None:
    assert len({look(i) for i in range(40)}) == 40
    assert look(HUES).colour == look(0).colour
    assert look(HUES).dash != look(0).dash


def test_only_colours_are_replaced() -> None:
    figure = {"name": "@ink", "line": {"color": "@ink"}, "list": [{"bgcolor": "@muted"}]}
    assert coloured(figure, DARK) == {
        "name": "@ink",
        "line": {"color": DARK["ink"]},
        "list": [{"bgcolor": DARK["muted"]}],
    }
