"""Checkpoints on disk: files of arrays with checksums, complete or not there at all.

A checkpoint is a folder `<number>/` whose manifest lists its files with sizes and checksums;
unchanged files of older checkpoints are listed too. The manifest is written last: without it a
checkpoint does not exist. No file can run code.
"""

import contextlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import lz4.frame
import numpy as np

from rainbow_tf import files
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.files import FileError, record
from rainbow_tf.process import one_line
from rainbow_tf.types import Counters

CHECKPOINTS = "checkpoints"  # in the run folder
BEST_SCORE = "best/score.json"
_MANIFEST = "manifest.json"
_FORMAT = 1
_READ_BYTES = 1 << 20


class CheckpointError(ConfigError):
    """A checkpoint that cannot be used; its message names the file."""


class StoredFile(NamedTuple):
    """A file of a checkpoint: path relative to the store, size and checksum."""

    path: str
    size: int
    crc32: int


class Best(NamedTuple):
    """The best evaluation of a run."""

    frames: int
    score_mean: float
    episodes: int
    protocol: str


class Checkpoint(NamedTuple):
    """The content of a manifest."""

    number: int
    files: dict[str, StoredFile]
    state: dict[str, Any]  # JSON; `training.checkpoint` writes it, the properties read it

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Names the checkpoint in the error that wrong content raises."""
        try:
            yield
        except CheckpointError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise CheckpointError(
                f"Checkpoint {self.number} cannot be used ({one_line(error)}); give --restart, or "
                "delete its folder to use an older one."
            ) from error

    @property
    def frames(self) -> int:
        """Frames that the run had been trained for."""
        with self.checked():
            return record(int, self.state["frames"])

    @property
    def counters(self) -> Counters:
        """Agent steps and updates of the run."""
        with self.checked():
            return record(Counters, self.state["counters"])

    @property
    def config(self) -> Config:
        """The settings of the run."""
        with self.checked():
            return Config.from_dict(record(dict[str, Any], self.state["config"]))

    @property
    def best(self) -> Best | None:
        """The best evaluation so far."""
        with self.checked():
            return record(Best | None, self.state["evaluator"]["best"])

    @property
    def evaluated(self) -> int:
        """Frames of the last evaluation."""
        with self.checked():
            return record(int, self.state["evaluator"]["evaluated"])


class CheckpointStore:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def numbers(self) -> list[int]:
        """Numbers of the checkpoints that have a manifest, oldest first."""
        return [number for number in self._folders() if (self._path(number) / _MANIFEST).exists()]

    def newest_whole(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest intact checkpoint, and the problems of newer ones."""
        problems: list[str] = []
        for number in reversed(self.numbers()):
            try:
                return self.open(number), problems
            except CheckpointError as error:
                problems.append(str(error))
        return None, problems

    def newest(self) -> Checkpoint | None:
        """The newest readable manifest; its files are not checked."""
        for number in reversed(self.numbers()):
            with contextlib.suppress(CheckpointError):
                return self._manifest(number)
        return None

    def open(self, number: int) -> Checkpoint:
        """A checkpoint, after checking the checksums of all its files."""
        checkpoint = self._manifest(number)
        for file in checkpoint.files.values():
            with _checking(number, self.folder / file.path):
                with files.open_file(files.inside(self.folder, file.path)) as stream:
                    size, checksum = _size_and_checksum(stream)
                if size != file.size:
                    raise ValueError(f"it has {size} bytes of {file.size}")
                if checksum != file.crc32:
                    raise ValueError("it changed on disk")
        return checkpoint

    def _manifest(self, number: int) -> Checkpoint:
        path = self._path(number) / _MANIFEST
        with _checking(number, path):
            content = files.read_json(path)
            body = record(dict[str, Any], content["body"])
            if content["crc32"] != _body_checksum(body):
                raise ValueError("its checksum differs")
            if body["format"] != _FORMAT:
                raise ValueError(
                    f"it has format {body['format']!r:.60}, this version reads {_FORMAT}"
                )
            if body["number"] != number:
                raise ValueError(f"it is the manifest of checkpoint {body['number']!r:.60}")
            stored = record(dict[str, StoredFile], body["files"])
            return Checkpoint(number, stored, record(dict[str, Any], body["state"]))

    def read(self, file: StoredFile) -> dict[str, np.ndarray]:
        """The arrays of a file."""
        found, most = {}, files.MOST_BYTES
        with files.open_file(files.inside(self.folder, file.path)) as raw:
            stream = lz4.frame.open(raw)
            for name in files.parse_json(stream.readline(_READ_BYTES).decode(), list[str]):
                found[name] = files.read_array(stream, most)
                most -= found[name].nbytes
        return found

    def write(
        self,
        *,
        state: dict[str, Any],
        new: Mapping[str, Callable[[], dict[str, np.ndarray]]],
        old: Mapping[str, StoredFile],
    ) -> Checkpoint:
        """Writes the next checkpoint: `new` files, and `old` ones that did not change.

        If writing fails it raises OSError and leaves nothing behind.
        """
        number = max(self._folders(), default=0) + 1
        folder = self._path(number)
        try:
            folder.mkdir(parents=True)
            written = {name: self._write_arrays(folder, name, make()) for name, make in new.items()}
            checkpoint = Checkpoint(number, {**old, **written}, state)
            body = {"format": _FORMAT, **checkpoint._asdict()}
            manifest = json.dumps({"crc32": _body_checksum(body), "body": body})
            _sync(self.folder)
            write_atomically(folder / _MANIFEST, manifest.encode())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return checkpoint

    def _write_arrays(self, folder: Path, name: str, arrays: dict[str, np.ndarray]) -> StoredFile:
        """Writes compressed arrays and syncs them to disk."""
        path = folder / f"{name}.lz4"
        with path.open("w+b") as raw:
            with lz4.frame.open(raw, "wb", block_size=lz4.frame.BLOCKSIZE_MAX1MB) as stream:
                stream.write(json.dumps(list(arrays)).encode() + b"\n")
                for array in arrays.values():
                    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
            raw.flush()
            os.fsync(raw.fileno())
            raw.seek(0)
            return StoredFile(str(path.relative_to(self.folder)), *_size_and_checksum(raw))

    def is_there(self, file: StoredFile) -> bool:
        """Whether a file still has its size."""
        path = self.folder / file.path
        return path.is_file() and path.stat().st_size == file.size

    def prune(self, keep: int) -> None:
        """Deletes all but the newest checkpoints and the files they list."""
        numbers = self.numbers()
        for number in numbers[:-keep]:
            (self._path(number) / _MANIFEST).unlink()
        needed = {self._path(number) / _MANIFEST for number in numbers[-keep:]}
        for number in numbers[-keep:]:
            # A damaged manifest lists no files, and its checkpoint cannot be used.
            with contextlib.suppress(CheckpointError):
                files = self._manifest(number).files.values()
                needed |= {self.folder / file.path for file in files}
        for number in self._folders():
            folder = self._path(number)
            for path in folder.iterdir():
                if path not in needed:
                    with contextlib.suppress(OSError):  # a folder, made by a person or a tool
                        path.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()

    def discard_newer(self, number: int) -> None:
        """Invalidates newer checkpoints; `prune` deletes them."""
        for newer in self.numbers():
            if newer > number:
                manifest = self._path(newer) / _MANIFEST
                manifest.rename(manifest.with_suffix(".damaged"))

    def _folders(self) -> list[int]:
        """Numbers of all checkpoint folders, oldest first; a link could lead out of the run."""
        folders = (p for p in self.folder.glob("[0-9]*") if p.is_dir() and not p.is_symlink())
        return sorted(
            int(p.name) for p in folders if re.fullmatch("[0-9]{6}|[1-9][0-9]{6,8}", p.name)
        )

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"


