"""What the page says and draws, without a browser."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
import pytest

from comparison_sample import NAMES, many, result, run
from paceline.comparison import worker_figures
from paceline.comparison.figures import thinned
from paceline.comparison.page import page
from paceline.comparison.palette import LIGHT, coloured, look
from paceline.errors import InvalidArgument

VOID = {"wbr", "meta", "link", "br", "img", "input"}
JOINED = "\0"  # where a line may be broken within a word
NASTY = "<script>alert(\"1\")</script> & '%{x}' </title></style> @ink"


class Outline(HTMLParser):
    """The page as a list of opened elements, the text in them, and whether all were closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "wbr":
            self.words.append(JOINED)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words).replace(f" {JOINED} ", "")

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def figures(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module")
def shown() -> str:
    return page(result())


def test_the_document_is_whole(shown: str) -> None:
    outline = Outline(shown)
    assert shown.startswith("<!DOCTYPE html>")
    assert outline.open == []
    assert outline.all("html") == [{"lang": "en"}]
    assert "<title>digits: 4 runs compared</title>" in shown
    ids = [one["id"] for _, one in outline.elements if "id" in one]
    assert len(ids) == len(set(ids))
    named = [one["aria-labelledby"] for _, one in outline.elements if "aria-labelledby" in one]
    assert set(named) <= set(ids)


def test_nothing_is_fetched(shown: str) -> None:
    outline = Outline(shown)
    addresses = [
        attributes[key]
        for _, attributes in outline.elements
        for key in ("src", "href")
        if key in attributes
    ]
    assert addresses == ["data:,"]
    assert "@import" not in shown.split("</style>")[0]
    assert "default-src 'none'" in shown


def test_what_is_said(shown: str) -> None:
    text = " ".join(Outline(shown).text.split())
    order = ["digits", "Recommendation", "Train asynchronously.", "Workers in lockstep wait 39%"]
    order += ["Learning", "Costs", "Results", "Staleness", "What the workers did", "Settings"]
    places = [
        text.index(one, 0 if i < 4 else text.index("Learning")) for i, one in enumerate(order)
    ]
    assert places == sorted(places)
    for one in ("Pareto(base=1.0, shape=2.0)", "jax 0.10.2", "51,200", "0.05, tuned"):
        assert one in text
    assert "Learning rates were tuned for asynchronous, and for no other run." in text
    assert "Slow: worker:3." in text


def test_each_plot_has_words_for_it(shown: str) -> None:
    plots = [one for one in Outline(shown).all("div") if one.get("class") == "plot"]
    assert len(plots) == 4 + 3 + 4 + 4
    assert all(one["role"] == "img" for one in plots)
    words = [one["aria-label"] or "" for one in plots]
    assert words[0].startswith("Loss against virtual time. Last values: lockstep, 32 workers 0.")
    assert "lockstep, 3 backups 27%" in words[5]
    assert len(set(words)) == len(words)


def test_plotly_knows_every_property(shown: str) -> None:
    for figure in figures(shown).values():  # it raises for one that it does not know
        assert len(go.Figure(coloured(figure, LIGHT)).data) == len(figure["data"])


def test_a_run_has_one_colour(shown: str) -> None:
    seen: dict[int, set[str]] = {}
    for figure in figures(shown).values():
        for trace in figure["data"]:
            line = trace.get("line", trace.get("marker"))
            if line is None:  # a timeline
                shapes = {shape["name"]: shape for shape in figure["layout"]["shapes"]}
                line = shapes["computing"]["line"]
            seen.setdefault(trace["meta"]["run"], set()).add(line["color"])
    assert seen == {index: {look(index).token} for index in range(4)}


def test_text_of_the_user_is_text() -> None:
    shown = result((NASTY, "other"))
    shown["title"] = NASTY
    shown["settings"] = {NASTY: NASTY}
    shown["recommendation"] |= {"text": NASTY, "reasons": [NASTY]}
    shown["runs"][0] |= {"pace": NASTY, "compute": NASTY, "stragglers": [NASTY]}
    text = page(shown)
    outline = Outline(text)
    assert outline.open == []
    assert len(outline.all("script")) == 4  # themes, figures, Plotly, the page's own
    assert outline.text.count(NASTY) >= 8
    drawn = {trace.get("name", "") for figure in figures(text).values() for trace in figure["data"]}
    assert not any("<" in name for name in drawn)


def test_null_is_a_gap_and_ends_in_a_cross() -> None:
    shown = result()
    shown["runs"][1] = run(1, NAMES[1], diverges=True)
    shown["runs"][2]["curve"][5]["loss"] = math.nan
    loss = figures(page(shown))["plot0"]["data"]
    crosses = [trace for trace in loss if trace["mode"] == "markers"]
    assert [trace["meta"]["run"] for trace in crosses] == [1]
    assert crosses[0]["x"] == [shown["runs"][1]["curve"][38]["seconds"]]  # 39 * 512 <= 20,000
    lines = [trace for trace in loss if trace["mode"] == "lines"]
    assert lines[1]["y"][39:] == [None] * 61
    assert lines[2]["y"][5] is None
    assert lines[2]["y"][6] is not None


@pytest.mark.parametrize("key", ["idle_share", "bytes", "seconds_to_target", "dropped_share"])
def test_unknown_numbers_are_said_to_be_so(key: str) -> None:
    shown = result()
    for one in shown["runs"]:
        one[key] = math.nan
    assert Outline(page(shown)).open == []


def test_a_target_that_one_run_misses() -> None:
    shown = result()
    shown["runs"][0] |= {"seconds_to_target": None, "examples_to_target": None}
    text = page(shown)
    labels = [one["text"] for one in figures(text)["plot4"]["layout"]["annotations"]]
    assert labels[:2] == [NAMES[0], "not reached"]
    assert "lockstep, 32 workers not reached" in text


def test_without_a_target() -> None:
    shown = result()
    shown["target"] = None
    text = page(shown)
    assert "No target was set." in text
    assert "Time to" not in Outline(text).text
    assert not any("shapes" in figures(text)[f"plot{i}"]["layout"] for i in range(4))


def test_without_accuracy() -> None:
    shown = result()
    shown["target"] = {"metric": "loss", "value": 0.5}
    for one in shown["runs"]:
        for point in one["curve"]:
            del point["accuracy"]
    text = page(shown)
    assert "Accuracy" not in Outline(text).text
    assert figures(text)["plot0"]["layout"]["shapes"][0]["y0"] == 0.5


def test_one_run_alone() -> None:
    text = page(result(NAMES[:1]))
    assert "<title>digits: 1 run compared</title>" in text
    assert "(best)" not in text
    assert Outline(text).open == []


def test_without_curves_timelines_and_advice() -> None:
    shown = result()
    shown["recommendation"] = {"run": None, "text": "No run learned.", "reasons": []}
    for one in shown["runs"]:
        one |= {"curve": [], "timeline": None}
    text = Outline(page(shown)).text
    assert "No run has values of a loss or an accuracy." in text
    assert "What the workers did" not in text


def test_forty_runs() -> None:
    text = page(many(40))
    lines = [trace["line"] for trace in figures(text)["plot0"]["data"]]
    assert len({(line["color"], line["dash"]) for line in lines}) == 40
    assert 'id="hide-all"' in text
    # What is higher than a page of paper would be cut off there.
    for one in Outline(text).all("div"):
        if one.get("class") == "plot":
            height = int(re.findall(r"\d+", one["style"] or "")[0])
            assert height * float(one["data-shrink"] or "") <= 881


def test_a_wrong_result_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="format=3"):
        page({**result(), "format": 3})


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    curve = [{"seconds": float(i)} for i in range(10_001)]
    points = thinned(curve)
    assert len(points) == 400
    assert (points[0], points[-1]) == (curve[0], curve[-1])
    assert thinned(curve[:400]) == curve[:400]


