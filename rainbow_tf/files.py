"""Reads files that others wrote or a disk damaged: JSON, arrays, text, and paths named in them.

Whatever is wrong with a file is a FileError, and nothing in a file can run code.
"""

import contextlib
import dataclasses
import io
import json
import math
import os
import stat
import types
import typing
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from rainbow_tf.config import ConfigError
from rainbow_tf.process import one_line

MOST_BYTES = 1 << 31  # of arrays in a file, and of a file
_JSON_BYTES = 1 << 24
_TEXT_BYTES = 1 << 28
_DTYPES = ("bool", "uint8", "float32")  # of observations
_LARGEST = {int: 2**63, float: 1e30}  # a stored number above these is damage


class FileError(ConfigError):
    """A file that cannot be read; the message names it."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Names the file in whatever error reading it raises."""
    try:
        yield
    except FileError:
        raise
    except Exception as error:  # zipfile, lz4, json and NumPy raise almost anything
        reason = one_line(getattr(error, "strerror", None) or error)
        raise FileError(f"{path} cannot be read ({reason})") from error


@contextlib.contextmanager
def open_file(path: Path, most: int = 1 << 40) -> Iterator[IO[bytes]]:
    """A regular file of at most `most` bytes: a pipe or a device could block or never end."""
    with reading(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_size > most:
            raise ValueError(f"it has {status.st_size:,} bytes, more than {most:,}")
        with path.open("rb") as stream:
            yield stream


def read_bytes(path: Path, most: int = _TEXT_BYTES) -> bytes:
    """What a file holds."""
    with open_file(path, most) as stream:
        return stream.read(most)


def read_json(path: Path, kind: Any = dict[str, Any]) -> Any:
    """The JSON value in a file, as a `record` of this type."""
    with reading(path):
        return parse_json(read_bytes(path, _JSON_BYTES).decode(), kind)


def parse_json(text: str, kind: Any) -> Any:
    """The value of a JSON text, as a `record`; raises ValueError."""
    try:
        return record(kind, json.loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def record(kind: Any, value: Any) -> Any:
    """A JSON value as this type, checked in depth; raises ValueError.

    Named tuples and data classes are objects or lists, whose unknown names are ignored.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (value is None and type(None) in arguments):
        return value
    if origin is types.UnionType:  # with None
        return record(arguments[0], value)
    if origin is dict and isinstance(value, dict):
        return {name: record(arguments[1], part) for name, part in value.items()}
    if origin in (list, tuple) and isinstance(value, list):
        return origin(record(arguments[0], part) for part in value)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _fields(kind, value)
    if kind is np.dtype and value in _DTYPES:
        return np.dtype(value)
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < _LARGEST[float] else math.inf
    if type(value) is not kind:
        raise ValueError(f"{value!r:.60} is not of type {getattr(kind, '__name__', kind)}")
    if kind in _LARGEST and not abs(value) < _LARGEST[kind]:
        raise ValueError(f"{value!r:.60} is out of range")
    return value


def _fields(kind: Any, value: Any) -> Any:
    hints = typing.get_type_hints(kind)
    if isinstance(value, list) and len(value) == len(hints):
        value = dict(zip(hints, value, strict=True))
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} lacks the fields {', '.join(hints)}")
    try:
        return kind(**{n: record(hint, value[n]) for n, hint in hints.items() if n in value})
    except TypeError as error:  # a field without a default is missing
        raise ValueError(str(error)) from error


@contextlib.contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip file without compression, as NumPy and Keras write them: it cannot unpack to more."""
    with open_file(path, MOST_BYTES) as stream, zipfile.ZipFile(stream) as archive:
        parts = archive.infolist()
        sizes = sum(part.file_size for part in parts)
        is_stored = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
        if not is_stored or sizes > os.fstat(stream.fileno()).st_size:
            raise ValueError("its parts are compressed or overlap")
        yield archive


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file."""
    with open_zip(path) as archive:
        # To their end, where zipfile compares the checksums; np.load stops before it.
        parts = {
            part.filename.removesuffix(".npy"): archive.read(part) for part in archive.infolist()
        }
        return {name: read_array(io.BytesIO(data), len(data)) for name, data in parts.items()}


def read_array(stream: Any, most: int) -> np.ndarray:
    """The next array of a stream, as NumPy writes them, if it has at most `most` bytes."""
    np.lib.format.read_magic(stream)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    size = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "biufU" or min(shape, default=0) < 0 or size > most:
        raise ValueError(f"an array of {shape} {dtype} is not expected")
    data = bytearray(size)
    if stream.readinto(data) != size:
        raise ValueError("it is cut off")
    return np.ndarray(shape, dtype, data, order="F" if is_fortran else "C")


def inside(folder: Path, name: str) -> Path:
    """A path below a folder that neither `..` nor a symbolic link leads elsewhere."""
    with reading(folder / name):
        expected = os.path.join(os.path.realpath(folder), os.path.normpath(name))
        if os.path.isabs(name) or os.path.realpath(folder / name) != expected:
            raise ValueError(f"it leads out of {folder}, or is a symbolic link")
    return folder / name
