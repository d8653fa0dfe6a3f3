"""Writes pictures to an .mp4 or .gif file, whole or not at all."""

import contextlib
import errno
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import lz4.frame
import numpy as np
from PIL import Image

from rainbow_tf.config import Config, ConfigError

VIDEOS = "videos"  # in the folder of a run
LARGE, SMALL = 630, 420  # heights of a picture: three and two times an Atari screen's
_GIF_FRAMES_PER_SECOND = 15  # at most: more make a large file that few viewers play in time
_GIF_SECONDS = 60  # at most: its pictures are held in memory
_GIF_SAMPLES = 32  # pictures that the colours of a .gif are chosen from


def frames_per_second(config: Config) -> int:
    """Pictures a second, one an agent step: the game's own speed, elsewhere what eyes follow."""
    return max(1, 60 // config.action_repeat) if config.game is not None else 15


class Writer(Protocol):
    """Takes pictures [H, W, 3] uint8 of even height and width, all of one shape."""

    def add(self, picture: np.ndarray) -> None:
        """Adds a picture."""

    def finish(self) -> None:
        """Writes what is still to be written."""

    def abandon(self) -> None:
        """Lets go of a file that nobody wants any more."""


class Mp4:
    """H.264, encoded by ffmpeg as the pictures come."""

    def __init__(self, path: Path, *, frames_per_second: int):
        self._path = path
        self._frames_per_second = frames_per_second
        self._encoder: subprocess.Popen[bytes] | None = None

    def add(self, picture: np.ndarray) -> None:
        """Adds a picture; raises OSError if the encoder has failed."""
        if self._encoder is None:
            height, width, _ = picture.shape
            self._encoder = self._start(f"{width}x{height}")
        assert self._encoder.stdin is not None
        try:
            self._encoder.stdin.write(picture.tobytes())
        except BrokenPipeError:
            self.finish()  # which knows why

    def _start(self, size: str) -> "subprocess.Popen[bytes]":
        import imageio_ffmpeg

        pictures = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size]
        rate = ["-r", str(self._frames_per_second)]
        # Sharp letters, and colours that every player knows.
        codec = ["-c:v", "libx264", "-crf", "20", "-preset", "veryfast", "-pix_fmt", "yuv420p"]
        output = ["-movflags", "+faststart", str(self._path)]
        encoder = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y"]
        return subprocess.Popen(
            [*encoder, *pictures, *rate, "-i", "-", *codec, *output],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is ours to answer
        )

    def finish(self) -> None:
        """Waits for the encoder; raises OSError if it did not write everything."""
        if self._encoder is None:
            return
        with contextlib.suppress(BrokenPipeError):
            _, message = self._encoder.communicate()
        if self._encoder.returncode != 0:
            lines = message.decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"it ended with {self._encoder.returncode}"
            raise OSError(errno.EIO, f"the encoder failed: {reason}")

    def abandon(self) -> None:
        """Ends the encoder."""
        if self._encoder is not None:
            self._encoder.kill()
            self._encoder.communicate()


class Gif:
    """256 colours for all pictures, chosen when all are there; until then they are compressed.

    Without a path it is only encoded.
    """

    def __init__(self, path: Path | None, *, frames_per_second: int):
        self._path = path
        self._every = -(-frames_per_second // _GIF_FRAMES_PER_SECOND)
        self._milliseconds = 1000 * self._every / frames_per_second
        self._added = 0
        self._shape: tuple[int, ...] = ()
        self._pictures: list[bytes] = []

    def add(self, picture: np.ndarray) -> None:
        """Adds a picture, if it is one of those that are kept: of the first minute, and in time."""
        is_early = len(self._pictures) < _GIF_SECONDS * 1000 / self._milliseconds
        if self._added % self._every == 0 and is_early:
            self._shape = picture.shape
            self._pictures.append(lz4.frame.compress(np.ascontiguousarray(picture)))
        self._added += 1

    def encoded(self) -> bytes:
        """The file's bytes."""
        step = -(-len(self._pictures) // _GIF_SAMPLES)
        # Every third row and column: colours that fill less are hardly seen.
        samples = [self._picture(data)[::3, ::3] for data in self._pictures[::step]]
        palette = Image.fromarray(np.concatenate(samples)).quantize(256)
        first, *others = (
            # Without dither, so that what does not move does not flicker, and costs nothing.
            Image.fromarray(self._picture(data)).quantize(palette=palette, dither=Image.Dither.NONE)
            for data in self._pictures
        )
        file = io.BytesIO()
        first.save(
            file, "GIF", save_all=True, append_images=others, duration=self._milliseconds, loop=0
        )
        return file.getvalue()

    def finish(self) -> None:
        """Writes the file."""
        assert self._path is not None
        self._path.write_bytes(self.encoded())

    def abandon(self) -> None:
        """Forgets the pictures."""
        self._pictures.clear()

    def _picture(self, data: bytes) -> np.ndarray:
        return np.frombuffer(lz4.frame.decompress(data), np.uint8).reshape(self._shape)


_WRITERS: dict[str, type[Mp4] | type[Gif]] = {".mp4": Mp4, ".gif": Gif}


def check_video(path: Path) -> None:
    """Refuses a file that `video` could not write, and touches nothing."""
    if path.suffix not in _WRITERS:
        raise ConfigError(f"{path} must end in .mp4 or .gif.")
    if path.suffix == ".mp4":
        try:
            import imageio_ffmpeg

            imageio_ffmpeg.get_ffmpeg_exe()
        except (ImportError, RuntimeError) as error:
            raise ConfigError(
                f'{path} needs a video encoder; pip install "rainbow_tf[video]", or write a .gif.'
            ) from error
    nearest = next(place for place in path.absolute().parents if place.exists())
    if path.is_dir():
        raise _unwritable(path, "it is a folder")
    if not nearest.is_dir():
        raise _unwritable(path, f"{nearest} is a file")
    if not os.access(nearest, os.W_OK):
        raise _unwritable(path, f"no permission to write in {nearest}")


@contextlib.contextmanager
def video(path: Path, *, frames_per_second: int) -> Iterator[Writer]:
    """A writer whose file is put in place at the end; on an error nothing is left behind."""
    check_video(path)
    aside = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        aside.parent.mkdir(parents=True, exist_ok=True)
        writer = _WRITERS[path.suffix](aside, frames_per_second=frames_per_second)
        try:
            yield writer
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
        aside.replace(path)
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error
    finally:
        aside.unlink(missing_ok=True)


def enlarged(screen: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """A screen [H, W, 3] as large as fits: every pixel a square of pixels, or all shrunk."""
    scale = min(height / screen.shape[0], width / screen.shape[1])
    if scale >= 1:
        return screen.repeat(int(scale), axis=0).repeat(int(scale), axis=1)
    size = (max(1, int(screen.shape[1] * scale)), max(1, int(screen.shape[0] * scale)))
    return np.asarray(Image.fromarray(screen).resize(size, Image.Resampling.BOX))


def _unwritable(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{path} cannot be written ({reason}); give another file.")
