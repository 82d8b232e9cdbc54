"""How a recorded operation is run a second time.

Most operations are simply bound again. Two things need care in operations that contain programs
(a jitted function, a loop body): arrays that the function closed over are constants of its program
and have to become inputs, or the gradient would not reach them; and callbacks such as
`jax.debug.print` have run once and must not run again.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.extend import core as jax_core

from paceline.errors import Unsupported

Run = Callable[..., list[Any]]

# Left out of a second run unless a result of theirs is used.
_CALLBACKS = {"debug_callback", "debug_print", "io_callback"}


@functools.lru_cache(maxsize=256)
def _is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.inexact))


def is_differentiable(value: object) -> bool:
    """Whether a gradient can flow through `value`: a real or complex floating array."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and _is_inexact(dtype)


def rerunnable(
    primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[tuple[Any, ...], Run]:
    """The inputs of an operation, closed-over arrays included, and a function of them.

    Args:
        primitive: A JAX primitive.
        args: Its operands.
        params: Its parameters, as given to `bind`.

    Returns:
        `(inputs, run)`: `run(*inputs)` gives the list of the operation's results.
    """
    captured: list[Any] = []
    is_quiet = True
    for closed in _programs(params):
        facts = _facts(closed.jaxpr)
        captured += [const for const in closed.consts if is_differentiable(const)]
        captured += facts.captured
        is_quiet = is_quiet and not facts.has_callbacks
    if not is_quiet:
        params = _without_callbacks(params)

    def bind(*operands: Any) -> list[Any]:
        results = primitive.bind(*operands, **params)
        return list(results) if primitive.multiple_results else [results]

    if not captured:
        return tuple(args), bind
    return _capturing(primitive.name, params, captured, args, bind)


def rerunnable_call(closed: Any, args: Sequence[Any]) -> tuple[tuple[Any, ...], Run]:
    """As `rerunnable`, for a call of `closed`, a program with custom derivative rules inside."""
    consts = list(closed.consts)
    nested = list(_facts(closed.jaxpr).captured)
    split = len(nested)

    def run(*values: Any) -> list[Any]:
        if any(new is not old for new, old in zip(values, nested, strict=False)):
            raise _captured_too_deep("a function with custom derivative rules")
        operands = values[split:]
        return list(eval_jaxpr(closed.jaxpr, operands[: len(consts)], *operands[len(consts) :]))

    return (*nested, *consts, *args), run


def _capturing(
    name: str, params: dict[str, Any], captured: list[Any], args: Sequence[Any], bind: Run
) -> tuple[tuple[Any, ...], Run]:
    split = len(captured)

    def run(*values: Any) -> list[Any]:
        new, operands = values[:split], values[split:]
        changed = tuple(i for i in range(split) if new[i] is not captured[i])
        if not changed:
            return bind(*operands)
        if name != "jit":
            raise _captured_too_deep(f"`{name}`")
        program = _opened(params["jaxpr"], tuple(id(captured[i]) for i in changed))
        return program([new[i] for i in changed], list(operands))

    return (*captured, *args), run


def _captured_too_deep(where: str) -> Unsupported:
    return Unsupported(
        "GradientTape cannot differentiate with respect to an array that a jitted function closed "
        "over when that function is called from within a loop body or a custom derivative. "
        f"Received: such an array inside {where}. Pass the array or the variable's value to the "
        "jitted function as an argument."
    )


@functools.lru_cache(maxsize=128)
def _opened(closed: Any, keys: tuple[int, ...]) -> Callable[[list[Any], list[Any]], list[Any]]:
    """The jitted program with the constants of these ids as its first argument."""
    return jax.jit(lambda new, args: _evaluate(closed, dict(zip(keys, new, strict=True)), args))


def _evaluate(closed: Any, new: dict[int, Any], args: Sequence[Any]) -> list[Any]:
    consts = [new.get(id(const), const) for const in closed.consts]
    env = dict(zip(closed.jaxpr.constvars, consts, strict=True))
    env.update(zip(closed.jaxpr.invars, args, strict=True))

    def read(var: Any) -> Any:
        return var.val if isinstance(var, jax_core.Literal) else env[var]

    for eqn in closed.jaxpr.eqns:
        primitive, operands = eqn.primitive, [read(var) for var in eqn.invars]
        inner = [p for p in _programs(eqn.params) if _captures(p, new)]
        if inner and primitive.name == "jit":
            results = _evaluate(inner[0], new, operands)
        elif inner:
            raise _captured_too_deep(f"`{primitive.name}`")
        else:
            with eqn.ctx.manager:
                results = primitive.bind(*operands, **primitive.get_bind_params(eqn.params))
            results = results if primitive.multiple_results else [results]
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in closed.jaxpr.outvars]


