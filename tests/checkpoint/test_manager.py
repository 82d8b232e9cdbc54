"""Numbered checkpoints: which there are, which are kept, and one writer for each."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import paceline as tf
from paceline.errors import CheckpointError, InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path


def make(value: float = 0.0, directory: Any = None, **options: Any) -> Any:
    checkpoint = tf.train.Checkpoint(v=tf.Variable(value))
    if directory is None:
        return checkpoint
    options = {"max_to_keep": 3} | options
    return checkpoint, tf.train.CheckpointManager(checkpoint, directory, **options)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_numbers_go_on_after_a_restore(tmp_path: Path) -> None:
    checkpoint = make()
    prefix = tmp_path / "runs" / "model"
    assert checkpoint.save(prefix) == f"{prefix}-1"
    assert checkpoint.save(prefix) == f"{prefix}-2"
    other = make()
    other.restore(f"{prefix}-2")
    assert other.save_counter == 2
    assert other.save(prefix) == f"{prefix}-3"
    third = make()
    third.read(f"{prefix}-2").assert_consumed()
    assert third.save_counter == 0
    assert names(prefix.parent) == ["model-1", "model-2", "model-3"]


def test_a_folder_stands_for_the_usual_name_in_it(tmp_path: Path) -> None:
    assert make().save(tmp_path) == str(tmp_path / "ckpt-1")
    assert make().save(f"{tmp_path}/new/") == str(tmp_path / "new" / "ckpt-1")


def test_a_checkpoint_is_overwritten_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "best"
    make(1.0).write(path)
    with pytest.raises(CheckpointError, match=r"written once, by one writer.*best.*overwrite=True"):
        make(2.0).write(path)
    reader = make()
    reader.restore(path)
    assert float(reader.v.value) == 1
    make(2.0).write(path, overwrite=True)
    reader.restore(path)
    assert float(reader.v.value) == 2
    assert names(tmp_path) == ["best"]


def test_only_checkpoints_are_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="which exists"):
        make().write(tmp_path / "notes", overwrite=True)
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "years of work"


def test_a_manager_keeps_the_last_ones(tmp_path: Path) -> None:
    checkpoint, manager = make(directory=tmp_path, max_to_keep=2)
    assert manager.latest_checkpoint is None
    paths = []
    for i in range(4):
        checkpoint.v.assign(float(i))
        paths.append(manager.save())
    assert manager.checkpoints == paths[2:]
    assert names(tmp_path) == ["ckpt-3", "ckpt-4"]
    assert manager.latest_checkpoint == tf.train.latest_checkpoint(tmp_path) == paths[3]
    assert manager.save(checkpoint_number=10) == str(tmp_path / "ckpt-10")
    assert names(tmp_path) == ["ckpt-10", "ckpt-4"]
    assert manager.directory == str(tmp_path)


def test_restore_or_initialize(tmp_path: Path) -> None:
    calls = []
    _, manager = make(directory=tmp_path, init_fn=lambda: calls.append(1))
    assert manager.restore_or_initialize() is None
    assert calls == [1]
    manager.save()
    checkpoint, other = make(9.0, directory=tmp_path, init_fn=lambda: calls.append(2))
    assert other.restore_or_initialize() == str(tmp_path / "ckpt-1")
    assert calls == [1]
    assert float(checkpoint.v.value) == 0
    assert other.save() == str(tmp_path / "ckpt-2")


def test_a_new_run_does_not_mix_with_an_old_one(tmp_path: Path) -> None:
    make(1.0, directory=tmp_path)[1].save()
    with pytest.raises(CheckpointError, match=r"ckpt-1.*restore the run that wrote it"):
        make(2.0, directory=tmp_path)[1].save()


def test_an_interval_of_steps(tmp_path: Path) -> None:
    step = tf.Variable(0)
    _, manager = make(directory=tmp_path, step_counter=step, checkpoint_interval=3)
    saved = []
    for i in range(7):
        step.assign(i)
        saved.append(manager.save() is not None)
    assert saved == [True, False, False, True, False, False, True]
    assert manager.save(check_interval=False) is not None
    assert manager.checkpoint_interval == 3


@pytest.mark.parametrize(
    "options",
    [{"max_to_keep": 0}, {"checkpoint_interval": 2}, {"checkpoint_interval": 0, "step_counter": 1}],
)
def test_impossible_options(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"max_to_keep=0|checkpoint_interval="):
        make(directory=tmp_path, **options)


def test_only_whole_checkpoints_are_listed(tmp_path: Path) -> None:
    _, manager = make(directory=tmp_path)
    path = manager.save()
    (tmp_path / "ckpt-7").mkdir()  # as a copy that was stopped leaves it
    (tmp_path / "ckpt-8").write_text("")
    (tmp_path / ".ckpt-9.host-1.0.partial").mkdir()
    (tmp_path / "ckpt-x").mkdir()
    assert manager.checkpoints == [path]
    assert tf.train.latest_checkpoint(tmp_path) == path
    assert tf.train.latest_checkpoint(tmp_path / "nothing") is None


def test_the_latest_of_several_names_is_the_one_saved_last(tmp_path: Path) -> None:
    checkpoint = make()
    checkpoint.save_number(str(tmp_path / "best"), 12)
    last = checkpoint.save_number(str(tmp_path / "ckpt"), 3)
    assert tf.train.latest_checkpoint(tmp_path) == last


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    program = """
import os, sys
import paceline as tf
from paceline.checkpoint import storage
storage._put_in_place = lambda *_: os._exit(9)
tf.train.Checkpoint(a=1).save(sys.argv[1] + "/ckpt")
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=100)
    assert killed.returncode == 9
    assert [name.startswith(".ckpt-1.") for name in names(tmp_path)] == [True]
    assert tf.train.latest_checkpoint(tmp_path) is None
    make(directory=tmp_path)[1].save()
    assert names(tmp_path) == ["ckpt-1"]


