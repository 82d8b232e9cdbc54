"""What a checkpoint says about itself: names, shapes, dtypes and digests of its arrays, as JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORMAT = "paceline-checkpoint"
_FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
    """One array as the manifest describes it.

    Attributes:
        shape, dtype: the array's.
        sha256: digest of its bytes in C order.
    """

    shape: tuple[int, ...]
    dtype: str
    sha256: str

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> ArrayInfo:
        """Describes an array."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(array.shape, str(array.dtype), hashlib.sha256(content.data).hexdigest())


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a whole checkpoint.

    Attributes:
        arrays: by name.
        aliases: other names of the objects that were saved, each with the name used in `arrays`.
        save_counter: how many numbered checkpoints the run had saved, this one included.
        saved_at_ns: when, in nanoseconds since 1970.
    """

    arrays: Mapping[str, ArrayInfo]
    aliases: Mapping[str, str]
    save_counter: int
    saved_at_ns: int

    def to_json(self) -> str:
        """Returns the manifest's text, which ends with its own digest."""
        body = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "paceline_version": _version(),
            **dataclasses.asdict(self),
        }
        return json.dumps({**body, "sha256": _digest(body)}, indent=1)

    @classmethod
    def from_json(cls, text: str, path: str) -> Manifest:
        """Reads the manifest of the checkpoint at `path`.

        Raises:
            CheckpointError: it is damaged, foreign, or of a format that this version cannot read.
        """
        try:
            body = json.loads(text)
        except ValueError as error:
            raise damaged(path, f"its manifest is not whole ({error})") from error
        if not isinstance(body, dict) or body.get("format") != _FORMAT:
            raise CheckpointError(
                "Only checkpoints that Paceline wrote can be restored. Received: "
                f"{path!r}, whose manifest.json is of another program."
            )
        if body.get("format_version") != _FORMAT_VERSION:
            raise CheckpointError(
                f"This Paceline reads checkpoints of format {_FORMAT_VERSION}. Received: "
                f"{path!r} of format {body.get('format_version')}, written by Paceline "
                f"{body.get('paceline_version')}. Restore it with that version."
            )
        if body.pop("sha256", None) != _digest(body):
            raise damaged(path, "its manifest was changed after it was written")
        arrays = {
            name: ArrayInfo(tuple(info["shape"]), info["dtype"], info["sha256"])
            for name, info in body["arrays"].items()
        }
        return cls(arrays, body["aliases"], body["save_counter"], body["saved_at_ns"])

    def differences(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Says what is wrong with arrays that were read, one line each."""
        found = []
        for name, info in self.arrays.items():
            array = arrays.get(name)
            if array is None:
                found.append(f"{name} is missing")
                continue
            actual = ArrayInfo.of(array)
            if (actual.shape, actual.dtype) != (info.shape, info.dtype):
                found.append(
                    f"{name} is {actual.dtype}{list(actual.shape)} instead of "
                    f"{info.dtype}{list(info.shape)}"
                )
            elif actual.sha256 != info.sha256:
                found.append(f"{name} has other content than was saved")
        return found


def damaged(path: str, what: str) -> CheckpointError:
    """The error for a checkpoint that cannot be trusted."""
    return CheckpointError(
        f"The checkpoint is damaged, and nothing was restored. Received: {path!r}: {what}. "
        "Restore an earlier checkpoint, or a copy of this one."
    )


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _version() -> str:
    try:
        return importlib.metadata.version("paceline")
    except importlib.metadata.PackageNotFoundError:  # run from a source folder
        return "unknown"
