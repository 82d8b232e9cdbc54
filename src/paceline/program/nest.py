"""Nests with subclasses of dict in them, which JAX takes for leaves and tf.distribute for dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Iterable


@jax.tree_util.register_pytree_node_class
class _Opened:
    """The items of an instance of a dict subclass that JAX does not know."""

    def __init__(self, kind: type, keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        self._kind, self._keys, self._values = kind, keys, values

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return self._values, (self._kind, self._keys)

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> _Opened:
        kind, keys = static
        return cls(kind, keys, tuple(children))

    def close(self) -> Any:
        values = [closed(value) for value in self._values]
        return self._kind(zip(self._keys, values, strict=True))


class Whole:
    """A leaf of an opened nest whose value is put in its place as it is, also if it is a nest."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def close(self) -> Any:
        return self._value


def opened(nest: Any) -> Any:
    """The nest in a form whose every leaf `jax.tree` reaches."""

    def open_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, dict):
            return leaf
        return _Opened(type(leaf), tuple(leaf), tuple(opened(value) for value in leaf.values()))

    return jax.tree.map(open_leaf, nest)


def is_open(leaves: Iterable[Any]) -> bool:
    """Whether these leaves are all that `jax.tree` would reach of an opened nest, too."""
    return not any(isinstance(leaf, dict) for leaf in leaves)


def flattened(nest: Any) -> tuple[list[Any], Any]:
    """The leaves and the structure of an opened nest, which is only opened if it has to be."""
    leaves, tree = jax.tree.flatten(nest)
    return (leaves, tree) if is_open(leaves) else jax.tree.flatten(opened(nest))


def closed(nest: Any) -> Any:
    """The inverse of `opened`, after any change to the leaves."""
    return jax.tree.map(
        lambda leaf: leaf.close() if isinstance(leaf, (_Opened, Whole)) else leaf,
        nest,
        is_leaf=lambda leaf: isinstance(leaf, (_Opened, Whole)),
    )
