"""A comparison in files: JSON that is read again, and CSV for spreadsheets."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.comparison import tables
from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FORMAT = 1

_NONE = type(None)
_NUMBER = (int, float)
_MAYBE = (int, float, _NONE)
_RESULT: dict[str, Any] = {
    "title": str,
    "created": str,
    "real_seconds": _MAYBE,
    "settings": dict,
    "target": (dict, _NONE),
    "runs": list,
    "recommendation": dict,
}
_TARGET: dict[str, Any] = {"metric": str, "value": _NUMBER}
_RECOMMENDATION: dict[str, Any] = {"run": (str, _NONE), "text": str, "reasons": list}
_RUN: dict[str, Any] = {
    "name": str,
    "mode": str,
    "pace": str,
    "update_rule": (str, _NONE),
    "workers": int,
    "compute": str,
    "learning_rate": (int, float, str, _NONE),
    "is_tuned": bool,
    "seconds": _MAYBE,
    "examples": int,
    "real_seconds": _MAYBE,
    "bytes": _MAYBE,
    "curve": list,
    "seconds_to_target": _MAYBE,
    "examples_to_target": _MAYBE,
    "idle_share": _MAYBE,
    "examples_per_second": _MAYBE,
    "staleness": dict,
    "dropped": int,
    "dropped_share": _MAYBE,
    "stragglers": list,
    "timeline": (dict, _NONE),
}
_POINT: dict[str, Any] = {"seconds": _NUMBER, "examples": int, "loss": _MAYBE}
_STALENESS: dict[str, Any] = {
    "mean": _MAYBE,
    "median": _MAYBE,
    "p99": _NUMBER,
    "largest": _NUMBER,
    "histogram": dict,
}
_TIMELINE: dict[str, Any] = {"workers": list, "from": _NUMBER, "to": _NUMBER, "spans": list}
_KINDS = ("compute", "wait", "dropped")


def checked(result: Any) -> dict[str, Any]:
    """A comparison as tables and pages need it.

    Args:
        result: what `read_json` returns, or the same made in Python. More keys than the format
            has are left alone.

    Returns:
        A copy in which numbers that are not finite are None.

    Raises:
        InvalidArgument: another format, or something is missing or of a wrong type.
    """
    clean = _finite(result)
    found = clean.get("format") if isinstance(clean, dict) else clean
    if found != FORMAT or isinstance(found, bool):
        raise InvalidArgument(
            f"A comparison has the format {FORMAT}. Received: format={found!r}. "
            "Give a file that `paceline compare` of this version wrote."
        )
    _has(clean, _RESULT, "comparison")
    if clean["target"] is not None:
        _has(clean["target"], _TARGET, "target")
    _has(clean["recommendation"], _RECOMMENDATION, "recommendation")
    for index, run in enumerate(clean["runs"]):
        _check_run(run, f"runs[{index}]")
    _check_names(clean)
    return clean


def to_json(result: dict[str, Any]) -> str:
    """A comparison as JSON; numbers that are not finite become null.

    Raises:
        InvalidArgument: it does not have the form of a comparison.
    """
    return json.dumps(checked(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a comparison as JSON, whole or not at all.

    Raises:
        InvalidArgument: it does not have the form of a comparison.
    """
    write_text(to_json(result), path)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a comparison.

    Raises:
        InvalidArgument: the file holds something else, or only a part.
        OSError: the file cannot be read.
    """
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgument(
            f"A comparison is a JSON file. Received: path={os.fspath(path)!r}, where {error}. "
            "Give a file that `paceline compare` wrote."
        ) from error
    return checked(result)


def write_csv(
    result: dict[str, Any], runs: str | os.PathLike[str], curves: str | os.PathLike[str]
) -> None:
    """Writes a comparison as two CSV files.

    Args:
        result: the comparison.
        runs: the file with a row for each run.
        curves: the file with a row for each point of each run's curve.
    """
    write_text(tables.runs_csv(result), runs)
    write_text(tables.curves_csv(result), curves)


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Writes a file by way of another one, so that no reader finds a half of it."""
    whole = Path(path)
    part = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="")
        part.replace(whole)
    finally:
        part.unlink(missing_ok=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _has(value: Any, form: dict[str, Any], place: str) -> None:
    """Checks that a dict has these keys, with values of these types."""
    if not isinstance(value, dict):
        raise _wrong(place, "a dict", value)
    for key, kinds in form.items():
        if key not in value:
            raise InvalidArgument(
                f"A comparison has {place}.{key}. Received: only {', '.join(map(repr, value))}."
            )
        _is(value[key], kinds, f"{place}.{key}")


def _is(value: Any, kinds: Any, place: str) -> None:
    # A bool is an int for Python, and no number here.
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        names = ("None" if kind is _NONE else kind.__name__ for kind in allowed)
        raise _wrong(place, " or ".join(names), value)


def _wrong(place: str, expected: str, value: Any) -> InvalidArgument:
    return InvalidArgument(f"In a comparison, {place} is {expected}. Received: {value!r:.80}.")


def _check_run(run: Any, place: str) -> None:
    _has(run, _RUN, place)
    for index, point in enumerate(run["curve"]):
        _has(point, _POINT, f"{place}.curve[{index}]")
        _is(point.get("accuracy"), _MAYBE, f"{place}.curve[{index}].accuracy")
    _has(run["staleness"], _STALENESS, f"{place}.staleness")
    for staleness, count in run["staleness"]["histogram"].items():
        if not (isinstance(staleness, str) and staleness.isdecimal()):
            raise _wrong(f"a key of {place}.staleness.histogram", "a whole number", staleness)
        _is(count, int, f"{place}.staleness.histogram[{staleness!r}]")
    for straggler in run["stragglers"]:
        _is(straggler, str, f"each of {place}.stragglers")
    if run["timeline"] is not None:
        _check_timeline(run["timeline"], f"{place}.timeline")


def _check_timeline(timeline: Any, place: str) -> None:
    _has(timeline, _TIMELINE, place)
    for worker in timeline["workers"]:
        _is(worker, int, f"each of {place}.workers")
    for index, span in enumerate(timeline["spans"]):
        where = f"{place}.spans[{index}]"
        if not isinstance(span, list) or len(span) != 4 or span[3] not in _KINDS:
            raise _wrong(where, f"[worker, began, ended, {' | '.join(_KINDS)}]", span)
        for value, kinds in zip(span, (int, _NUMBER, _NUMBER), strict=False):
            _is(value, kinds, where)


def _check_names(result: dict[str, Any]) -> None:
    names = [run["name"] for run in result["runs"]]
    if not names:
        raise InvalidArgument("A comparison has at least one run. Received: runs=[].")
    if twice := _twice(names):
        raise InvalidArgument(
            f"The runs of a comparison have names of their own. Received: {twice}."
        )
    run = result["recommendation"]["run"]
    if run is not None and run not in names:
        raise _wrong("recommendation.run", "None or the name of a run", run)
    for reason in result["recommendation"]["reasons"]:
        _is(reason, str, "each of recommendation.reasons")


def _twice(names: Iterable[str]) -> str:
    def repeated() -> Iterator[str]:
        seen: set[str] = set()
        for name in names:
            if name in seen:
                yield repr(name)
            seen.add(name)

    return ", ".join(repeated())