def histogram_of(*runs: dict[str, int]) -> list[dict[str, Any]]:
    made = []
    for counts in runs:
        values = sorted(int(value) for value, count in counts.items() for _ in range(count))
        p99 = values[math.ceil(0.99 * len(values)) - 1]
        made.append({"staleness": {"histogram": counts, "p99": p99, "largest": values[-1]}})
    return made


def test_bins_are_those_of_all_runs() -> None:
    first, second = histogram_of({"0": 4}, {"0": 1, "99": 3})
    bins = worker_figures.Bins([first, second])
    assert (bins.width, bins.number) == (5, 20)
    assert bins.shares(first) == [1.0] + [0.0] * 19
    assert bins.shares(second) == [0.25] + [0.0] * 18 + [0.75]
    assert bins.names()[-1] == "95 to 99"


def test_a_long_tail_is_in_the_last_bin() -> None:
    (run_,) = histogram_of({"0": 500, "1": 499, "5000": 1})
    bins = worker_figures.Bins([run_])
    assert bins.is_open
    assert bins.names()[-1].endswith("or more")
    assert sum(bins.shares(run_)) == pytest.approx(1)
    assert bins.number < 50


def test_a_timeline_has_every_span_once() -> None:
    spans = [[7, 0.0, 1.0, "compute"], [7, 1.0, 3.0, "wait"], [9, 0.0, 3.0, "dropped"]]
    one = {"timeline": {"workers": [7, 9], "from": 0.0, "to": 3.0, "spans": spans}}
    drawn = worker_figures.timeline(one, 2)
    paths = {shape["name"]: shape["path"] for shape in drawn["layout"]["shapes"]}
    assert set(paths) == {"computing", "waiting", "computing in vain"}
    assert paths["waiting"] == "M1,0L3,0"
    assert paths["computing in vain"] == "M0,1L3,1"
    colours = {shape["name"]: shape["line"]["color"] for shape in drawn["layout"]["shapes"]}
    assert colours == {"computing": look(2).token, "waiting": "@wait", "computing in vain": "@ink"}
    assert drawn["layout"]["yaxis"]["ticktext"] == ["7", "9"]
    (points,) = drawn["data"]
    said = {text: points["y"][i] for i, text in enumerate(points["text"])}
    assert said == {
        "worker 7: computing for 1.00 s": 0,
        "worker 7: waiting for 2.00 s": 0,
        "worker 9: computing in vain for 3.00 s": 1,
    }


def test_a_timeline_of_a_thousand_workers_shows_the_first() -> None:
    workers = list(range(1000))
    spans = [[worker, 0.0, 1.0, "compute"] for worker in workers]
    one = result()
    one["runs"][0]["timeline"] = {"workers": workers, "from": 0.0, "to": 1.0, "spans": spans}
    text = page(one)
    assert "The first 128 of 1,000 workers." in text
    assert figures(text)["plot11"]["layout"]["shapes"][0]["path"].count("M") == 128


def test_importing_paceline_does_not_import_plotly() -> None:
    code = (
        "import sys, paceline, paceline.cli.main, paceline.comparison.page; "
        "print('plotly' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "False"
