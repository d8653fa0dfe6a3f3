"""Checkpoints on disk: whole or not at all."""

import errno
import json
import os
import random
import shutil
import zlib

import lz4.frame
import numpy as np
import pytest

from rainbow_tf.files import FileError
from rainbow_tf.runs.store import CheckpointStore, write_atomically

ARRAYS = {
    "frames": np.arange(2 * 84 * 84, dtype=np.uint8).reshape(2, 84, 84),
    "flags": np.array([True, False]),
    "scalar": np.array(1.5),
    "none": np.zeros((0, 3), np.float32),
    "seeds": np.array([1, 2**32 - 1], np.uint32),
}


def arrays_of(number):
    rng = np.random.default_rng(number)
    return {"values": rng.normal(size=500), "bytes": rng.integers(9, size=5000).astype(np.uint8)}


def filled_store(folder, count=3):
    """Checkpoints 1 to `count`; each has an own file, and all share the first one's."""
    store = CheckpointStore(folder)
    shared = {}
    for number in range(1, count + 1):
        new = {"own": lambda number=number: arrays_of(number)}
        if not shared:
            new["shared"] = lambda: arrays_of(0)
        checkpoint = store.write(state={"frames": 100 * number}, new=new, old=shared)
        shared = {"shared": checkpoint.files["shared"]}
    return store


def assert_holds(store, checkpoint, number):
    assert checkpoint.number == number
    assert checkpoint.state == {"frames": 100 * number}
    for name, arrays in (("own", arrays_of(number)), ("shared", arrays_of(0))):
        found = store.read(checkpoint.files[name])
        assert found.keys() == arrays.keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(found[key], array)


def test_arrays_come_back_as_they_were(tmp_path):
    store = CheckpointStore(tmp_path)
    checkpoint = store.write(state={}, new={"a": lambda: ARRAYS}, old={})
    found = store.read(checkpoint.files["a"])
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


def test_an_empty_store(tmp_path):
    assert CheckpointStore(tmp_path / "missing").newest_whole() == (None, [])


def test_the_newest_counts_and_older_files_are_shared(tmp_path):
    store = filled_store(tmp_path)
    checkpoint, problems = store.newest_whole()
    assert problems == []
    assert_holds(store, checkpoint, 3)
    assert sorted(p.name for p in (tmp_path / "000003").iterdir()) == ["manifest.json", "own.lz4"]


def test_a_checkpoint_without_its_manifest_does_not_count(tmp_path):
    store = filled_store(tmp_path)
    (tmp_path / "000003" / "manifest.json").unlink()
    checkpoint, problems = store.newest_whole()
    assert problems == []
    assert_holds(store, checkpoint, 2)
    # Its number is not given again, so that no other manifest can name its files.
    assert store.write(state={}, new={}, old={}).number == 4


def test_the_manifest_is_written_last(tmp_path, monkeypatch):
    seen = []
    replace = os.replace

    def watch(self, target):
        seen.append((target.name, sorted(p.name for p in target.parent.iterdir())))
        return replace(self, target)

    monkeypatch.setattr("pathlib.Path.replace", watch)
    filled_store(tmp_path, 1)
    assert seen == [("manifest.json", [".manifest.json.part", "own.lz4", "shared.lz4"])]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to name files")
