"""Scores and numbers of a run, to CSV and TensorBoard."""

import contextlib
import csv
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rainbow_tf.agent.learner import UpdateResult
from rainbow_tf.agent.networks import Network
from rainbow_tf.config import Config
from rainbow_tf.replay.replay import Replay
from rainbow_tf.training.loop import Tick
from rainbow_tf.types import StepOutput


class Episode(NamedTuple):
    """A whole game: its unclipped score and its length in agent steps."""

    score: float
    length: int


class EpisodeTracker:
    """Adds up true scores of E lanes, over lost lives, until the game is over."""

    def __init__(self, num_lanes: int):
        self._scores = np.zeros(num_lanes)
        self._lengths = np.zeros(num_lanes, np.int64)

    def observe(self, output: StepOutput) -> list[Episode]:
        """Takes a step in; gives the episodes that it finished."""
        self._scores += output.reward
        self._lengths += ~output.is_first
        lanes = np.flatnonzero(output.episode_over)
        finished = [Episode(float(self._scores[i]), int(self._lengths[i])) for i in lanes]
        self._scores[lanes] = 0
        self._lengths[lanes] = 0
        return finished

    def unfinished(self) -> list[Episode]:
        """The episodes under way, as they stand."""
        return [
            Episode(float(score), int(length))
            for score, length in zip(self._scores, self._lengths, strict=True)
        ]


class CsvFile:
    """Rows with a header, written through at once."""

    def __init__(self, path: Path, columns: tuple[str, ...]):
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, columns)
        self._writer.writeheader()
        self._file.flush()

    def write(self, row: dict) -> None:
        """Appends a row."""
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


TRAIN_COLUMNS = (
    "frames",
    "updates",
    "episodes",
    "return_mean_20",
    "return_mean_100",
    "length_mean_100",
    "loss",
    "q_mean",
    "priority_mean",
    "priority_max",
    "noise_scale",
    "epsilon",
    "beta",
    "replay_fill",
    "frames_per_second",
)
EVAL_COLUMNS = (
    "frames",
    "episodes",
    "score_mean",
    "score_median",
    "score_stderr",
    "score_min",
    "score_max",
    "length_mean",
    "protocol",
    "seconds",
)


class Metrics:
    """Gathers ticks and writes a row of `train.csv` and TensorBoard points now and then."""

    def __init__(self, *, config: Config, folder: Path, network: Network, replay: Replay):
        self._network = network
        self._replay = replay
        self._period = config.log_period_frames
        self._protocol = protocol_name(config)
        self._train = CsvFile(folder / "train.csv", TRAIN_COLUMNS)
        self._eval = CsvFile(folder / "eval.csv", EVAL_COLUMNS)
        self._board = tf.summary.create_file_writer(str(folder / "tensorboard"))
        self._tracker = EpisodeTracker(config.num_envs)
        self._episodes = 0
        self.recent: deque[Episode] = deque(maxlen=100)
        self._results: list[UpdateResult] = []
        self._next_row = self._period
        self._last = (0, time.perf_counter())

    def observe(self, tick: Tick) -> None:
        """Takes a tick in; writes when a period is full."""
        finished = self._tracker.observe(tick.output)
        self._episodes += len(finished)
        self.recent.extend(finished)
        self._results += tick.results
        if tick.frames >= self._next_row:
            self._next_row = (tick.frames // self._period + 1) * self._period
            self._write_train(tick)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps what happens inside out of the frames per second."""
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
        scales = self._network.noise_scales()
        errors = [result.errors for result in self._results]
        row = {
            "frames": tick.frames,
            "updates": tick.updates,
            "episodes": self._episodes,
            "return_mean_20": self.return_mean(20),
            "return_mean_100": self.return_mean(100),
            "length_mean_100": _mean([episode.length for episode in self.recent]),
            "loss": _mean([result.loss for result in self._results]),
            "q_mean": _mean([result.q_mean for result in self._results]),
            "priority_mean": _mean(errors),
            "priority_max": self._replay.max_priority,
            "noise_scale": _mean(list(scales.values())),
            "epsilon": tick.epsilon,
            "beta": tick.beta,
            "replay_fill": self._replay.fill,
            "frames_per_second": (tick.frames - frames) / (now - since),
        }
        self._results = []
        self._train.write({name: _short(value) for name, value in row.items()})
        layers = {f"noise_scale/{name}": scale for name, scale in scales.items()}
        points = {f"train/{name}": value for name, value in row.items() if name != "frames"}
        self._draw(tick.frames, points | layers)

    def write_evaluation(
        self, frames: int, scores: np.ndarray, lengths: np.ndarray, seconds: float
    ) -> None:
        """Writes a row of `eval.csv`."""
        row = {
            "frames": frames,
            "episodes": len(scores),
            "score_mean": scores.mean(),
            "score_median": np.median(scores),
            "score_stderr": scores.std(ddof=1) / len(scores) ** 0.5 if len(scores) > 1 else None,
            "score_min": scores.min(),
            "score_max": scores.max(),
            "length_mean": lengths.mean(),
            "protocol": self._protocol,
            "seconds": seconds,
        }
        self._eval.write({name: _short(value) for name, value in row.items()})
        points = {f"eval/{k}": v for k, v in row.items() if k.startswith(("score", "length"))}
        self._draw(frames, points)

    def _draw(self, frames: int, points: dict) -> None:
        with self._board.as_default(step=frames):
            for name, value in points.items():
                if value is not None:
                    tf.summary.scalar(name, value)
        self._board.flush()

    def close(self) -> None:
        """Closes the files."""
        self._train.close()
        self._eval.close()
        self._board.close()


def protocol_name(config: Config) -> str:
    """The rules that a score was taken by; scores of unlike rules must not be compared."""
    return f"{config.protocol}/noop" if config.game is not None else "gymnasium"


def _mean(values: list) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _short(value):
    return f"{value:.6g}" if isinstance(value, float) else value
