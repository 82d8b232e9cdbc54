"""What `GradientTape` accepts, and what it says about the rest."""

from __future__ import annotations

import enum
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import keras

from paceline.errors import ContextError, InvalidArgument, InvalidType
from paceline.program.rerun import is_differentiable

if TYPE_CHECKING:
    from collections.abc import Sequence


class UnconnectedGradients(enum.Enum):
    """What `gradient` returns for a source that the target does not depend on."""

    NONE = "none"
    ZERO = "zero"


class VariableGroup:
    """Several variables that are used as one value; each has a gradient of its own.

    Attributes:
        variables: the variables.
    """

    variables: Sequence[Any]


def separated(nest: Any) -> Any:
    """The nest with the list of its variables in the place of each `VariableGroup`."""
    return keras.tree.map_structure(
        lambda leaf: list(leaf.variables) if isinstance(leaf, VariableGroup) else leaf, nest
    )


def check_flag(name: str, value: object) -> None:
    """Refuses a constructor argument that is no bool; often the sources were put there."""
    if not isinstance(value, bool):
        raise InvalidType(
            f"GradientTape takes bools. Received: {name}={value!r} of type {type(value).__name__}. "
            f"Use {name}=True or {name}=False; the sources go to `gradient`, not here."
        )


def flatten(nest: Any, name: str) -> list[Any]:
    """The leaves of a nested structure, each an array or a variable."""
    leaves = keras.tree.flatten(nest)
    for leaf in leaves:
        check_leaf(leaf, name)
    return leaves


def check_leaf(leaf: object, name: str) -> None:
    """Refuses what is neither a JAX array or tracer nor a Keras variable."""
    if not isinstance(leaf, (jax.Array, keras.Variable)):
        raise InvalidType(
            "GradientTape works on JAX arrays and Keras variables, which it knows by identity. "
            f"Received: {name}={leaf!r} of type {type(leaf).__name__}. Convert it once with "
            "jax.numpy.asarray and use the result inside the block; take the gradient of a "
            "per-replica value inside `strategy.run`."
        )


def is_floating(leaf: Any, name: str) -> bool:
    """Whether `leaf` has a gradient; warns if not, as TensorFlow does."""
    if is_differentiable(leaf):
        return True
    warnings.warn(
        f"Only floating and complex values have gradients. Received: {name} of dtype {leaf.dtype}. "
        "It counts as unconnected; cast it before the computation if a gradient is wanted.",
        stacklevel=3,
    )
    return False


def dtype_of(leaf: Any) -> Any:
    """The dtype of an array, or of a variable whatever the autocast scope."""
    return leaf._dtype if isinstance(leaf, keras.Variable) else leaf.dtype


def unconnected(value: object) -> UnconnectedGradients:
    """The enum member for a member or its spelling."""
    try:
        return UnconnectedGradients(value)
    except ValueError:
        raise InvalidArgument(
            "unconnected_gradients is UnconnectedGradients.NONE or .ZERO, or 'none' or 'zero'. "
            f"Received: unconnected_gradients={value!r}. Use 'zero' to get zeros for sources that "
            "the target does not depend on."
        ) from None


def cotangents(output_gradients: Any, targets: Sequence[Any]) -> list[Any]:
    """One gradient to start from per target: those given, cast, and ones for None."""
    if output_gradients is None:
        given: list[Any] = [None] * len(targets)
    else:
        given = keras.tree.flatten(output_gradients)
    if len(given) != len(targets):
        raise InvalidArgument(
            "output_gradients has one element per target. Received: "
            f"{len(given)} output gradient(s) for {len(targets)} target(s). Use None in the places "
            "where ones are wanted."
        )
    starts = []
    for gradient, target in zip(given, targets, strict=True):
        if gradient is None:
            starts.append(jnp.ones(target.shape, target.dtype))
            continue
        start = jnp.asarray(gradient, dtype=target.dtype)
        if start.shape != target.shape:
            raise InvalidArgument(
                "An output gradient has the shape of its target. Received: shape "
                f"{start.shape} for a target of shape {target.shape}. Broadcast it first."
            )
        starts.append(start)
    return starts


def check_batch(target: Any, source: Any) -> None:
    """Refuses shapes that have no per-example jacobian."""
    shapes = tuple(target.shape), tuple(source.shape)
    if min(len(shape) for shape in shapes) < 2 or shapes[0][0] != shapes[1][0]:
        raise InvalidArgument(
            "batch_jacobian takes a target and a source with at least two dims and the same first "
            f"dim, the batch. Received: target.shape={shapes[0]}, source.shape={shapes[1]}. Use "
            "`jacobian` where the first dim is no batch."
        )


def refuse_without_record(method: str, released: bool) -> NoReturn:
    """Says why a tape has no record to work on."""
    if released:
        raise ContextError(
            "A GradientTape that is not persistent computes one set of gradients or jacobians. "
            f"Received: `{method}` after its record was released. Differentiate with respect to "
            "all sources in one call, or use GradientTape(persistent=True)."
        )
    raise ContextError(
        f"`{method}` needs a tape that records. Received: `{method}` on a GradientTape that was "
        "never entered. Put the computation into `with paceline.GradientTape() as tape:`."
    )


def refuse_not_recording(method: str) -> NoReturn:
    """Says that a method has a meaning only while the tape records."""
    raise ContextError(
        f"`{method}` is called inside the tape's `with` block, while it records. Received: "
        f"`{method}` on a GradientTape that is not recording. Call it before the block ends, "
        "outside `stop_recording`, and before `gradient` on a tape that is not persistent."
    )
