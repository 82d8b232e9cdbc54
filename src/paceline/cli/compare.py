"""`paceline compare`: several modes on one model in virtual time, as a table and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from paceline import virtual
from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

_LATENCIES: dict[str, tuple[Callable[..., virtual.Latency], str]] = {
    "constant": (virtual.Constant, "constant:SECONDS"),
    "lognormal": (virtual.LogNormal, "lognormal:MEDIAN:SIGMA"),
    "pareto": (virtual.Pareto, "pareto:BASE:SCALE:SHAPE"),
    "rare": (virtual.RareSlow, "rare:SECONDS:SHARE:LEAST:MOST"),
    "spread": (virtual.Spread, "spread:SECONDS:LEAST:MOST"),
    "slow": (
        lambda seconds=1.0, factor=2.0, worker=0.0: virtual.Slow(seconds, {int(worker): factor}),
        "slow:SECONDS:FACTOR:WORKER",
    ),
}
_COMPUTE_HELP = (
    "How long a step takes, in virtual seconds: a number, a file of measured seconds, or one of "
    + ", ".join(form for _, form in _LATENCIES.values())
    + ". Give it several times to compare them."
)


def compare(
    script: Annotated[
        Path | None,
        typer.Argument(
            help="A file with make_model() and make_data(); perhaps BATCH_SIZE, EXAMPLES and "
            "evaluate(model). Default: the digits that come with Paceline."
        ),
    ] = None,
    workers: Annotated[
        list[int] | None, typer.Option(min=1, help="How many workers; may be given several times.")
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            help="lockstep, backups:N, bounded:N, softsync:N, async or async:N, perhaps with "
            "/plain, /scaled, /compensated, /adaptive or /gap; may be given several times."
        ),
    ] = None,
    compute: Annotated[list[str] | None, typer.Option(help=_COMPUTE_HELP)] = None,
    latency: Annotated[float, typer.Option(min=0, help="Seconds that a message travels.")] = 0.0,
    bandwidth: Annotated[
        float, typer.Option(min=0, help="Bytes a second of a server's link; 0: no limit.")
    ] = 0.0,
    servers: Annotated[int, typer.Option(min=1, help="How many servers.")] = 1,
    learning_rate: Annotated[
        list[float] | None,
        typer.Option(help="Given several times, each mode is shown at its best one."),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Accuracy (or loss) whose time is taken.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for page, JSON and CSV, and for runs that are done.")
    ] = Path("compare"),
) -> None:
    """Find out which mode trains a model fastest, before a machine is rented.

    Every mode trains the real model, with hundreds of simulated workers if need be, while time is
    virtual. A comparison that was interrupted goes on where it was.
    """
    # These take a while to load, and other commands do without.
    from paceline import comparison
    from paceline.comparison import files, page, tables

    console = Console()
    try:
        experiment = (
            comparison.digits() if script is None else comparison.Experiment.from_script(script)
        )
        with _progress(console) as progress:
            result = comparison.compare(
                experiment,
                modes=mode or (),
                workers=workers or 32,
                servers=servers,
                compute=[parse_latency(text) for text in compute or ["pareto"]],
                network=virtual.Network(latency=latency, bandwidth=bandwidth or float("inf")),
                learning_rates=learning_rate or (),
                target=target,
                seed=seed,
                folder=out,
                progress=_reporter(progress),
            )
    except InvalidArgument as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None
    files.write_json(result, out / "result.json")
    files.write_csv(result, out / "runs.csv", out / "curves.csv")
    files.write_text(page.page(result), out / "index.html")
    console.print(tables.table(result))
    console.print(f"The page: {out / 'index.html'}", markup=False, highlight=False)


def parse_latency(text: str) -> Any:
    """A model of time, from the command line.

    Raises:
        InvalidArgument: none of the known forms, or numbers that do not fit.
    """
    kind, *numbers = text.split(":")
    if kind in _LATENCIES:
        make, form = _LATENCIES[kind]
        try:
            return make(*map(float, numbers))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"A time is given as {form}. Received: {text!r}.") from error
    try:
        return float(text)
    except ValueError:
        return virtual.Measured(text)


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


def _reporter(progress: Progress) -> Callable[[str, int, int], None]:
    bars: dict[str, Any] = {}

    def report(name: str, done: int, total: int) -> None:
        if name not in bars:
            bars[name] = progress.add_task(name, total=total)
        progress.update(bars[name], completed=done, total=total)

    return report
