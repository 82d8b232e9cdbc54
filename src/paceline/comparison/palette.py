"""The colours of the page: one for each run, the same in every plot, in light, dark and print.

The six hues differ for the common kinds of colour blindness, and have contrast with the
background. Further runs take them again with other dashes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

LIGHT = {
    "background": "#ffffff",
    "surface": "#f5f6f8",
    "ink": "#181c21",
    "muted": "#59636e",
    "grid": "#e3e6ea",
    "wait": "#d3d8de",
    "run0": "#1361b2",
    "run1": "#f04010",
    "run2": "#0a8461",
    "run3": "#8f2d74",
    "run4": "#749d2c",
    "run5": "#3f9cd5",
}
DARK = {
    "background": "#14171b",
    "surface": "#1d2126",
    "ink": "#e9ecef",
    "muted": "#a3adb8",
    "grid": "#2d333a",
    "wait": "#434b55",
    "run0": "#4a9fe0",
    "run1": "#ee7043",
    "run2": "#2fc798",
    "run3": "#c778ab",
    "run4": "#f5cb45",
    "run5": "#c3dcfb",
}
PRINT = {**LIGHT, "surface": "#ffffff", "ink": "#000000", "muted": "#3d3d3d", "grid": "#d9d9d9"}
THEMES = {"light": LIGHT, "dark": DARK, "print": PRINT}
HUES = 6
_DASHES = (
    ("solid", ""),
    ("6px,3px", "6 3"),
    ("2px,2px", "2 2"),
    ("9px,3px,2px,3px", "9 3 2 3"),
    ("12px,4px", "12 4"),
    ("4px,6px", "4 6"),
    ("9px,2px,2px,2px,2px,2px", "9 2 2 2 2 2"),
)


class Look(NamedTuple):
    """How a run is drawn.

    Attributes:
        colour: the name of its colour in a theme.
        dash: of its lines, as Plotly has it.
        dash_array: the same for SVG.
    """

    colour: str
    dash: str
    dash_array: str

    @property
    def token(self) -> str:
        """The colour as figures have it: `page.js` puts that of the theme in its place."""
        return f"@{self.colour}"


def look(index: int) -> Look:
    """The look of the run with this index."""
    return Look(f"run{index % HUES}", *_DASHES[index // HUES % len(_DASHES)])


def variables(theme: dict[str, str]) -> str:
    """The colours of a theme as custom properties of CSS."""
    return " ".join(f"--{name}: {colour};" for name, colour in theme.items())


def coloured(value: Any, theme: dict[str, str], key: str = "") -> Any:
    """A figure with the colours of a theme: what `page.js` does in the browser."""
    if isinstance(value, dict):
        return {name: coloured(one, theme, name) for name, one in value.items()}
    if isinstance(value, list):
        return [coloured(one, theme, key) for one in value]
    is_token = key.endswith("color") and isinstance(value, str) and value.startswith("@")
    return theme[value[1:]] if is_token else value
