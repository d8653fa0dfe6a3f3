"""Logs a run to CSV files and TensorBoard."""

import contextlib
import csv
import errno
import io
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.plugins.image.metadata import create_summary_metadata

from rainbow_tf.agent.schedules import has_passed
from rainbow_tf.config import Config
from rainbow_tf.console import say
from rainbow_tf.evaluation.statistics import protocol_name
from rainbow_tf.files import read_bytes, record
from rainbow_tf.runs.store import write_atomically
from rainbow_tf.training.build import AnyParts
from rainbow_tf.training.tracking import start_wandb
from rainbow_tf.types import Episode, Tick


class CsvFile:
    """A CSV file whose first column is frames; each row is written at once.

    An existing file continues after its last row of at most `frames`. Rows that do not fit on a
    full disk are kept and written with the next one.
    """

    def __init__(self, path: Path, columns: tuple[str, ...], *, frames: int):
        self._columns = columns
        write_atomically(path, _rows_until(path, columns, frames))
        self._file = path.open("ab", buffering=0)
        self._pending = b""

    def write(self, row: dict) -> None:
        """Appends a row; raises OSError if it could not be written yet."""
        self._pending += _csv_line([row[name] for name in self._columns])
        self._flush()

    def _flush(self) -> None:
        end = self._file.seek(0, os.SEEK_END)
        written = 0
        try:
            written = self._file.write(self._pending)
        finally:
            if written < len(self._pending):
                self._file.truncate(end)
        if written < len(self._pending):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._pending = b""

    def close(self) -> None:
        """Closes the file, after a last attempt to write pending rows."""
        with contextlib.suppress(OSError):
            self._flush()
        self._file.close()


def _rows_until(path: Path, columns: tuple[str, ...], frames: int) -> bytes:
    """The header, and the rows up to this many frames."""
    kept = [_csv_line(columns)]
    if path.exists():
        for line in read_bytes(path).splitlines(keepends=True):
            count = line.split(b",", 1)[0]
            # A line without a line end was cut off by a kill; no number has so many digits.
            is_row = count.isdigit() and len(count) < 20 and line.endswith(b"\n")
            if is_row and int(count) <= frames:
                kept.append(line)
    return b"".join(kept)


def _csv_line(values: Iterable) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()


TRAIN_COLUMNS = (
    *("frames", "updates", "episodes", "return_mean_20", "return_mean_100", "length_mean_100"),
    *("loss", "q_mean", "priority_mean", "priority_max", "noise_scale", "epsilon", "beta"),
    *("replay_fill", "frames_per_second"),
)
EVAL_COLUMNS = (
    *("frames", "episodes", "score_mean", "score_median", "score_stderr", "score_min"),
    *("score_max", "length_mean", "protocol", "seconds", "value_mean", "return_mean"),
    "outside_support",
)
_NOT_DRAWN = ("frames", "episodes", "protocol", "seconds")