def test_everything_is_on_the_disk_before_the_manifest_counts(tmp_path, monkeypatch):
    log, fsync, replace = [], os.fsync, os.replace

    def watch_fsync(descriptor):
        log.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def watch_replace(path, target):
        log.append("replace")
        return replace(path, target)

    monkeypatch.setattr("os.fsync", watch_fsync)
    monkeypatch.setattr("pathlib.Path.replace", watch_replace)
    store = CheckpointStore(tmp_path / "store")
    store.write(state={}, new={"a": lambda: {"x": np.zeros(3)}}, old={})
    assert log == ["a.lz4", "store", ".manifest.json.part", "replace", "000001"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device")])
def test_a_full_disk_leaves_the_checkpoints_before(tmp_path, error):
    store = filled_store(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    def fail():
        raise error

    with pytest.raises(OSError, match="No space"):
        store.write(state={}, new={"own": lambda: arrays_of(4), "more": fail}, old={})
    assert sorted(tmp_path.rglob("*")) == before


def test_pruning_keeps_what_the_newest_need(tmp_path):
    store = filled_store(tmp_path, 5)
    store.prune(2)
    assert store.numbers() == [4, 5]
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert names == [
        "000001/shared.lz4",
        "000004/manifest.json",
        "000004/own.lz4",
        "000005/manifest.json",
        "000005/own.lz4",
    ]
    assert_holds(store, store.open(4), 4)
    assert_holds(store, store.open(5), 5)


def test_pruning_removes_what_a_killed_process_left(tmp_path):
    store = filled_store(tmp_path)
    (tmp_path / "000004").mkdir()
    (tmp_path / "000004" / "own.lz4").write_bytes(b"half")
    (tmp_path / "notes").mkdir()
    (tmp_path / "000003" / ".notes").mkdir()
    store.prune(9)
    assert not (tmp_path / "000004").exists()
    assert (tmp_path / "notes").exists()
    assert store.numbers() == [1, 2, 3]


def test_pruning_survives_an_older_manifest_that_is_damaged(tmp_path):
    store = filled_store(tmp_path)
    (tmp_path / "000002" / "manifest.json").write_text("{")
    store.prune(2)
    assert_holds(store, store.newest_whole()[0], 3)
    assert not (tmp_path / "000002" / "own.lz4").exists()


def test_discarded_checkpoints_do_not_come_back(tmp_path):
    store = filled_store(tmp_path)
    store.discard_newer(2)
    assert_holds(store, store.newest_whole()[0], 2)
    assert store.write(state={}, new={}, old={}).number == 4


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("own.lz4", lambda path: path.unlink(), "No such file"),
        ("own.lz4", lambda path: path.write_bytes(path.read_bytes()[:-5]), "bytes of"),
        ("own.lz4", lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes of"),
        ("own.lz4", lambda path: flip(path, 300), "changed on disk"),
        ("manifest.json", lambda path: path.write_text("{"), "Expecting"),
        ("manifest.json", lambda path: path.write_bytes(b"\xff\xfe"), "decode"),
        ("manifest.json", lambda path: path.write_text("[]"), "manifest.json"),
        ("manifest.json", lambda path: edit(path, '"frames": 300', '"frames": 301'), "checksum"),
        ("manifest.json", lambda path: sign(path, {"format": 2}), "format 2"),
    ],
)
def test_damage_is_named_and_the_checkpoint_before_is_used(tmp_path, file, damage, said):
    store = filled_store(tmp_path)
    path = tmp_path / "000003" / file
    damage(path)
    checkpoint, problems = store.newest_whole()
    assert_holds(store, checkpoint, 2)
    assert len(problems) == 1
    assert str(path) in problems[0]
    assert said in problems[0]


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def sign(path, body):
    """A manifest that is whole and says something else."""
    crc32 = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    path.write_text(json.dumps({"crc32": crc32, "body": body}))


def test_a_shared_file_that_is_damaged_spoils_all_that_name_it(tmp_path):
    store = filled_store(tmp_path)
    flip(tmp_path / "000001" / "shared.lz4", 300)
    checkpoint, problems = store.newest_whole()
    assert checkpoint is None
    assert len(problems) == 3


def test_two_hundred_corruptions_give_a_fallback_or_a_refusal(tmp_path):
    whole = tmp_path / "whole"
    filled_store(whole)
    rng = random.Random(1)
    fallbacks = refusals = 0
    for case in range(200):
        folder = tmp_path / "case"
        shutil.copytree(whole, folder)
        for _ in range(rng.choice([1, 1, 2, 4])):
            corrupt(folder, rng)
        store = CheckpointStore(folder)
        checkpoint, problems = store.newest_whole()
        assert checkpoint is not None or problems, case
        if checkpoint is None:
            refusals += 1
        else:
            fallbacks += 1
            assert_holds(store, checkpoint, checkpoint.number)
            assert len(problems) <= 3 - checkpoint.number
        shutil.rmtree(folder)
    assert fallbacks > 20
    assert refusals > 20


def corrupt(folder, rng):
    """One of the ways in which a disk, a person or a copy spoils a folder."""
    files = sorted(path for path in folder.rglob("*.*") if path.is_file())
    path = rng.choice(files)
    data = path.read_bytes()
    kind = rng.choice(["flip", "cut", "empty", "delete", "append", "noise", "swap", "zeros"])
    place = rng.randrange(max(1, len(data)))
    if kind == "flip" and data:
        flip(path, place)
    elif kind == "delete" and path.name != "manifest.json":
        path.unlink()
    elif kind == "swap":
        other = rng.choice(files)
        if other.read_bytes() != data:
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
    else:
        changed = {
            "cut": data[:place],
            "empty": b"",
            "append": data + b"\0",
            "noise": rng.randbytes(len(data)),
            "zeros": data[:place] + bytes(len(data) - place),
        }
        path.write_bytes(changed.get(kind, b""))


def test_nothing_that_could_run_code_is_written_or_read(tmp_path):
    store = CheckpointStore(tmp_path)
    objects = {"a": np.array([{"b": 1}], object)}
    with pytest.raises(ValueError, match="allow_pickle"):
        store.write(state={}, new={"a": lambda: objects}, old={})
    checkpoint = store.write(state={}, new={"a": lambda: {"a": np.zeros(3)}}, old={})
    with lz4.frame.open(tmp_path / checkpoint.files["a"].path, "wb") as stream:
        stream.write(b'["a"]\n')
        np.lib.format.write_array(stream, objects["a"], allow_pickle=True)
    with pytest.raises(FileError, match="object is not expected"):
        store.read(checkpoint.files["a"])


def test_an_atomic_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path], "half a file takes space on a full disk"


def test_an_atomic_write_does_not_follow_a_link(tmp_path):
    (tmp_path / "outside").write_text("mine")
    (tmp_path / ".file.part").symlink_to(tmp_path / "outside")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "outside").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "new"