def _captures(closed: Any, new: dict[int, Any]) -> bool:
    consts = (*closed.consts, *_facts(closed.jaxpr).captured)
    return any(id(const) in new for const in consts)


class _Facts(NamedTuple):
    captured: tuple[Any, ...]
    has_callbacks: bool


# Programs are cached by JAX and met again in every step; the key is not kept alive.
_known: weakref.WeakKeyDictionary[Any, _Facts] = weakref.WeakKeyDictionary()


def _facts(jaxpr: Any) -> _Facts:
    """Differentiable constants of the programs inside `jaxpr`, and whether it has callbacks."""
    facts = _known.get(jaxpr)
    if facts is None:
        captured: dict[int, Any] = {}
        has_callbacks = False
        for eqn in jaxpr.eqns:
            has_callbacks = has_callbacks or eqn.primitive.name in _CALLBACKS
            for closed in _programs(eqn.params):
                inner = _facts(closed.jaxpr)
                consts = [c for c in closed.consts if is_differentiable(c)]
                captured.update((id(const), const) for const in (*consts, *inner.captured))
                has_callbacks = has_callbacks or inner.has_callbacks
        facts = _known[jaxpr] = _Facts(tuple(captured.values()), has_callbacks)
    return facts


def _programs(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, jax_core.ClosedJaxpr):
                yield item
            elif isinstance(item, jax_core.Jaxpr):
                yield jax_core.ClosedJaxpr(item, ())


def _without_callbacks(params: dict[str, Any]) -> dict[str, Any]:
    def quiet(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(quiet(item) for item in value)
        if isinstance(value, jax_core.ClosedJaxpr):
            return _quiet_closed(value)
        return _quiet(value) if isinstance(value, jax_core.Jaxpr) else value

    return {key: quiet(value) for key, value in params.items()}


# Cached, so that JAX's own caches, which go by identity, know the program in the next step.
@functools.lru_cache(maxsize=128)
def _quiet_closed(closed: Any) -> Any:
    return closed.replace(jaxpr=_quiet(closed.jaxpr))


@functools.lru_cache(maxsize=128)
def _quiet(jaxpr: Any) -> Any:
    eqns = []
    for eqn in jaxpr.eqns:
        unused = all(isinstance(var, jax_core.DropVar) for var in eqn.outvars)
        if eqn.primitive.name in _CALLBACKS and unused:
            continue
        has_callbacks = any(_facts(inner.jaxpr).has_callbacks for inner in _programs(eqn.params))
        # Custom rules carry a second copy of their program in functions; they are left as they are.
        if has_callbacks and not eqn.primitive.name.startswith("custom_"):
            eqn = eqn.replace(params=_without_callbacks(eqn.params), effects=_effects_of(eqn))
        eqns.append(eqn)
    effects = set().union(*(eqn.effects for eqn in eqns))
    return jaxpr.replace(eqns=eqns, effects=effects)


def _effects_of(eqn: Any) -> Any:
    inner = _programs(_without_callbacks(eqn.params))
    return set().union(*(closed.effects for closed in inner))
