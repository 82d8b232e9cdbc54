"""What is noted of every push: the raw material of all reports."""

from __future__ import annotations

import dataclasses


# Not frozen, and so are the others of which there is one for every push: a frozen one takes six
# times as long to make.
@dataclasses.dataclass(slots=True, unsafe_hash=True)
class PushRecord:
    """One push, as it ended.

    Attributes:
        worker: index of the worker.
        outcome: "applied", "dropped" or "duplicate".
        read_version: version that the worker pulled.
        apply_version: version when the push was applied, before it counted; or when it was dropped.
        staleness: `apply_version - read_version`.
        wait: seconds that the worker waited for its pull.
        compute: seconds between pull and push.
        finished_at: time of the outcome, in the driver's seconds.
        examples: examples of the push.
        reason: why it was dropped.
        held: seconds between its arrival and its outcome, in which it waited for its group.
    """

    worker: int
    outcome: str
    read_version: int
    apply_version: int
    staleness: int
    wait: float
    compute: float
    finished_at: float
    examples: int = 0
    reason: str = ""
    held: float = 0.0
