"""The exceptions Paceline raises.

    PacelineError
    |- InvalidArgument (ValueError)      a value breaks a rule
    |- InvalidType (TypeError)           a value of the wrong type
    |- ContextError (RuntimeError)       a call in the wrong place: scope, replica, nesting
    |  `- ReplicaMismatch                replicas did not reach the same meeting points
    |- Unsupported (NotImplementedError) a meaningful request that Paceline does not serve
    |- ReplicasDiverged (RuntimeError)   copies of a variable that must be equal are not
    |- BackendError (ImportError)        Keras runs on another backend than JAX
    |- MissingExtra (ImportError)        a package of one of Paceline's extras is not installed
    |- TraceError (TypeError)            Python code that cannot be traced into a step program
    |- EndOfData (IndexError)            `get_next()` past the last batch
    `- CheckpointError (OSError)         a missing, damaged or foreign checkpoint

A message says the rule that was broken, what was received, and what to do. The built-in base
class is the one that the same mistake raises elsewhere in Python, so that code written against
`tf.distribute` keeps working.
"""

from __future__ import annotations


class PacelineError(Exception):
    """Base of every exception that Paceline raises on purpose."""


class InvalidArgument(PacelineError, ValueError):
    """An argument has the right type and a value that breaks a rule."""


class InvalidType(PacelineError, TypeError):
    """An argument has the wrong type."""


class ContextError(PacelineError, RuntimeError):
    """A call was made where it has no meaning: the wrong scope, replica or nesting."""


class ReplicaMismatch(ContextError):
    """The replicas of one `run` did not reach the same meeting points."""


class Unsupported(PacelineError, NotImplementedError):
    """A request that makes sense and that Paceline does not serve."""


class BackendError(PacelineError, ImportError):
    """Keras is loaded with a backend other than JAX."""


class ReplicasDiverged(PacelineError, RuntimeError):
    """Copies of a variable that must be equal differ."""


class MissingExtra(PacelineError, ImportError):
    """A package that an optional part of Paceline needs is not installed."""


class TraceError(PacelineError, TypeError):
    """Python code that cannot be traced into a step program."""


class EndOfData(PacelineError, IndexError):
    """`get_next()` was called after the last batch (tf.errors.OutOfRangeError)."""


OutOfRangeError = EndOfData
"""TensorFlow's name for `EndOfData`."""


class CheckpointError(PacelineError, OSError):
    """A checkpoint is missing, damaged, or was written for something else."""
