"""Checkpoints that are damaged, foreign or of other objects: what is said, and nothing changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest

import paceline as tf
from paceline.errors import CheckpointError, ContextError, InvalidArgument, InvalidType

# Where one array of a checkpoint cannot be read, the reads of the others end after Orbax has closed
# the event loop that they report to, and Python says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

if TYPE_CHECKING:
    from collections.abc import Callable


def make(**changed: Any) -> tuple[dict[str, Any], Any]:
    items = {"a": tf.Variable(np.zeros((2, 3), "float32")), "b": tf.Variable(0.0)} | changed
    return items, tf.train.Checkpoint(items=items)


@pytest.fixture
def path(tmp_path: Path) -> str:
    values = {"a": tf.Variable(np.full((2, 3), 4, "float32")), "b": tf.Variable(4.0)}
    return make(**values)[1].write(tmp_path / "saved")


def check_refused(checkpoint: Any, path: Any, message: str) -> None:
    """The restore raises this, and no variable changed."""
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoint.restore(path)
    assert str(path) in str(caught.value)
    for variable in checkpoint.items.values():
        assert not np.asarray(variable.value).any()
    checkpoint.items["b"].assign(0.0)


def _remove_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _truncate_manifest(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[: len(text) // 2])


def _edit_manifest(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace("float32", "float16", 1))


def _rewrite_manifest(folder: Path, **changed: Any) -> None:
    body = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(body | changed))


def _data_files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("arrays/**/d/*") if file.is_file()]


def _truncate_data(folder: Path) -> None:
    for file in _data_files(folder):
        os.truncate(file, file.stat().st_size // 2)


def _remove_data(folder: Path) -> None:
    for file in _data_files(folder):
        file.unlink()


def _remove_arrays(folder: Path) -> None:
    (folder / "arrays").rename(folder / "elsewhere")


DAMAGE = {
    "no_manifest": (_remove_manifest, "Only checkpoints that Paceline wrote.*no manifest.json"),
    "half_a_manifest": (_truncate_manifest, "damaged.*manifest is not whole"),
    "edited_manifest": (_edit_manifest, "damaged.*manifest was changed"),
    "half_the_data": (_truncate_data, "damaged"),
    "no_data": (_remove_data, "damaged"),
    "no_arrays": (_remove_arrays, "damaged.*arrays cannot be read"),
    "other_program": (
        lambda folder: _rewrite_manifest(folder, format="other"),
        "Only checkpoints that Paceline wrote.*another program",
    ),
    "later_format": (
        lambda folder: _rewrite_manifest(folder, format_version=2, paceline_version="9.0"),
        "reads checkpoints of format 1.*of format 2, written by Paceline 9.0",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found(path: str, damage: Callable[[Path], None], message: str) -> None:
    damage(Path(path))
    check_refused(make()[1], path, message)


def test_a_changed_bit_is_found(tmp_path: Path, path: str) -> None:
    """Whether the storage notices or not: the digests do."""
    other = make(a=tf.Variable(np.full((2, 3), 4, "float32")), b=tf.Variable(5.0))[1]
    wrong = Path(other.write(tmp_path / "other"))
    (Path(path) / "arrays").rename(tmp_path / "gone")
    (wrong / "arrays").rename(Path(path) / "arrays")
    check_refused(make()[1], path, "items/b has other content than was saved")


def test_no_checkpoint(tmp_path: Path) -> None:
    check_refused(make()[1], tmp_path / "nothing", "where there is nothing")
    (tmp_path / "file").write_text("no folder")
    check_refused(make()[1], tmp_path / "file", "Only checkpoints that Paceline wrote")


def test_shapes_dtypes_and_names_are_listed_together(path: str) -> None:
    changed = {
        "a": tf.Variable(np.zeros((3, 2), "float32")),
        "b": tf.Variable(0, dtype="int32"),
        "c": tf.Variable(0.0),
    }
    with pytest.raises(CheckpointError) as caught:
        make(**changed)[1].restore(path)
    assert str(caught.value) == (
        "A checkpoint must fit the objects it is restored into; nothing was restored. Received: "
        f"{path!r}:\n"
        "  of another shape or dtype: items/a: float32[2, 3] in the checkpoint, float32[3, 2] here"
        ", items/b: float32[] in the checkpoint, int32[] here\n"
        "  not in the checkpoint: items/c\n"
        "Restore it into objects made like those that were saved."
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "b", "c"), "not in the checkpoint: items/c$"),
        (("a",), "only in the checkpoint: items/b$"),
        (("a", "c"), "not in the checkpoint: items/c\n  only in the checkpoint: items/b$"),
    ],
)
def test_names_are_checked_when_asked(path: str, names: tuple[str, ...], message: str) -> None:
    items = {name: tf.Variable(np.zeros((2, 3) if name == "a" else ())) for name in names}
    checkpoint = tf.train.Checkpoint(items=items)
    expected = f"(?m){message}"
    with pytest.raises(CheckpointError, match=expected):
        checkpoint.restore(path, strict=True)
    assert not np.asarray(items["a"].value).any()
    status = checkpoint.restore(path)
    assert np.asarray(items["a"].value).all()
    with pytest.raises(CheckpointError, match=expected):
        status.assert_consumed()
    assert status.expect_partial() is status
    if "c" in names:
        with pytest.raises(CheckpointError, match="not in the checkpoint: items/c"):
            status.assert_existing_objects_matched()
    else:
        status.assert_existing_objects_matched()


def test_a_checkpoint_of_something_else(path: str) -> None:
    v = tf.Variable(0.0)
    with pytest.raises(CheckpointError, match="nothing was restored"):
        tf.train.Checkpoint(other=v).restore(path)
    assert float(v.value) == 0


def test_restore_of_none_does_nothing() -> None:
    items, checkpoint = make()
    status = checkpoint.restore(None).expect_partial()
    status.initialize_or_restore()
    with pytest.raises(CheckpointError, match=r"restore\(None\)"):
        status.assert_consumed()
    assert not np.asarray(items["a"].value).any()


@pytest.mark.parametrize(
    "item",
    ["text", object(), {1.5: 0}, [{"x": b"1"}], (1, 2), 2**70, np.array(["a"]), jax.random.key(0)],
    ids=["str", "object", "float_key", "bytes", "tuple", "big", "strings", "key"],
)
def test_what_a_checkpoint_cannot_hold(item: Any) -> None:
    with pytest.raises(InvalidType, match=r"[Cc]heckpoint"):
        tf.train.Checkpoint(item=item)


@pytest.mark.parametrize("name", ["save", "restore", "save_counter", "members", "_x"])
def test_names_of_its_own(name: str) -> None:
    with pytest.raises(InvalidArgument, match=repr(name)):
        tf.train.Checkpoint(**{name: 1})


def test_keys_that_read_alike() -> None:
    with pytest.raises(InvalidArgument, match="two values named 'nest/1'"):
        tf.train.Checkpoint(nest={1: 0, "1": 1})


def test_an_object_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no object 'b'"):
        _ = tf.train.Checkpoint(a=1).b


def test_saving_inside_run_or_a_traced_function(tmp_path: Path) -> None:
    _, checkpoint = make()
    path = tmp_path / "ckpt"
    with pytest.raises(ContextError, match="cannot be part of a traced function"):
        tf.function(lambda: checkpoint.write(path))()
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    with pytest.raises(ContextError, match="needs cross-replica context"):
        strategy.run(lambda: checkpoint.write(path))
    with pytest.raises(ContextError, match="needs cross-replica context"):
        strategy.run(lambda: checkpoint.restore(path))
    assert not path.exists()
    with strategy.scope():
        checkpoint.restore(checkpoint.write(path)).assert_consumed()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        make()[1].write(tmp_path / "file" / "ckpt")
