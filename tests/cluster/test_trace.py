"""The record of a run as a file: whole, growing, cut off and damaged."""

from __future__ import annotations

import dataclasses
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cluster import pages
from paceline.cluster.trace import (
    FORMAT,
    Event,
    Kind,
    Trace,
    TraceWriter,
    fingerprint_of,
    first_difference,
)
from paceline.errors import ReplayError

if TYPE_CHECKING:
    from pathlib import Path

HEADER = {"format": FORMAT, "workers": 2, "pace": "Asynchronous()"}
EVENTS = [
    Event(Kind.SUBMIT, time=0.5),
    Event(Kind.TAKE, worker=1, work=0, time=0.625),
    Event(Kind.PULL, worker=1, version=3, program=7, data=0xFFFFFFFF, time=0.75),
    Event(Kind.PUSH, worker=1, incarnation=2, version=4, data=9, time=1.75),
    Event(Kind.END, worker=1, incarnation=2, work=70_000, version=5, time=2.0),
]


def write(path: Path, events: list[Event] = EVENTS, **header: object) -> Path:
    writer = TraceWriter(path, {**HEADER, **header})
    for event in events:
        writer.write(*dataclasses.astuple(event))
    writer.close()
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    trace = Trace(write(tmp_path / "run.trace"))
    assert trace.header == HEADER
    assert trace.events == EVENTS
    assert trace.is_whole


def test_it_is_read_while_it_is_written(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "run.trace", HEADER)
    for count, event in enumerate(EVENTS):
        trace = Trace(tmp_path / "run.trace")
        assert trace.events == EVENTS[:count]
        assert not trace.is_whole
        writer.write(*dataclasses.astuple(event))
    writer.close()
    assert Trace(tmp_path / "run.trace").is_whole


def test_an_event_that_a_crash_tore_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "run.trace")
    content = path.read_bytes()
    for written in range(35):
        path.write_bytes(content[: len(content) - 35 + written] + bytes(1_000))
        trace = Trace(path)
        assert trace.events == EVENTS[:-1]
        assert not trace.is_whole


def test_it_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from paceline.cluster.trace import FORMAT, Kind, TraceWriter
writer = TraceWriter(sys.argv[1], {"format": FORMAT})
writer.write(Kind.TAKE, 1, 0, 2, 3, 4, 5, 6.0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "run.trace"
    ended = subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=100)
    assert ended.returncode == -signal.SIGKILL
    (event,) = Trace(path).events
    assert event.as_text() == Event(Kind.TAKE, 1, 0, 2, 3, 4, 5, 6.0).as_text()


