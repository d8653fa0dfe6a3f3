"""A run that is killed at any write, rename, fsync or deletion ends as if it had not been."""

import os
import pathlib
import shutil
from typing import ClassVar

import pytest
from stub_run import end_state, rows, train_stub

from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore


class Killed(BaseException):
    """What a SIGKILL is to the code: no handler expects it."""


class Disk:
    """Counts everything that changes files; kills at one of the points.

    A write that is killed leaves its first half. After the kill nothing changes any more, so that
    `finally` and `except` blocks leave what a real kill would leave.
    """

    CHANGES: ClassVar = {
        pathlib.Path: ("replace", "rename", "unlink", "mkdir", "rmdir"),
        os: ("fsync",),
        shutil: ("rmtree",),
    }

    def __init__(self, monkeypatch, kill_at=None):
        self._kill_at = kill_at
        self.points = []
        self.files = []
        self.is_dead = False
        self.committed = None  # the number of the last checkpoint whose manifest is in place
        for owner, names in self.CHANGES.items():
            for name in names:
                monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        self._open = pathlib.Path.open
        monkeypatch.setattr(
            pathlib.Path, "open", lambda path, *how, **more: self._opened(path, *how, **more)
        )

    def _counted(self, change):
        def changed(*arguments, **more):
            if self.is_dead:
                return None
            self.passes(f"{change.__name__} {arguments[0]}")
            # A kill loses nothing that was written: only a power cut needs the fsync.
            result = None if change.__name__ == "fsync" else change(*arguments, **more)
            if change.__name__ == "replace" and arguments[1].name == "manifest.json":
                self.committed = int(arguments[1].parent.name)
            return result

        return changed

    def _opened(self, path, mode="r", **more):
        if not set(mode) & set("wax+"):
            return self._open(path, mode, **more)
        if self.is_dead:
            return self._open(pathlib.Path(os.devnull), mode, **more)
        self.passes(f"open {path}")
        self.files.append(File(self, path, self._open(path, mode, buffering=0)))
        return self.files[-1]

    def passes(self, point):
        """Counts a point, and kills if it is the one."""
        self.points.append(point)
        if len(self.points) - 1 == self._kill_at:
            self.is_dead = True
            raise Killed


class File:
    """A file open for writing: no buffer, and nothing is written after the kill."""

    def __init__(self, disk, path, file):
        self._disk, self._path, self._file = disk, path, file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def write(self, data):
        if self._disk.is_dead:
            return len(data)
        try:
            self._disk.passes(f"write {self._path}")
        except Killed:
            self._file.write(bytes(data)[: len(data) // 2])
            raise
        return self._file.write(data)

    def truncate(self, size):
        return size if self._disk.is_dead else self._file.truncate(size)


@pytest.fixture
def killed(stub_runs, monkeypatch):
    """A function that trains in a folder, killed at a point if one is given; returns the disk."""

    def train(folder, kill_at=None):
        with monkeypatch.context() as patch:
            disk = Disk(patch, kill_at)
            try:
                disk.printed = train_stub(folder)
            except Killed:
                assert disk.is_dead
        for file in disk.files:  # as the end of a process does
            file.close()
        return disk

    return train


def left_over(folder):
    """Files that no checkpoint names, and halves of files."""
    store = CheckpointStore(folder / CHECKPOINTS)
    numbers = store.numbers()[-2:]
    needed = {store.folder / file.path for n in numbers for file in store.open(n).files.values()}
    needed |= {store.folder / f"{n:06d}" / "manifest.json" for n in numbers}
    found = {path for path in folder.rglob("*") if path.is_file()}
    return {p for p in found - needed if store.folder in p.parents or p.suffix == ".part"}


def test_a_kill_at_any_point_changes_nothing(killed, tmp_path):
    whole = killed(tmp_path / "whole")
    expected = end_state(tmp_path / "whole")
    assert [row["frames"] for row in expected["eval.csv"]] == ["80", "160", "240"]
    assert expected["score"]["frames"] == 160
    kinds = {point.split()[0] for point in whole.points}
    assert left_over(tmp_path / "whole") == set()
    assert kinds == {"open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir"}
    folder = tmp_path / "killed"
    for point, what in enumerate(whole.points):
        disk = killed(folder, kill_at=point)
        assert disk.is_dead
        newest, problems = CheckpointStore(folder / CHECKPOINTS).newest_whole()
        assert problems == [], what
        assert (newest and newest.number) == disk.committed, f"a checkpoint is lost at {what}"
        if point % 3 == 0:  # the resumed run is killed too, each time at another point
            killed(folder, kill_at=7 * point % 100)
        last = killed(folder)
        assert end_state(folder) == expected, f"killed at {point}: {what}"
        # A run whose last checkpoint was in place is finished, and what is left over stays.
        is_resumed = any(point.startswith("replace") for point in last.points)
        assert not is_resumed or not left_over(folder), what
        shutil.rmtree(folder)


def test_a_run_killed_before_its_first_checkpoint_starts_again(killed, tmp_path):
    whole = killed(tmp_path / "whole")
    first = next(i for i, point in enumerate(whole.points) if "000001" in point)
    folder = tmp_path / "killed"
    killed(folder, kill_at=first)
    assert (folder / "config.json").exists()
    assert "has no checkpoint yet; starting from the beginning" in killed(folder).printed
    frames = [int(row["frames"]) for row in rows(folder / "train.csv")]
    assert frames == [60, 120, 180, 240]
