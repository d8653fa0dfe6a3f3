"""Writes .mp4 and .gif files, each complete or not at all."""

import contextlib
import errno
import io
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import numpy as np
from PIL import Image

from rainbow_tf.config import Config, ConfigError

VIDEOS = "videos"  # in the folder of a run
LARGE, SMALL = 630, 420  # picture heights: three and two times an Atari screen's
_GIF_FRAMES_PER_SECOND = 15  # at most: files get large, and few viewers play faster ones correctly
GIF_SECONDS = 60  # at most: all pictures are held in memory
_GIF_SAMPLES = 32  # pictures that the palette is chosen from


def frames_per_second(config: Config) -> int:
    """Agent steps shown per second: the real speed of Atari games, 15 otherwise."""
    return max(1, 60 // config.action_repeat) if config.game is not None else 15


class Mp4:
    """H.264, encoded by ffmpeg while pictures [H, W, 3] uint8 of even height and width arrive.

    Not imageio_ffmpeg.write_frames: it ignores ffmpeg's exit status, so a full disk goes unnoticed.
    """

    def __init__(self, path: Path, *, frames_per_second: int):
        import imageio_ffmpeg

        pictures = f"-v error -y -f image2pipe -c:v ppm -framerate {frames_per_second} -i -"
        # Sharp text, and a pixel format that all players support.
        codec = "-c:v libx264 -crf 20 -preset veryfast -pix_fmt yuv420p -movflags +faststart"
        self._encoder = subprocess.Popen(
            [imageio_ffmpeg.get_ffmpeg_exe(), *f"{pictures} {codec}".split(), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must not reach ffmpeg
        )

    def add(self, picture: np.ndarray) -> None:
        """Adds a picture; a broken pipe if ffmpeg has failed."""
        height, width, _ = picture.shape
        assert self._encoder.stdin is not None
        self._encoder.stdin.write(b"P6 %d %d 255\n" % (width, height) + picture.tobytes())

    def __enter__(self) -> "Mp4":
        return self

    def __exit__(self, error: type | None, *details: object) -> None:
        # After a broken pipe ffmpeg has failed, and says why.
        is_stopped = error not in (None, BrokenPipeError)
        if is_stopped:
            self._encoder.kill()
        _, message = self._encoder.communicate()
        status = self._encoder.returncode
        if status != 0 and not is_stopped:
            reason = message.decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(errno.EIO, f"the encoder failed: {reason or f'exit status {status}'}")


class Gif:
    """A .gif with one palette for all pictures, which are kept compressed until the end."""

    def __init__(self, *, frames_per_second: int):
        self._every = math.ceil(frames_per_second / _GIF_FRAMES_PER_SECOND)
        self._milliseconds = 1000 * self._every / frames_per_second
        self._added = 0
        self._shape: tuple[int, ...] = ()
        self._pictures: list[bytes] = []

    def add(self, picture: np.ndarray) -> None:
        """Adds a picture; drops it after the first minute or above the maximum frame rate."""
        is_early = len(self._pictures) < GIF_SECONDS * 1000 / self._milliseconds
        if self._added % self._every == 0 and is_early:
            self._shape = picture.shape
            self._pictures.append(lz4.frame.compress(np.ascontiguousarray(picture)))
        self._added += 1

    def encoded(self) -> bytes:
        """The content of the file."""
        step = math.ceil(len(self._pictures) / _GIF_SAMPLES)
        # Every third row and column: colours of smaller areas hardly matter.
        samples = [self._picture(data)[::3, ::3] for data in self._pictures[::step]]
        palette = Image.fromarray(np.concatenate(samples)).quantize(256)
        first, *others = (
            # No dithering: static areas must not flicker, and compress better.
            Image.fromarray(self._picture(data)).quantize(palette=palette, dither=Image.Dither.NONE)
            for data in self._pictures
        )
        file = io.BytesIO()
        first.save(
            file, "GIF", save_all=True, append_images=others, duration=self._milliseconds, loop=0
        )
        return file.getvalue()

    def _picture(self, data: bytes) -> np.ndarray:
        return np.frombuffer(lz4.frame.decompress(data), np.uint8).reshape(self._shape)


def check_video(path: Path) -> None:
    """Rejects a path that `video` could not write, without touching the disk."""
    if path.suffix not in (".mp4", ".gif"):
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
def video(path: Path, *, frames_per_second: int) -> Iterator[Mp4 | Gif]:
    """A writer whose file appears only at the end; after an error nothing is left behind."""
    check_video(path)
    aside = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        aside.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)  # a link there would lead elsewhere
        if path.suffix == ".mp4":
            with Mp4(aside, frames_per_second=frames_per_second) as mp4:
                yield mp4
        else:
            gif = Gif(frames_per_second=frames_per_second)
            yield gif
            aside.write_bytes(gif.encoded())
        aside.replace(path)
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error
    finally:
        aside.unlink(missing_ok=True)


def enlarged(screen: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """A screen [H, W, 3] at the largest size that fits."""
    scale = min(height / screen.shape[0], width / screen.shape[1])
    size = (round(screen.shape[1] * scale), round(screen.shape[0] * scale))
    return np.asarray(Image.fromarray(screen).resize(size, Image.Resampling.BOX))


def _unwritable(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{path} cannot be written ({reason}); give another file.")
