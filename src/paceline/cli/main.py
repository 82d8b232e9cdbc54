"""The program and its commands."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from paceline.cli import trace
from paceline.cli.compare import compare
from paceline.cli.demo import demo

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {version('paceline')}")
        raise typer.Exit


@app.callback()
def paceline(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train Keras models on JAX with many workers."""


app.command()(demo)
app.add_typer(trace.app, name="trace")
app.command()(compare)