def test_orbax_is_only_imported_to_save_and_restore() -> None:
    program = "import sys, paceline.train; sys.exit('orbax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=100).returncode == 0


@pytest.mark.case("R105")
def test_of_two_writers_one_saves_and_the_other_is_told(tmp_path: Path) -> None:
    results = race(lambda value: make(value).save(tmp_path / "ckpt"))
    paths = [result for result in results if isinstance(result, str)]
    errors = [result for result in results if isinstance(result, CheckpointError)]
    assert paths == [str(tmp_path / "ckpt-1")]
    assert len(errors) == 1
    assert "one writer" in str(errors[0])
    assert names(tmp_path) == ["ckpt-1"]
    readers = [make() for _ in range(2)]
    for reader in readers:  # every worker restores the same step
        reader.restore(tf.train.latest_checkpoint(tmp_path)).assert_consumed()
    assert results.index(paths[0]) + 1 == float(readers[0].v.value) == float(readers[1].v.value)


@pytest.mark.case("R105")
def test_of_two_writers_that_overwrite_the_last_one_stays(tmp_path: Path) -> None:
    def write_often(value: float) -> None:
        for _ in range(5):
            make(value).write(tmp_path / "best", overwrite=True)

    results = race(write_often)
    assert results == [None, None]
    reader = make()
    reader.restore(tmp_path / "best").assert_consumed()
    assert float(reader.v.value) in (1, 2)
    assert names(tmp_path) == ["best"]


@pytest.mark.case("R105")
def test_two_threads_with_one_checkpoint_save_two(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(v=np.arange(3))
    results = race(lambda _: checkpoint.save(tmp_path / "ckpt"))
    assert sorted(results) == [str(tmp_path / "ckpt-1"), str(tmp_path / "ckpt-2")]


def race(write: Any) -> list[Any]:
    """Calls `write(1.0)` and `write(2.0)` at the same time; what each returned or raised."""
    start = threading.Barrier(2)
    results: list[Any] = ["not finished"] * 2

    def run(index: int) -> None:
        start.wait(timeout=60)
        try:
            results[index] = write(index + 1.0)
        except CheckpointError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,), name=f"writer-{i}") for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return results
