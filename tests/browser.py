"""Chromium for the tests of pages, started without a network."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

CHROMIUM = Path(os.environ.get("PACELINE_CHROMIUM") or "/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium that ends with the block; the test fails where there is none."""
    if not CHROMIUM.is_file():
        pytest.fail(
            "The tests of pages need Chromium at /usr/bin/chromium, or where PACELINE_CHROMIUM "
            f"points. Received: no file at {CHROMIUM}. On Debian, `apt-get install chromium` as "
            "root, or `scripts/setup`, which does so, brings it."
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()
