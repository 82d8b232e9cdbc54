"""A recommendation in plain words, from figures alone. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORTH = 1.1  # a mode has to be this many times as fast to be worth a change
_IDLE = 0.1
_CLOSE = 0.02  # accuracies within two points count as equal


def recommend(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns which run to choose, in one or two sentences, and the reasons.

    With a target, the fastest run that reaches it; else the fastest of those whose last figure is
    within two points of the best. Lockstep is preferred where nothing else is much faster.
    """
    runs: Sequence[Mapping[str, Any]] = result["runs"]
    able = _able(runs, result["target"])
    if not able:
        target = result["target"]
        text = (
            f"No mode reached {_words(target['metric'], target['value'])}. Train on more examples, "
            "choose another learning rate, or lower the target."
        )
        return {"run": None, "text": text, "reasons": [f"{_last_figure(one)}." for one in runs]}
    lockstep = [one for one in able if one["mode"] == "lockstep"]
    best = min(able, key=lambda one: (_time_of(one), -(_goodness(one) or 0.0)))
    if lockstep and _time_of(min(lockstep, key=_time_of)) <= _WORTH * _time_of(best):
        best = min(lockstep, key=_time_of)
    return {
        "run": best["name"],
        "text": _sentence(best, lockstep, result["target"]),
        "reasons": _reasons(runs, best),
    }


def _able(
    runs: Sequence[Mapping[str, Any]], target: Mapping[str, Any] | None
) -> list[Mapping[str, Any]]:
    if target is not None:
        return [one for one in runs if one["seconds_to_target"] is not None]
    figures = {id(one): _goodness(one) for one in runs}
    known = [value for value in figures.values() if value is not None]
    if not known:
        return []
    best = max(known)
    slack = _CLOSE if "accuracy" in runs[0]["curve"][-1] else _CLOSE * abs(best)
    return [
        one for one in runs if (value := figures[id(one)]) is not None and value >= best - slack
    ]


def _goodness(one: Mapping[str, Any]) -> float | None:
    """The last figure, so that more is better."""
    last = one["curve"][-1]
    if "accuracy" in last:
        return last["accuracy"]
    return None if last.get("loss") is None else -last["loss"]


def _time_of(one: Mapping[str, Any]) -> float:
    reached = one["seconds_to_target"]
    return one["seconds"] if reached is None else reached


def _sentence(
    best: Mapping[str, Any],
    lockstep: Sequence[Mapping[str, Any]],
    target: Mapping[str, Any] | None,
) -> str:
    what = "all examples" if target is None else _words(target["metric"], target["value"])
    text = f"Choose {best['name']}: it needs {_time_of(best):,.0f} virtual s for {what}"
    others = [one for one in lockstep if one is not best]
    if not others:
        return f"{text}."
    other = min(others, key=_time_of)
    factor = _time_of(other) / max(_time_of(best), 1e-12)
    return f"{text}, {factor:.2g} times as fast as {other['name']}."


def _reasons(runs: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[str]:
    reasons = []
    for one in runs:
        if one["mode"] == "lockstep" and one["idle_share"] > _IDLE:
            reasons.append(
                f"In {one['name']}, workers wait {one['idle_share']:.0%} of the time for the "
                "slowest of their round."
            )
        slow = one["stragglers"]
        if slow and "bound" in one["mode"] and one["idle_share"] > _IDLE:
            reasons.append(
                f"{', '.join(slow)} is slow for good: a bound on staleness lets the others run "
                f"ahead only once, and they still wait {one['idle_share']:.0%} of the time."
            )
        if one["dropped_share"] > _CLOSE:
            reasons.append(
                f"{one['name'].capitalize()} throws {one['dropped_share']:.0%} of the gradients "
                "away."
            )
        if one is not best and _is_worse(one, best):
            reasons.append(f"{_last_figure(one)}, and {_last_figure(best, is_short=True)} there.")
    stale = best["staleness"]["mean"]
    if stale >= 1:
        reasons.append(
            f"Gradients are {stale:.1f} versions old on average in {best['name']}: choose the "
            "learning rate for that, and watch the loss in the first minutes."
        )
    rates = {one["learning_rate"] for one in runs}
    if all(one["is_tuned"] for one in runs):
        shown = ", ".join(f"{one['mode']} {one['learning_rate']:.3g}" for one in runs)
        reasons.append(f"Each mode is shown at the best of its learning rates: {shown}.")
    if not any(one["is_tuned"] for one in runs):
        rate = f" of {rates.pop():g}" if len(rates) == 1 else ""
        reasons.append(
            f"All modes ran at the same learning rate{rate}, tuned for none of them. With a rate "
            "for each, the order may be another one."
        )
    return reasons


def _is_worse(one: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    value, other = _goodness(one), _goodness(best)
    return value is None or (other is not None and value < other - _CLOSE)


def _last_figure(one: Mapping[str, Any], *, is_short: bool = False) -> str:
    last = one["curve"][-1]
    if "accuracy" in last:
        words = f"{last['accuracy']:.1%} accuracy"
    elif last.get("loss") is None:
        words = "a loss that is no number"
    else:
        words = f"a loss of {last['loss']:.3g}"
    return words if is_short else f"{one['name'].capitalize()} ends at {words}"


def _words(metric: str, value: float) -> str:
    return f"{value:.1%} accuracy" if metric == "accuracy" else f"a {metric} of {value:g}"