def kept_best(run_dir: Path) -> Best | None:
    """The evaluation whose weights are in `best/`."""
    with contextlib.suppress(FileError):
        return files.read_json(run_dir / BEST_SCORE, Best)
    return None


def has_best(run_dir: Path) -> bool:
    """Whether there are best weights; prints why not."""
    is_there = kept_best(run_dir) is not None
    if not is_there:
        is_damaged = os.path.exists(run_dir / BEST_SCORE)
        reason = f"{BEST_SCORE} is damaged" if is_damaged else "the run was not evaluated"
        print(f"There are no best weights, because {reason}; using the latest.")
    return is_there


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replaces a file completely, or leaves the old one."""
    aside = path.with_name(f".{path.name}.part")
    try:
        aside.unlink(missing_ok=True)
        with aside.open("xb") as stream:  # never through a link
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Syncs a folder's entries to disk."""
    if os.name == "posix":  # folders cannot be opened elsewhere
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def _checking(number: int, path: Path) -> Iterator[None]:
    """Names the checkpoint and the file in the error that reading it raises."""
    try:
        with files.reading(path):
            yield
    except FileError as error:
        raise CheckpointError(f"Checkpoint {number} is damaged: {error}") from error


def _body_checksum(body: dict) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def _size_and_checksum(stream: IO[bytes]) -> tuple[int, int]:
    size = checksum = 0
    while data := stream.read(_READ_BYTES):
        size += len(data)
        checksum = zlib.crc32(data, checksum)
    return size, checksum
