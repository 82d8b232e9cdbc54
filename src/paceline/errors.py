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
    |- Cancelled (RuntimeError)          work that was called off before it was finished
    |- ClosureInputError (RuntimeError)  scheduled work uses something that could not be made
    |- QueueFull (RuntimeError)          more work is queued than the queue may hold
    |- WaitTimeout (TimeoutError)        a wait whose deadline passed; it names what was awaited
    |- Unavailable (ConnectionError)     a worker or server does not answer
    |  `- WorkerLost                     a worker is gone, and its work could not be moved
    |- ReplayError (RuntimeError)        a recorded run that cannot be run again
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


InvalidArgumentError = InvalidArgument
"""TensorFlow's name for `InvalidArgument`."""


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


class Cancelled(PacelineError, RuntimeError):
    """Work was called off before it was finished (tf.errors.CancelledError).

    Cancelled does not mean not executed: what had started may have taken effect in part.
    """


CancelledError = Cancelled
"""TensorFlow's name for `Cancelled`."""


class ClosureInputError(PacelineError, RuntimeError):
    """Scheduled work uses a per-worker dataset or value that could not be made.

    The error that the making raised is the `__cause__`.
    """


class QueueFull(PacelineError, RuntimeError):
    """More work is queued than the queue may hold."""


class WaitTimeout(PacelineError, TimeoutError):
    """The deadline of a wait passed (tf.errors.DeadlineExceededError).

    The message names what was awaited, and for how long.
    """


DeadlineExceededError = WaitTimeout
"""TensorFlow's name for `WaitTimeout`."""


class Unavailable(PacelineError, ConnectionError):
    """A worker or server does not answer (tf.errors.UnavailableError)."""


UnavailableError = Unavailable
"""TensorFlow's name for `Unavailable`."""


class WorkerLost(Unavailable):
    """A worker is gone, and its work could not be moved to another one."""


class ReplayError(PacelineError, RuntimeError):
    """A recorded run cannot be run again: its trace is damaged, or the program is another one."""


class CheckpointError(PacelineError, OSError):
    """A checkpoint is missing, damaged, or was written for something else."""
