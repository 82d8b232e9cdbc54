"""Which values a gradient tape takes for which variable."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import keras
from keras.src.backend.common.stateless_scope import get_stateless_scope

from paceline.program import tape_arguments as arguments
from paceline.program.recording import Root
from paceline.program.rerun import is_differentiable

if TYPE_CHECKING:
    from paceline.program.recording import Record


@dataclasses.dataclass
class _Reads:
    """The values a watched variable was read as.

    Attributes:
        variable: The variable.
        roots: One root per value.
        notified: Whether reads are made known by `notify_read`, so that no other value counts.
    """

    variable: Any
    roots: list[Root] = dataclasses.field(default_factory=list)
    notified: bool = False

    def add(self, record: Record, value: Any) -> None:
        if value is not None and all(root.value is not value for root in self.roots):
            record.watch(value, cut=True)
            self.roots.append(record.roots[id(value)])


class VariableReads:
    """The variables that one tape watches, and the values they were read as.

    Args:
        watch_accessed: Whether a trainable variable is watched when it is first read.
    """

    def __init__(self, watch_accessed: bool) -> None:
        self._watch_accessed = watch_accessed
        self._reads: dict[int, _Reads] = {}

    def variables(self) -> tuple[Any, ...]:
        """The watched variables, in the order in which they were first read or watched."""
        return tuple(reads.variable for reads in self._reads.values())

    def release(self) -> None:
        """Forgets the values, not the variables."""
        for reads in self._reads.values():
            reads.roots.clear()

    def watch(self, record: Record, variable: Any) -> None:
        """Makes later reads of `variable`, and of the value it holds now, count."""
        reads = self._reads.setdefault(id(variable), _Reads(variable))
        reads.add(record, _value_held(variable))

    def note(self, record: Record, variable: Any, raw_value: Any) -> None:
        """Takes a read of `variable` as `raw_value`."""
        if not is_differentiable(raw_value):
            return
        reads = self._reads.get(id(variable))
        if reads is None:
            if not (self._watch_accessed and variable.trainable):
                return
            reads = self._reads[id(variable)] = _Reads(variable)
        reads.notified = True
        reads.add(record, raw_value)

    def target_value(self, target: Any) -> Any:
        """The value that stands for a target."""
        if not isinstance(target, keras.Variable):
            return target
        reads = self._reads.get(id(target))
        if reads is not None and reads.notified:
            return reads.roots[-1].value
        return _value_held(target)

    def roots(self, record: Record, source: Any) -> list[Root]:
        """What to differentiate with respect to for a source; empty if it is not watched."""
        if not arguments.is_floating(source, "source"):
            return []
        if not isinstance(source, keras.Variable):
            root = record.roots.get(id(source))
            if root is None and record.made_here(source):
                root = Root(source, 0, cut=False)
            return [] if root is None else [root]
        reads = self._reads.get(id(source))
        if reads is None and not (self._watch_accessed and source.trainable):
            return []
        if reads is not None and reads.notified:
            return reads.roots
        # Nobody says how plain Keras variables are read.
        known = [] if reads is None else reads.roots
        start = min((root.start for root in known), default=0)
        return [*known, Root(_value_held(source), start, cut=True)]


def _value_held(variable: Any) -> Any:
    """What a read of the variable gives here, before autocasting."""
    scope = get_stateless_scope()
    value = None if scope is None else scope.get_current_value(variable)
    return variable._value if value is None else value
