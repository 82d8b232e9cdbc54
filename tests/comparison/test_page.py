"""The page in a real browser: drawn, offline, on a phone, in the dark, on paper, by keyboard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

import browser
from browser import chromium
from comparison_sample import NAMES, many, result
from paceline.comparison.page import page
from paceline.comparison.palette import DARK, LIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    Opens = Callable[..., "Opened"]

PHONE = {"width": 375, "height": 667}
DESKTOP = {"width": 1280, "height": 900}
PAPER = 688  # pixels of an A4 page between its margins of 14 mm
PLOTS = 4 + 3 + 4 + 4

# The right edge of everything that is wider than the screen, but for what scrolls by itself.
TOO_WIDE = """() => [...document.querySelectorAll("body *")]
    .filter(one => !one.closest(".runs *, .unseen, .main-svg *, [hidden]"))
    .map(one => [one.tagName, one.className.baseVal ?? one.className,
                 one.getBoundingClientRect().right])
    .filter(([tag, name, right]) => right > innerWidth + 1)"""
# Texts of a plot that its edges cut off.
CUT_OFF = """() => [...document.querySelectorAll(".plot")].flatMap(plot => {
    const edge = plot.querySelector(".main-svg").getBoundingClientRect();
    return [...plot.querySelectorAll(".main-svg text")].filter(text => {
        const box = text.getBoundingClientRect();
        return box.width && (box.left < edge.left - 1 || box.right > edge.right + 1
            || box.top < edge.top - 1 || box.bottom > edge.bottom + 1);
    }).map(text => [plot.id, text.textContent]);
})"""
WIDTHS = """() => [...document.querySelectorAll(".plot")].map(plot =>
    [Number(plot.querySelector(".main-svg").getAttribute("width")), plot.clientWidth,
     plot.getBoundingClientRect().right])"""


class Opened(NamedTuple):
    """A page that has drawn all its plots, and what it did meanwhile."""

    page: Page
    complaints: list[str]
    requests: list[str]

    def style(self, selector: str, name: str) -> str:
        return self.page.eval_on_selector(
            selector, "(one, name) => getComputedStyle(one)[name]", name
        )

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "comparison.html"
    path.write_text(page(result()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opens(running: Browser, written: Path) -> Iterator[Opens]:
    """Opens a page in a window of its own."""
    contexts = []

    def opened(path: Path = written, **options: Any) -> Opened:
        context = running.new_context(offline=True, **{"viewport": DESKTOP, **options})
        contexts.append(context)
        shown = Opened(context.new_page(), [], [])
        shown.page.on("console", lambda one: shown.complaints.append(f"{one.type}: {one.text}"))
        shown.page.on("pageerror", lambda one: shown.complaints.append(str(one)))
        shown.page.on("request", lambda one: shown.requests.append(one.url))
        shown.page.goto(path.as_uri())
        shown.page.wait_for_selector("html[data-drawn]", state="attached", timeout=90_000)
        return shown

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def desktop(opens: Opens) -> Opened:
    """The page for tests that change nothing in it."""
    return opens()


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_everything_is_drawn_without_a_complaint_or_a_request(
    desktop: Opened, written: Path
) -> None:
    shown = desktop
    assert shown.complaints == []
    assert [one for one in shown.requests if not one.startswith("data:")] == [written.as_uri()]
    assert shown.count(".plot .main-svg") >= PLOTS
    assert shown.count(".plot:not(:has(.main-svg))") == 0
    for plot in range(4):
        assert shown.count(f"#plot{plot} .scatterlayer .trace path.js-line") == 4
    for plot in range(4, 7):
        assert shown.count(f"#plot{plot} .barlayer .trace") == 4
    for plot in range(7, 11):
        assert shown.count(f"#plot{plot} .barlayer .point path") >= 4
    spans = [shown.count(f"#plot{plot} .shapelayer path") for plot in range(11, 15)]
    assert spans == [2, 3, 2, 1]  # computing; waiting unless asynchronous; dropped with backups
    assert shown.page.evaluate(TOO_WIDE) == []
    assert shown.page.evaluate(CUT_OFF) == []


def test_on_a_phone_nothing_is_wider_than_the_screen(opens: Opens) -> None:
    shown = opens(viewport=PHONE, is_mobile=True, has_touch=True, device_scale_factor=2)
    assert shown.complaints == []
    assert shown.page.evaluate("document.documentElement.scrollWidth") == 375
    assert shown.page.evaluate(TOO_WIDE) == []
    assert shown.page.evaluate(CUT_OFF) == []
    assert all(width == room for width, room, _ in shown.page.evaluate(WIDTHS))
    assert not shown.page.locator(".mouse").is_visible()
    # A finger that starts on a plot scrolls the page.
    assert shown.count(".plot .nsewdrag[style*='touch-action: none']") == 0
    smallest = """() => Math.min(...[...document.querySelectorAll("main *, header *, svg text")]
        .filter(one => one.textContent.trim() && !one.closest(".unseen"))
        .map(one => parseFloat(getComputedStyle(one).fontSize)))"""
    assert shown.page.evaluate(smallest) >= 11
    heights = shown.page.eval_on_selector_all(
        "button", "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert min(heights) >= 36


def test_colours_follow_the_theme_while_the_page_is_open(opens: Opens) -> None:
    shown = opens(color_scheme="light")

    def colours() -> dict[str, str]:
        return {
            "background": shown.style("body", "backgroundColor"),
            "text": shown.style("h1", "color"),
            "tick": shown.style("#plot0 .xtick text", "fill"),
            "grid": shown.style("#plot0 .gridlayer path", "stroke"),
            "curve": shown.style("#plot0 path.js-line", "stroke"),
            "bar": shown.style("#plot4 .barlayer .point path", "fill"),
            "name": shown.style("#plot4 .annotation-text", "fill"),
            "legend": shown.style("button[data-run='0'] line", "stroke"),
        }

    themes: tuple[tuple[Literal["light", "dark"], dict[str, str]], ...]
    themes = (("light", LIGHT), ("dark", DARK), ("light", LIGHT))
    for theme, palette in themes:
        shown.page.emulate_media(color_scheme=theme)
        shown.page.wait_for_function(
            "tick => getComputedStyle(document.querySelector('#plot14 .xtick text')).fill === tick",
            arg=rgb(palette["muted"]),
        )
        run = rgb(palette["run0"])
        assert colours() == {
            "background": rgb(palette["background"]),
            "text": rgb(palette["ink"]),
            "tick": rgb(palette["muted"]),
            "grid": rgb(palette["grid"]),
            "curve": run,
            "bar": run,
            "name": rgb(palette["muted"]),
            "legend": run,
        }
    assert shown.complaints == []


def test_on_paper_every_section_is_black_on_white_and_whole(opens: Opens) -> None:
    shown = opens(color_scheme="dark")
    shown.page.emulate_media(media="print")
    shown.page.wait_for_function(
        "document.querySelector('#plot14 .main-svg').getAttribute('width') === '680'"
    )
    assert shown.style("body", "backgroundColor") == "rgb(255, 255, 255)"
    assert shown.style("h1", "color") == "rgb(0, 0, 0)"
    for heading in shown.page.locator("h2").all():
        assert heading.is_visible()
    for plot in shown.page.locator(".plot").all():
        assert plot.is_visible()
    for width, room, right in shown.page.evaluate(WIDTHS):
        assert width <= room
        assert right <= DESKTOP["width"]
    assert shown.page.evaluate(CUT_OFF) == []
    assert shown.count("tbody tr") == 8


def printed_sizes(shown: Opened) -> list[list[float]]:
    """Prints the page, and returns the width and right edge that each plot had on paper."""
    shown.page.evaluate(
        """() => addEventListener("beforeprint", () => {
            window.printed = [...document.querySelectorAll(".plot")].map(plot => {
                const svg = plot.querySelector(".main-svg");
                return [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
            });
        })"""
    )
    document = shown.page.pdf(format="A4", prefer_css_page_size=True)
    assert document.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", document)) >= 3
    return shown.page.evaluate("window.printed")


def test_printing_fits_the_plots_to_the_page_and_back(opens: Opens) -> None:
    shown = opens(color_scheme="dark")
    before = shown.page.evaluate(WIDTHS)
    sizes = printed_sizes(shown)
    assert len(sizes) == PLOTS
    assert max(width for width, _ in sizes) <= PAPER
    shown.page.wait_for_function(
        "old => document.querySelector('#plot14 .main-svg').getAttribute('width') === String(old)",
        arg=before[14][0],
    )
    assert shown.page.evaluate(WIDTHS) == before
    assert shown.style("#plot0 path.js-line", "stroke") == rgb(DARK["run0"])


def test_hovering_shows_the_values_of_the_runs(desktop: Opened) -> None:
    shown = desktop
    shown.page.locator("#plot0").scroll_into_view_if_needed()
    shown.page.locator("#plot0 .nsewdrag").first.hover()
    box = shown.page.locator("#plot0 .hoverlayer .legend")
    box.wait_for()
    said = box.text_content() or ""
    assert all(name in said for name in NAMES)
    assert "virtual seconds" in said
    shown.page.locator("#plot11 .nsewdrag").first.hover()
    said = shown.page.locator("#plot11 .hoverlayer .hovertext").text_content() or ""
    assert re.search(r"worker \d+: (computing|waiting) for [\d.]+ s", said)


def test_a_click_in_the_legend_hides_a_run_everywhere(opens: Opens) -> None:
    shown = opens()
    button = shown.page.get_by_role("button", name=NAMES[0])
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert shown.count("#plot0 path.js-line") == 3
    assert not shown.page.locator("#plot7").is_visible()
    assert not shown.page.locator("#plot11").is_visible()
    assert shown.page.locator("#plot8").is_visible()
    # The theme may change while a plot is hidden.
    shown.page.emulate_media(color_scheme="dark")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert shown.count("#plot0 path.js-line") == 4
    shown.page.wait_for_function(
        """now => now ===
            getComputedStyle(document.querySelector("#plot11 .shapelayer path")).stroke""",
        arg=rgb(DARK["wait"]),
    )
    assert shown.complaints == []


def test_the_keyboard_reaches_every_control(opens: Opens) -> None:
    shown = opens()
    reached = []
    for _ in NAMES:
        shown.page.keyboard.press("Tab")
        reached.append(shown.page.evaluate("document.activeElement.textContent.trim()"))
    assert reached == list(NAMES)
    assert shown.style(":focus-visible", "outlineStyle") == "solid"
    shown.page.keyboard.press("Space")
    last = shown.page.get_by_role("button", name=NAMES[3])
    assert last.get_attribute("aria-pressed") == "false"


def test_names_for_those_who_do_not_see_it(desktop: Opened) -> None:
    shown = desktop
    assert shown.page.title() == "digits: 4 runs compared"
    assert shown.page.locator("html").get_attribute("lang") == "en"
    images = shown.page.locator("figure > [role=img]").all()
    assert len(images) == PLOTS
    assert all(len(one.get_attribute("aria-label") or "") > 30 for one in images)
    for name in ("Learning", "Costs", "Results", "Staleness", "What the workers did", "Settings"):
        assert shown.page.get_by_role("region", name=name).count() == 1
    table = shown.page.get_by_role("table", name="Results of each run")
    assert table.get_by_role("row").count() == 5
    assert shown.page.get_by_role("group", name="Runs to show").get_by_role("button").count() == 4


@pytest.mark.slow
def test_many_runs_are_drawn_hidden_and_printed(opens: Opens, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    path.write_text(page(many(16)), encoding="utf-8")
    shown = opens(path, viewport=PHONE)
    assert shown.count(".plot:not(:has(.main-svg))") == 0
    assert shown.page.evaluate(TOO_WIDE) == []
    sizes = printed_sizes(shown)
    # An A4 page is 1,017 pixels high between its margins.
    assert max(height for _, height in sizes) < 950
    shown.page.get_by_role("button", name="Hide all").click()
    assert shown.count("#plot0 path.js-line") == 0
    shown.page.get_by_role("button", name="Show all").click()
    assert shown.count("#plot0 path.js-line") == 16
    assert shown.complaints == []


def test_without_chromium_the_tests_fail_and_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(browser, "CHROMIUM", tmp_path / "chromium")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"), chromium():
        pass