def test_a_process_that_was_forked_off_leaves_it_alone(tmp_path: Path) -> None:
    # By itself: nothing else of the package, so that there are no threads to fork.
    code = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("pages", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
pages = module.Pages(os.open(sys.argv[2], os.O_RDWR | os.O_CREAT))
pages.append(b"before ")
child = os.fork()
if not child:
    pages.append(b"child ")
    pages.close()
    os._exit(0)
os.waitpid(child, 0)
pages.append(b"after " * 2_000)  # the system ends a process that writes to pages which are gone
pages.close()
"""
    path = tmp_path / "file"
    subprocess.run([sys.executable, "-c", code, pages.__file__, str(path)], check=True, timeout=100)
    assert path.read_bytes() == b"before " + b"after " * 2_000


def test_typed_keys_do_not_count() -> None:
    key, array = jax.random.key(1), np.arange(3)
    assert fingerprint_of([key, array]) == fingerprint_of([array])


def test_a_long_one_is_written_room_by_room(tmp_path: Path) -> None:
    events = [Event(Kind.TAKE, worker=number % 7, version=number) for number in range(20_000)]
    path = write(tmp_path / "run.trace", events)
    assert Trace(path).events == events
    assert path.stat().st_size > 2 * pages._ROOM
    writer = TraceWriter(path, HEADER)  # replaces it
    writer.write(*dataclasses.astuple(EVENTS[0]))
    del writer  # closes it
    assert Trace(path).events == EVENTS[:1]
    assert Trace(path).is_whole


def test_an_event_takes_35_bytes(tmp_path: Path) -> None:
    sizes = [len(write(tmp_path / "run.trace", EVENTS[:n]).read_bytes()) for n in (2, 3, 5)]
    assert [size - sizes[0] for size in sizes] == [0, 35, 3 * 35]


@pytest.mark.parametrize("lost", [1, 5, 6, 7, 34])
def test_one_that_was_cut_off_holds_its_whole_events(tmp_path: Path, lost: int) -> None:
    path = write(tmp_path / "run.trace")
    path.write_bytes(path.read_bytes()[:-lost])
    trace = Trace(path)
    assert trace.events == EVENTS[:-1]
    assert not trace.is_whole


@pytest.mark.parametrize("event", range(len(EVENTS)))
def test_a_changed_bit_is_found(tmp_path: Path, event: int) -> None:
    path = write(tmp_path / "run.trace")
    content = bytearray(path.read_bytes())
    content[len(content) - 35 * (len(EVENTS) - event) + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ReplayError, match=f"damaged at byte .* in event {event}"):
        Trace(path)


def test_a_damaged_header_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "run.trace")
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    with pytest.raises(ReplayError, match="in the header"):
        Trace(path)


def test_other_files_and_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="A trace is a file"):
        Trace(tmp_path / "none.trace")
    (tmp_path / "text").write_text("paceline\n")
    with pytest.raises(ReplayError, match="A trace begins with"):
        Trace(tmp_path / "text")
    with pytest.raises(ReplayError, match=f"format {FORMAT}.*of format {FORMAT + 1}"):
        Trace(write(tmp_path / "newer.trace", format=FORMAT + 1))
    path = write(tmp_path / "short.trace")
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(ReplayError, match="without a whole one"):
        Trace(path)


class TestDifference:
    """Where two runs part."""

    def test_times_do_not_count(self, tmp_path: Path) -> None:
        later = [dataclasses.replace(event, time=event.time + 1) for event in EVENTS]
        one, other = write(tmp_path / "one"), write(tmp_path / "other", later)
        assert first_difference(Trace(one), Trace(other)) is None

    def test_the_first_event_that_differs_is_named(self, tmp_path: Path) -> None:
        changed = [*EVENTS[:3], dataclasses.replace(EVENTS[3], version=6), EVENTS[4]]
        one, other = write(tmp_path / "one"), write(tmp_path / "other", changed)
        parting = first_difference(Trace(one), Trace(other))
        assert parting is not None
        assert parting.index == 3
        assert "version 4" in parting.text
        assert "version 6" in parting.text

    def test_one_that_ends_earlier(self, tmp_path: Path) -> None:
        one, other = write(tmp_path / "one", EVENTS[:2]), write(tmp_path / "other")
        parting = first_difference(Trace(one), Trace(other))
        assert parting is not None
        assert (parting.index, parting.text) == (
            2,
            "One run ends after 2 events, the other goes on.",
        )

    def test_other_settings(self, tmp_path: Path) -> None:
        one, other = write(tmp_path / "one"), write(tmp_path / "other", workers=3)
        parting = first_difference(Trace(one), Trace(other))
        assert parting is not None
        assert (parting.index, parting.text) == (None, "The runs differ in workers: 2 and 3.")


class TestCommands:
    """`paceline trace`, as a user calls it."""

    def invoke(self, *arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["trace", *map(str, arguments)])
        return result.exit_code, result.output

    def test_show_prints_settings_counts_and_events(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.trace", libraries={"jax": "1.2.3"})
        status, output = self.invoke("show", path)
        assert status == 0
        for words in ("Asynchronous()", "jax 1.2.3", "workers", "updates", "version 3"):
            assert words in output
        rows = re.findall(r"│ (\w+) +│ +(\d+) │", output)
        assert {"submit", "take", "pull", "push", "end"} <= {name for name, _ in rows}
        shown = re.findall(r"^ +(\d)  .* s  version", output, re.MULTILINE)
        assert shown == list("01234")

    def test_show_prints_as_many_events_as_asked_for(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.trace")
        _, output = self.invoke("show", path, "--first", 2, "--last", 1)
        shown = re.findall(r"^ +(\d)  .* s  version", output, re.MULTILINE)
        assert shown == list("014")
        assert "2 more" in output
        _, output = self.invoke("show", path, "--first", 4, "--last", 4)
        assert "more" not in output

    def test_show_says_that_a_trace_is_not_whole(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.trace")
        assert "cut off" not in self.invoke("show", path)[1]
        path.write_bytes(path.read_bytes()[:-1])
        assert "4: cut off" in self.invoke("show", path)[1]

    def test_diff_names_the_event_at_which_runs_part(self, tmp_path: Path) -> None:
        changed = [*EVENTS[:3], dataclasses.replace(EVENTS[3], version=6), EVENTS[4]]
        one, other = write(tmp_path / "one"), write(tmp_path / "other", changed)
        status, output = self.invoke("diff", one, other)
        assert status == 1
        assert "The runs part at event 3:" in output
        assert "version 4" in output
        assert "version 6" in output

    def test_diff_of_equal_runs(self, tmp_path: Path) -> None:
        one, other = write(tmp_path / "one"), write(tmp_path / "other")
        assert self.invoke("diff", one, other) == (0, "The runs are the same.\n")

    def test_what_is_no_trace_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("paceline\n")
        for command in (("show", tmp_path / "text"), ("diff", tmp_path / "text", tmp_path)):
            status, output = self.invoke(*command)
            assert status == 2
            assert "A trace begins with" in output
            assert "Traceback" not in output
