"""Reads run folders: the files that training and evaluation write."""

import csv
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.files import read_bytes, read_json, record

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
    def is_atari(self) -> bool:
        """Whether it plays an Atari game, all of which have a human reference."""
        return self.config.game is not None

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


def read_runs(folder: Path, skip: Callable[[ConfigError], object] = print) -> list[Run]:
    """Every run at or below a folder; those that cannot be read go to `skip`."""
    runs, problem = [], None
    for path in run_folders(folder):
        try:
            runs.append(_read_run(path))
        except ConfigError as error:
            problem = problem or error
            skip(error)
    if not runs and problem is not None:
        raise problem
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


def run_folders(folder: Path) -> Iterator[Path]:
    """The run folders at or below a folder, except those that --restart moved aside."""
    if not folder.is_dir():
        raise ConfigError(f"--runs={folder} is not a folder; give one that holds run folders.")
    seen = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _MOVED_ASIDE.search(name))
        if (real := os.path.realpath(path)) in seen:  # a link to a folder above would never end
            folders.clear()
            continue
        seen.add(real)
        if "config.json" in files and ("eval.csv" in files or "train.csv" in files):
            folders.clear()
            yield Path(path)


def _read_run(folder: Path) -> Run:
    path = folder / "config.json"
    try:
        config = Config.from_dict(read_json(path))
    except ConfigError as error:
        raise ConfigError(
            f"{path} cannot be used ({error}); fix it, or move its folder out of --runs."
        ) from error
    path = folder / "eval.csv"
    kinds: dict[str, Callable] = {"frames": _number, "score_mean": _number, "protocol": _label}
    frames, scores, protocols = _columns(path, kinds)
    if len(set(protocols)) > 1:
        raise ConfigError(
            f"{path} mixes scores of different protocols ({', '.join(sorted(set(protocols)))}); "
            "keep the rows of one."
        )
    points, returns = np.empty(0), np.empty(0)
    if len(frames) < _MANY_EVALUATIONS:
        columns = _columns(folder / "train.csv", {"frames": _number, "return_mean_100": _optional})
        points, returns = np.array(columns, dtype=float)
    known = ~np.isnan(returns)
    protocol = f"{config.protocol}/noop" if config.game is not None else "gymnasium"
    training = Curve(points[known], returns[known], protocol, is_training=True)
    curve = training
    if frames:
        curve = Curve(np.array(frames), np.array(scores), protocols[0], is_training=False)
    paths = sorted((folder / "evaluations").glob("*/summary.json"))
    return Run(folder, config, config.agent, curve, training, tuple(map(_read_evaluation, paths)))


class _Summary(NamedTuple):
    """What the report takes from summary.json."""

    protocol: str
    score_mean: float
    episodes: int
    starts_origin: str | None = None
    snapshot: str = "best"
    eval_epsilon: float = 0.0


def _read_evaluation(path: Path) -> Evaluation:
    try:
        summary = read_json(path, _Summary)
        for text in (summary.protocol, summary.starts_origin or "", summary.snapshot):
            _label(text)
    except ValueError as error:
        raise ConfigError(
            f"No summary of an evaluation: {error}; run python -m rainbow_tf.evaluate again, or "
            "delete its folder."
        ) from error
    protocol, origin = summary.protocol, summary.starts_origin
    conditions = f"{summary.episodes:,} episodes, {summary.snapshot} weights"
    if summary.eval_epsilon:
        conditions += f", epsilon {summary.eval_epsilon:g}"
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
    return Evaluation(protocol, summary.score_mean, EVALUATED, conditions, scores, *checks)


def _label(text: str) -> str:
    if len(text) > 60 or not text.isprintable():
        raise ValueError(f"{text!r:.60} is not a name")
    return text


def _number(text: str) -> float:
    return record(float, float(text))


def _optional(text: str) -> float:
    return _number(text) if text else np.nan


def _columns(path: Path, kinds: Mapping[str, Callable[[str], Any]]) -> list[list]:
    """The named columns of a CSV file, each converted by its function; empty without the file."""
    if not path.exists():
        return [[] for _ in kinds]
    way_out = "delete that line, or resume the run, which keeps complete rows only"
    if path.name == "scores.csv":
        way_out = "run python -m rainbow_tf.evaluate again"
    try:
        text = read_bytes(path).decode()
        header, *rows = csv.reader(text.splitlines())
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be used ({error}); {way_out}.") from error
    if not text.endswith("\n"):
        raise ConfigError(f"{path} is cut off in line {len(rows) + 1}; {way_out}.")
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
                found = f"{cells[name]!r:.60} for {name}"
                raise ConfigError(f"{path} has {found} in line {number}; {way_out}.") from error
    if np.any(np.diff(columns.get("frames", [])) <= 0):
        raise ConfigError(f"{path} has frames that do not rise; {way_out}.")
    return list(columns.values())
