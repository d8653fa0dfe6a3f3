"""Reads run folders: the files that training and evaluation write."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rainbow_tf.config import Config, ConfigError

EVALUATED = "evaluate"
# Training returns are read only for curves with fewer evaluations than this: a long run has a
# smooth curve without them, and a train.csv that takes long to read.
_MANY_EVALUATIONS = 40
# What --restart appends to the folder of a run that it moves aside.
_MOVED_ASIDE = re.compile(r"_\d{8}_\d{6}$")


class Curve(NamedTuple):
    """Scores over frames: of evaluations during training, or mean returns of training itself."""

    frames: np.ndarray
    scores: np.ndarray
    protocol: str
    is_training: bool


class Evaluation(NamedTuple):
    """An end score and its source. Of the evaluate command, with arrays per episode."""

    protocol: str
    score: float
    source: str
    conditions: str = ""  # such as "100 episodes, latest weights, epsilon 0.001"
    scores: np.ndarray = np.empty(0)
    values: np.ndarray = np.empty(0)
    returns: np.ndarray = np.empty(0)
    outside_support: np.ndarray = np.empty(0)


@dataclass(frozen=True)
class Run:
    """One run folder."""

    folder: Path
    config: Config
    agent: str
    curve: Curve  # of evaluations if there are any, otherwise the same as `training`
    training: Curve  # may be empty if there are many evaluations
    evaluations: tuple[Evaluation, ...]

    @property
    def environment(self) -> str:
        """Name of its game or environment."""
        return self.config.environment_name

    @property
    def is_finished(self) -> bool:
        """Whether its curve reaches the end of training, give or take one period."""
        config = self.config
        is_training = self.curve.is_training
        period = config.log_period_frames if is_training else config.eval_period_frames
        return self.last_frame > config.frames - max(period, 1)

    @property
    def last_frame(self) -> int:
        """Frames at the last point of its curve."""
        return int(self.curve.frames[-1]) if len(self.curve.frames) else 0


def read_runs(folder: Path) -> list[Run]:
    """Every run at or below a folder, except those that --restart moved aside."""
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
        key = (run.config.protocol, run.environment, run.agent, run.config.seed)
        first = seen.setdefault(key, run.folder)
        if first != run.folder:
            raise ConfigError(
                f"{first} and {run.folder} are both seed {run.config.seed} of {run.agent} on "
                f"{run.environment}; move one of them out of --runs={folder}."
            )
    return runs


def _run_folders(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _MOVED_ASIDE.search(name))
        if "config.json" in files and ("eval.csv" in files or "train.csv" in files):
            folders.clear()
            yield Path(path)


def _read_run(folder: Path) -> Run:
    path = folder / "config.json"
    try:
        config = Config.from_json(path.read_text())
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be used ({error}); fix it, or move its folder out of --runs."
        ) from error
    path = folder / "eval.csv"
    kinds = {"frames": int, "score_mean": float, "protocol": str}
    frames, scores, protocols = _columns(path, kinds)
    if len(set(protocols)) > 1:
        raise ConfigError(
            f"{path} mixes scores of different protocols ({', '.join(sorted(set(protocols)))}); "
            "keep the rows of one."
        )
    points, returns = np.empty(0), np.empty(0)
    if len(frames) < _MANY_EVALUATIONS:
        columns = _columns(folder / "train.csv", {"frames": int, "return_mean_100": _optional})
        points, returns = np.array(columns, dtype=float)
    known = ~np.isnan(returns)
    protocol = f"{config.protocol}/noop" if config.game is not None else "gymnasium"
    training = Curve(points[known], returns[known], protocol, is_training=True)
    curve = training
    if frames:
        curve = Curve(np.array(frames), np.array(scores), protocols[0], is_training=False)
    paths = sorted((folder / "evaluations").glob("*/summary.json"))
    return Run(folder, config, config.agent, curve, training, tuple(map(_read_evaluation, paths)))


def _read_evaluation(path: Path) -> Evaluation:
    try:
        summary = json.loads(path.read_text())
        protocol, score = str(summary["protocol"]), float(summary["score_mean"])
        episodes, origin = int(summary["episodes"]), summary.get("starts_origin")
        conditions = f"{episodes:,} episodes, {summary.get('snapshot', 'best')} weights"
        if summary.get("eval_epsilon"):
            conditions += f", epsilon {float(summary['eval_epsilon']):g}"
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} is not a summary of an evaluation ({error!r}); run "
            "python -m rainbow_tf.evaluate again, or delete its folder."
        ) from error
    starts = protocol.split("/")[-1]
    if starts != "noop" and origin not in (None, starts):
        raise ConfigError(
            f"{path} calls its starts {starts}, but they were recorded by {origin}; run python -m "
            "rainbow_tf.evaluate again."
        )
    names = ("score", "value_mean", "return_mean", "outside_support")
    columns = _columns(path.with_name("scores.csv"), dict.fromkeys(names, _optional))
    scores, *checks = np.array(columns, dtype=float)
    known = ~np.isnan(checks[:2]).any(axis=0)
    checks = [column[known] for column in checks]
    return Evaluation(protocol, score, EVALUATED, conditions, scores, *checks)


def _optional(text: str) -> float:
    return float(text or "nan")


def _columns(path: Path, kinds: Mapping[str, Callable[[str], Any]]) -> list[list]:
    """The named columns of a CSV file, each converted by its function; empty without the file."""
    if not path.exists():
        return [[] for _ in kinds]
    way_out = "delete that line, or resume the run, which keeps complete rows only"
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
    columns: dict[str, list] = {name: [] for name in kinds}
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            found = f"{len(row)} of {len(header)} columns"
            raise ConfigError(f"{path} has {found} in line {number}; {way_out}.")
        cells = dict(zip(header, row, strict=True))
        for name, read in kinds.items():
            try:
                columns[name].append(read(cells[name]))
            except ValueError as error:
                found = f"{cells[name]!r} for {name}"
                raise ConfigError(f"{path} has {found} in line {number}; {way_out}.") from error
    return list(columns.values())
