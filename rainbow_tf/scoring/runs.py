"""Run folders, read from what training and evaluation left in them."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rainbow_tf.config import Config, ConfigError

# What --restart appends to the folder of a run that it moves aside.
_MOVED_ASIDE = re.compile(r"_\d{8}_\d{6}$")


class Curve(NamedTuple):
    """Scores over training: of evaluations, or without any, the mean return in training."""

    frames: np.ndarray
    scores: np.ndarray
    protocol: str
    is_training: bool


class Evaluation(NamedTuple):
    """What the evaluate command found of a snapshot; values and returns are per episode."""

    protocol: str
    score: float
    episodes: int
    values: np.ndarray
    returns: np.ndarray
    outside_support: np.ndarray


@dataclass(frozen=True)
class Run:
    """One run folder."""

    folder: Path
    config: Config
    agent: str
    curve: Curve
    evaluations: tuple[Evaluation, ...]

    @property
    def world(self) -> str:
        """Name of its game or environment."""
        return self.config.world

    @property
    def is_finished(self) -> bool:
        """Whether its curve reaches the end of training, within one evaluation."""
        if self.curve.is_training:
            period = self.config.log_period_frames
        else:
            period = self.config.eval_period_frames
        return self.last_frame > self.config.frames - max(period, 1)

    @property
    def last_frame(self) -> int:
        """Frames at the last point of its curve."""
        return int(self.curve.frames[-1]) if len(self.curve.frames) else 0


def read_runs(folder: Path) -> list[Run]:
    """Every run at or below a folder, but those that a restart moved aside."""
    if not folder.is_dir():
        raise ConfigError(f"--runs={folder} is not a folder; give one that holds run folders.")
    runs = [_read_run(path) for path in _run_folders(folder)]
    if not runs:
        raise ConfigError(
            f"--runs={folder} holds no run, which is a folder with config.json and train.csv or "
            "eval.csv; train one with python -m rainbow_tf.main, or give --published=paper."
        )
    seen: dict[tuple, Path] = {}
    for run in runs:
        key = (run.config.protocol, run.world, run.agent, run.config.seed)
        if key in seen:
            raise ConfigError(
                f"{seen[key]} and {run.folder} are both seed {run.config.seed} of {run.agent} on "
                f"{run.world}; move one of them out of --runs={folder}."
            )
        seen[key] = run.folder
    return runs


def _run_folders(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _MOVED_ASIDE.search(name))
        if "config.json" in files and ("eval.csv" in files or "train.csv" in files):
            folders.clear()
            yield Path(path)


def _read_run(folder: Path) -> Run:
    config = _read_config(folder / "config.json")
    paths = sorted((folder / "evaluations").glob("*/summary.json"))
    return Run(
        folder=folder,
        config=config,
        agent=config.agent,
        curve=_read_curve(folder, config),
        evaluations=tuple(_read_evaluation(path) for path in paths),
    )


def _read_config(path: Path) -> Config:
    try:
        return Config.from_json(path.read_text())
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); mend it, or move its folder out of --runs."
        ) from error


def _read_curve(folder: Path, config: Config) -> Curve:
    path = folder / "eval.csv"
    if path.exists():
        frames, scores, protocols = _columns(
            path, {"frames": int, "score_mean": float, "protocol": str}
        )
        if len(set(protocols)) > 1:
            raise ConfigError(
                f"{path} holds scores of unlike protocols ({', '.join(sorted(set(protocols)))}); "
                "keep the rows of one."
            )
        if frames:
            return Curve(np.array(frames), np.array(scores), protocols[0], is_training=False)
    protocol = f"{config.protocol}/noop" if config.game is not None else "gymnasium"
    path = folder / "train.csv"
    points: list[tuple] = []
    if path.exists():
        frames, returns = _columns(path, {"frames": int, "return_mean_100": _optional})
        points = [point for point in zip(frames, returns, strict=True) if not np.isnan(point[1])]
    frames_, scores_ = np.array(points, dtype=float).reshape(-1, 2).T
    return Curve(frames_, scores_, protocol, is_training=True)


def _read_evaluation(path: Path) -> Evaluation:
    try:
        summary = json.loads(path.read_text())
        protocol, score = str(summary["protocol"]), float(summary["score_mean"])
        episodes, origin = int(summary["episodes"]), summary.get("starts_origin")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} is no summary of an evaluation ({error!r}); run python -m rainbow_tf.evaluate "
            "again, or delete its folder."
        ) from error
    starts = protocol.split("/")[-1]
    if starts != "noop" and origin not in (None, starts):
        raise ConfigError(
            f"{path} calls its starts {starts}, but they were recorded by {origin}; run python -m "
            "rainbow_tf.evaluate again."
        )
    names = ("value_mean", "return_mean", "outside_support")
    scores = path.with_name("scores.csv")
    columns: list[list] = [[], [], []]
    if scores.exists():
        columns = _columns(scores, dict.fromkeys(names, _optional))
    values, returns, outside = (np.array(column, dtype=float) for column in columns)
    known = ~(np.isnan(values) | np.isnan(returns))
    return Evaluation(protocol, score, episodes, values[known], returns[known], outside[known])


def _optional(text: str) -> float:
    return float(text) if text else float("nan")


def _columns(path: Path, kinds: dict[str, Callable[[str], Any]]) -> list[list]:
    """The named columns of a CSV file, each read by its kind."""
    way_out = "delete that line, or go on with the run, which keeps whole rows only"
    if path.name == "scores.csv":
        way_out = "run python -m rainbow_tf.evaluate again"
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}).") from error
    if not text.endswith("\n"):
        last = text.count("\n") + 1
        raise ConfigError(f"{path} is cut off in line {last}; {way_out}.")
    header, *rows = csv.reader(text.splitlines())
    missing = [name for name in kinds if name not in header]
    if missing:
        raise ConfigError(
            f"{path} has no column {', '.join(missing)}; it is not a file of this package, so move "
            "its folder out of --runs."
        )
    places = [header.index(name) for name in kinds]
    readers = list(kinds.values())
    columns: list[list] = [[] for _ in kinds]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ConfigError(
                f"{path} has {len(row)} of {len(header)} columns in line {number}; {way_out}."
            )
        for column, place, read in zip(columns, places, readers, strict=True):
            try:
                column.append(read(row[place]))
            except ValueError as error:
                raise ConfigError(
                    f"{path} has {row[place]!r} for {header[place]} in line {number}; {way_out}."
                ) from error
    return columns
