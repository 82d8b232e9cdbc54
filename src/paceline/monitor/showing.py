"""A report for people: one paragraph, and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from paceline.monitor.report import Report
    from paceline.monitor.worker_report import WorkerReport

_MOST_REASONS = 5
_DIGITS = 2  # a median is known within 0.4%
_COLUMNS = ("Worker", "Steps", "Steps/s", "Examples/s", "Waits", "Step", "Stale")


def summary(report: Report) -> str:
    """One paragraph in plain words."""
    if not report.pushes:
        return " ".join(["No push was recorded.", *_taken_back(report)])
    sentences = [_speed(report)]
    if report.applied:
        sentences.append(
            f"Staleness: mean {report.mean_staleness:.2f}, median {report.percentile(50)}, "
            f"99% at most {report.percentile(99)}, largest {report.max_staleness}."
        )
    stragglers = report.stragglers
    sentences += [_straggler(one, report) for one in report.workers if one.name in stragglers]
    sentences += _drops(report)
    if report.retries:
        sentences.append(f"{_many(report.retries, 'push')} came once more and did not count again.")
    sentences += _taken_back(report)
    return " ".join(sentences)


def table(report: Report) -> Table:
    """A row for each worker, one for all, and the summary below."""
    shown = Table(
        title="Pushes by worker",
        caption=Text(summary(report)),
        caption_justify="left",
        # Nine columns, some with millions, must fit a terminal of 80.
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
        show_footer=len(report.workers) > 1,
    )
    totals = [
        "all",
        f"{report.applied:,}",
        _rate(report.steps_per_second),
        _rate(report.examples_per_second),
        f"{report.wait_share:.0%}",
        _seconds(report.typical_compute, _DIGITS),
        f"{report.mean_staleness:.2f}",
    ]
    columns = [*_COLUMNS]
    if has_extras := bool(report.dropped or report.retries):
        columns += ["Dropped", "Retried"]
        totals += [f"{report.dropped:,}", f"{report.retries:,}"]
    for heading, total in zip(columns, totals, strict=True):
        shown.add_column(
            heading, total, justify="left" if heading == "Worker" else "right", no_wrap=True
        )
    stragglers = report.stragglers
    for one in report.workers:
        shown.add_row(*_row(one, has_extras), style="bold red" if one.name in stragglers else None)
    return shown


def _row(one: WorkerReport, has_extras: bool) -> list[str]:
    row = [
        one.name,
        f"{one.applied:,}",
        _rate(one.steps_per_second),
        _rate(one.examples_per_second),
        f"{one.wait_share:.0%}",
        _seconds(one.median_compute, _DIGITS),
        f"{one.mean_staleness:.2f}",
    ]
    return [*row, f"{one.dropped:,}", f"{one.retries:,}"] if has_extras else row


def _speed(report: Report) -> str:
    rates = f"{_rate(report.steps_per_second)} steps"
    if report.examples:
        rates += f" and {_rate(report.examples_per_second)} examples"
    workers = sum(one.pushes > 0 for one in report.workers)
    return (
        f"{_many(workers, 'worker')} made {_many(report.applied, 'step')} in "
        f"{_seconds(report.seconds)}: {rates} a second, "
        f"{report.wait_share:.0%} of the time waiting."
    )


def _straggler(one: WorkerReport, report: Report) -> str:
    times = one.median_compute / report.typical_compute
    return (
        f"{one.name} is slow: its steps take {_seconds(one.median_compute, _DIGITS)}, "
        f"{times:,.{0 if times >= 9.95 else 1}f} times the median over workers."
    )


def _drops(report: Report) -> list[str]:
    if not report.dropped:
        return []
    drops = list(report.drops.items())
    shown = [
        f'{count:,} because "{reason.removesuffix(".")}"' for reason, count in drops[:_MOST_REASONS]
    ]
    if rest := sum(count for _, count in drops[_MOST_REASONS:]):
        shown.append(f"{rest:,} for other reasons")
    return [f"{report.dropped:,} of {_many(report.pushes, 'push')} dropped: {', '.join(shown)}."]


def _taken_back(report: Report) -> list[str]:
    return [
        f"{one.name} had {_many(one.taken_back, 'lease')} longer than allowed: taken back."
        for one in report.workers
        if one.taken_back
    ]


def _many(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("sh") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _rate(number: float) -> str:
    """A number a second, with about three digits."""
    return f"{number:,.2f}" if number < 9.995 else f"{number:,.{1 if number < 99.95 else 0}f}"


def _seconds(seconds: float, digits: int = 3) -> str:
    """A duration with so many digits and a unit."""
    shown = float(f"{seconds:.{digits}g}")
    for unit, per_second in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        number = round(shown * per_second, 6)
        if number >= 1:
            return f"{number:,.{max(0, digits - len(str(int(number))))}f} {unit}"
    return "0 s"
