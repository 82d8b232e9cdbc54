"""`paceline trace`: what a recorded run holds, and where two of them part."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cluster.trace import Trace, first_difference
from paceline.errors import ReplayError

app = typer.Typer(no_args_is_help=True, help="Show and compare recorded runs.")

_File = Annotated[Path, typer.Argument(help="A trace, written with record=.")]


@app.command()
def show(
    path: _File,
    first: Annotated[int, typer.Option(min=0, help="How many of the first events to show.")] = 10,
    last: Annotated[int, typer.Option(min=0, help="How many of the last events to show.")] = 0,
) -> None:
    """Print what a trace says of its run: settings, how often what happened, and events."""
    trace, console = _read(path), Console(soft_wrap=True)
    events = trace.events
    settings = Table(title=Text(str(path)), show_header=False)
    for key, value in _settings(trace).items():
        settings.add_row(key, Text(value))
    console.print(settings)
    counts = Table("Event", "Count")
    counts.columns[1].justify = "right"
    for kind, count in sorted(collections.Counter(event.kind for event in events).items()):
        counts.add_row(kind.name.lower(), f"{count:,}")
    console.print(counts)
    is_shown = [at < first or at >= len(events) - last for at in range(len(events))]
    for at, event in enumerate(events):
        if is_shown[at]:
            console.print(Text(f"{at:>8}  {event.as_text()}"))
        elif at == first:
            console.print(f"     ...  {is_shown.count(False):,} more")


@app.command()
def diff(one: _File, other: _File) -> None:
    """Name the first event at which two runs part, whatever the times; exit with 1 if they do."""
    parting = first_difference(_read(one), _read(other))
    console = Console(soft_wrap=True)
    if parting is None:
        console.print("The runs are the same.")
        return
    console.print(Text(parting.text))
    raise typer.Exit(1)


def _settings(trace: Trace) -> dict[str, str]:
    """The header as lines, and what is known of the events as a whole."""
    header: dict[str, Any] = dict(trace.header)
    libraries = header.pop("libraries", {})
    header["libraries"] = ", ".join(f"{name} {version}" for name, version in libraries.items())
    end = "" if trace.is_whole else ": cut off, or still being written"
    header["events"] = f"{len(trace.events):,}{end}"
    if trace.events:
        began, ended = trace.events[0].time, trace.events[-1].time
        header["seconds"] = f"{ended - began:.6g}"
        header["updates"] = f"{trace.events[-1].version:,}"
    return {key.replace("_", " "): str(value) for key, value in header.items()}


def _read(path: Path) -> Trace:
    try:
        return Trace(path)
    except ReplayError as error:
        Console(stderr=True, soft_wrap=True).print(Text(str(error)), style="red")
        raise typer.Exit(2) from error
