"""A checkpoint as a folder: `arrays/`, which Orbax writes, and `manifest.json`.

The folder is written under a name of its own beside its place and then renamed, so that what has
the final name is whole, and of several writers exactly one gets it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.checkpoint.manifest import ArrayInfo, Manifest, damaged
from paceline.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ARRAYS = "arrays"
_MANIFEST = "manifest.json"
_PARTIAL = ".partial"


def write(
    path: str,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    aliases: Mapping[str, str],
    save_counter: int,
    *,
    may_replace: bool = False,
) -> None:
    """Writes a whole checkpoint at `path`, or nothing.

    Args:
        path: the folder to make; its parents are made too.
        arrays: by name.
        aliases: see `Manifest`.
        save_counter: see `Manifest`.
        may_replace: whether a checkpoint that is there already is replaced.

    Raises:
        CheckpointError: something is there already, or it cannot be written.
    """
    place = Path(os.path.abspath(path))
    if os.path.lexists(place) and not (may_replace and is_checkpoint(place)):
        raise _taken(path)
    partial = _beside(place, _PARTIAL)
    infos = {name: ArrayInfo.of(array) for name, array in arrays.items()}
    manifest = Manifest(infos, aliases, save_counter, time.time_ns())
    try:
        partial.mkdir(parents=True)
        _write_arrays(partial / _ARRAYS, arrays)
        (partial / _MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        _put_in_place(partial, place, path, may_replace)
    except CheckpointError:
        raise
    except Exception as error:  # Orbax and its C++ storage raise many types
        raise CheckpointError(
            f"The checkpoint could not be written, and nothing is left of it. Received: {path!r}: "
            f"{error}. Check that the folder can be written and has space."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, place: Path, path: str, may_replace: bool) -> None:
    try:
        partial.rename(place)  # fails on a folder that holds something
        return
    except OSError as error:
        if not os.path.lexists(place):
            raise
        if not may_replace:
            raise _taken(path) from error
    replaced = _beside(place, ".replaced")
    # Another writer may have moved it away already, or put its own there in the meantime.
    with contextlib.suppress(FileNotFoundError):
        place.rename(replaced)
    try:
        _put_in_place(partial, place, path, may_replace)
    except BaseException:
        with contextlib.suppress(OSError):
            replaced.rename(place)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def read_manifest(path: str) -> Manifest:
    """Reads what the checkpoint at `path` says about itself.

    Raises:
        CheckpointError: there is none, it is damaged, or another program's.
    """
    place = Path(os.path.abspath(path))
    try:
        text = (place / _MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if not place.exists():
            raise CheckpointError(
                f"A checkpoint is restored from the path that it was saved at. Received: {path!r}, "
                "where there is nothing. Pass what save or latest_checkpoint returned."
            ) from error
        raise _foreign(path) from error
    except NotADirectoryError as error:
        raise _foreign(path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, f"its manifest cannot be read ({error})") from error
    return Manifest.from_json(text, path)


def read(path: str) -> tuple[Manifest, dict[str, np.ndarray[Any, Any]]]:
    """Reads the checkpoint at `path` and checks every array against its digest.

    Raises:
        CheckpointError: there is none, it is damaged, or another program's.
    """
    manifest = read_manifest(path)
    arrays = _read_arrays(path, manifest)
    differences = manifest.differences(arrays)
    if differences:
        raise damaged(path, "; ".join(differences))
    return manifest, arrays


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a checkpoint that was written to its end."""
    return (path / _MANIFEST).is_file()


def remove(path: str) -> None:
    """Removes a checkpoint; at no time is a part of one left under its name."""
    place = Path(os.path.abspath(path))
    removed = _beside(place, _PARTIAL)
    place.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def remove_leftovers(directory: Path) -> None:
    """Removes what processes of this machine that ended while they wrote left in `directory`."""
    for partial in directory.glob(f".*{_PARTIAL}"):
        host, _, process = partial.name.rsplit(".", 2)[0].rpartition("-")
        is_ours = host.endswith(f".{_host()}") and process.isdigit()
        if is_ours and not _is_alive(int(process)):
            shutil.rmtree(partial, ignore_errors=True)


def _write_arrays(folder: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    # Orbax has no form for arrays without elements: the manifest says all there is to them.
    filled = {name: array for name, array in arrays.items() if array.size}
    if not filled:
        return
    import orbax.checkpoint as ocp  # takes longer to import than all of Paceline

    with contextlib.closing(ocp.PyTreeCheckpointer()) as checkpointer:
        checkpointer.save(folder, filled)


def _read_arrays(path: str, manifest: Manifest) -> dict[str, np.ndarray[Any, Any]]:
    arrays, filled = {}, []
    for name, info in manifest.arrays.items():
        if 0 in info.shape:
            arrays[name] = np.zeros(info.shape, np.dtype(info.dtype))
        else:
            filled.append(name)
    if not filled:
        return arrays
    import orbax.checkpoint as ocp  # takes longer to import than all of Paceline

    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    folder = Path(os.path.abspath(path)) / _ARRAYS
    try:
        with contextlib.closing(ocp.PyTreeCheckpointer()) as checkpointer:
            found = checkpointer.restore(folder, restore_args=dict.fromkeys(filled, as_numpy))
    except Exception as error:  # whatever a damaged file makes Orbax and its C++ storage raise
        raise damaged(path, f"its arrays cannot be read ({error})") from error
    return arrays | {name: np.asarray(array) for name, array in found.items()}


def _host() -> str:
    return socket.gethostname().replace(".", "_").replace("-", "_")


def _beside(place: Path, suffix: str) -> Path:
    """A hidden name beside `place` that no other writer uses, and that says whose it is."""
    return place.with_name(f".{place.name}.{_host()}-{os.getpid()}.{uuid.uuid4().hex}{suffix}")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _taken(path: str) -> CheckpointError:
    return CheckpointError(
        f"A checkpoint is written once, by one writer. Received: {path!r}, which exists. Choose "
        "another path, restore the run that wrote it before going on with it, or pass "
        "overwrite=True to write()."
    )


def _foreign(path: str) -> CheckpointError:
    return CheckpointError(
        "Only checkpoints that Paceline wrote can be restored. Received: "
        f"{path!r}, which has no {_MANIFEST}. Pass what save or latest_checkpoint returned; what "
        "Keras saved is loaded with model.load_weights."
    )