class Metrics:
    """Collects ticks; writes a row of `train.csv` and TensorBoard points every period."""

    def __init__(
        self,
        *,
        config: Config,
        parts: AnyParts,
        frames: int,
        evaluated: int,  # frames of the last evaluation
    ):
        folder = config.folder
        self._wandb = start_wandb(config) if config.wandb else None
        self._parts = parts
        self._period = config.log_period_frames
        self._protocol = protocol_name(config)
        self._train = CsvFile(folder / "train.csv", TRAIN_COLUMNS, frames=frames)
        # An evaluation after the checkpoint will be repeated, so its row is dropped.
        self._eval = CsvFile(folder / "eval.csv", EVAL_COLUMNS, frames=evaluated)
        self._board = tf.summary.create_file_writer(str(folder / "tensorboard"))
        self._failing: set[object] = set()  # files that could not be written last time
        self._episodes = 0
        self.recent: deque[Episode] = deque(maxlen=100)
        self._sums = np.zeros(4)  # updates, and sums of loss, q_mean and mean error, since a row
        self._written = frames  # of the last row
        self._last = (frames, time.perf_counter())

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, as JSON; unfinished episodes are not part of it."""
        sums = self._sums.tolist()
        return {"episodes": self._episodes, "recent": list(self.recent), "sums": sums}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self._episodes = record(int, state["episodes"])
        self.recent.extend(record(list[Episode], state["recent"]))
        self._sums[:] = record(list[float], state["sums"])

    def observe(self, tick: Tick) -> None:
        """Adds a tick; writes a row when a period has passed."""
        self._episodes += len(tick.episodes)
        self.recent.extend(tick.episodes)
        for result in tick.results:
            self._sums += (1, result.loss, result.q_mean, result.errors.mean())
        if has_passed(self._period, self._written, tick.frames):
            self._written = tick.frames
            self._write_train(tick)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time inside from the frames per second."""
        started = time.perf_counter()
        yield
        frames, since = self._last
        self._last = (frames, since + time.perf_counter() - started)

    def return_mean(self, episodes: int) -> float | None:
        """Mean score of the last episodes; None before there is one."""
        scores = [episode.score for episode in list(self.recent)[-episodes:]]
        return float(np.mean(scores)) if scores else None

    def _write_train(self, tick: Tick) -> None:
        frames, since = self._last
        now = time.perf_counter()
        self._last = (tick.frames, now)
        scales = self._parts.learner.online.noise_scales()
        updates, *sums = self._sums.tolist()
        loss, q_mean, error_mean = (total / updates if updates else None for total in sums)
        self._sums[:] = 0
        replay = self._parts.replay
        row = {
            "frames": tick.frames,
            "updates": tick.counters.updates,
            "episodes": self._episodes,
            "return_mean_20": self.return_mean(20),
            "return_mean_100": self.return_mean(100),
            "length_mean_100": _mean([episode.length for episode in self.recent]),
            "loss": loss,
            "q_mean": q_mean,
            "priority_mean": None if replay is None else error_mean,
            "priority_max": None if replay is None else replay.max_priority,
            "noise_scale": _mean(list(scales.values())),
            "epsilon": tick.epsilon,
            "beta": tick.beta,
            "replay_fill": 0.0 if replay is None else replay.fill,
            "frames_per_second": (tick.frames - frames) / (now - since),
        }
        self._write(self._train, row)
        layers = {f"noise_scale/{name}": scale for name, scale in scales.items()}
        points = {f"train/{name}": value for name, value in row.items() if name != "frames"}
        self._draw(tick.frames, points | layers)

    def write_evaluation(self, frames: int, summary: dict[str, Any], seconds: float) -> None:
        """Writes a row of `eval.csv`."""
        row = {
            "frames": frames,
            "protocol": self._protocol,
            "seconds": seconds,
            **summary,
        }
        self._write(self._eval, row)
        points = {f"eval/{k}": v for k, v in row.items() if k not in _NOT_DRAWN}
        self._draw(frames, points)

    def _write(self, file: CsvFile, row: dict) -> None:
        try:
            file.write({name: _short(value) for name, value in row.items()})
        except OSError as error:
            since = f"Rows from {row['frames']:,} frames on could not be written yet"
            self._say_once(file, f"{since}: {error.strerror}.")
        else:
            self._failing.discard(file)

    def show_film(self, frames: int, gif: bytes, *, height: int, width: int) -> None:
        """Adds an animated GIF to TensorBoard's images."""
        # As `tf.summary.image` does, which would encode a PNG.
        image = tf.constant([str(width).encode(), str(height).encode(), gif])
        with self._drawing(frames):
            tf.summary.write("film", image, metadata=create_summary_metadata("film", ""))

    def _draw(self, frames: int, points: dict) -> None:
        if self._wandb is not None:
            self._wandb.log(points, step=frames)
        with self._drawing(frames):
            for name, value in points.items():
                if value is not None:
                    tf.summary.scalar(name, value)

    @contextlib.contextmanager
    def _drawing(self, frames: int) -> Iterator[None]:
        """Writes to TensorBoard; reports write failures, such as a full disk."""
        try:
            with self._board.as_default(step=frames):
                yield
            self._board.flush()
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0].rsplit("; ")[-1]
            since = f"TensorBoard points from {frames:,} frames on are lost"
            self._say_once(self._board, f"{since}: {reason}.")
        else:
            self._failing.discard(self._board)

    def _say_once(self, file: object, line: str) -> None:
        """Reports a failing file once, until it works again."""
        if file not in self._failing:
            self._failing.add(file)
            say(line)

    def close(self) -> None:
        """Closes the files."""
        self._train.close()
        self._eval.close()
        if self._wandb is not None:
            self._wandb.finish()
        with contextlib.suppress(tf.errors.OpError):  # A full disk; already reported.
            self._board.close()


def _mean(values: list) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _short(value):
    return f"{value:.6g}" if isinstance(value, float) else value
