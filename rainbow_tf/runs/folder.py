"""A run's folder: new, resumed or moved aside, and never used by two processes."""

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from rainbow_tf.agent.schedules import has_passed
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import make_spec
from rainbow_tf.files import FileError, inside, read_json, reading
from rainbow_tf.process import untrusted
from rainbow_tf.runs.store import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointStore,
    kept_best,
    write_atomically,
)
from rainbow_tf.types import EnvironmentSpec

_SETTINGS = "config.json"
_SPEC = "environment.json"
_MOST_VALUES = 1 << 28  # of observations, times actions
MODULES = ("environment", "network")  # settings that can name a module


class FolderBusyError(ConfigError):
    """Another process uses the folder."""


def check_folder(config: Config) -> None:
    """Refuses a folder that holds another run or cannot be written; changes nothing."""
    folder = config.folder
    paths = (folder, *folder.absolute().parents)
    nearest = next(path for path in paths if os.path.exists(path))
    if not nearest.is_dir():
        raise _unwritable(folder, f"{nearest} is a file")
    try:
        tempfile.TemporaryFile(dir=nearest).close()  # permissions alone do not tell
    except OSError as error:
        raise _unwritable(folder, f"{nearest}: {error.strerror}") from error
    if config.restart and folder.name in ("", ".."):
        raise ConfigError(
            f"--restart cannot move {folder} aside; give --run_dir by name, from outside of it."
        )
    if resumes(config):
        check_settings(read_config(folder, again=MODULES), config)


def is_run(folder: Path) -> bool:
    """Whether the folder holds a run."""
    return os.path.exists(folder / _SETTINGS)  # also False for a name that no disk takes


def resumes(config: Config) -> bool:
    """Whether the folder holds a run to resume."""
    return is_run(config.folder) and not config.restart


def is_finished(config: Config, checkpoint: Checkpoint) -> bool:
    """Whether a run has all frames, its last evaluation, and its best weights on disk."""
    frames, best = checkpoint.frames, checkpoint.best
    is_due = is_evaluation_due(config, checkpoint.evaluated, frames)
    is_kept = best is None or best.frames != frames or kept_best(config.folder) == best
    return frames >= config.frames and not is_due and is_kept


def is_evaluation_due(config: Config, evaluated: int, frames: int) -> bool:
    """Whether a period has passed since the last evaluation, or training has ended since."""
    is_last = config.eval_period_frames > 0 and evaluated < frames >= config.frames
    return is_last or has_passed(config.eval_period_frames, evaluated, frames)


def read_config(run_dir: Path, *, again: Collection[str] = ()) -> Config:
    """The settings of the run in this folder.

    Those in `again` were given by the user too. Code that others name is not trusted: importing it
    would run what the folder's author chose.
    """
    path = run_dir / _SETTINGS
    if not is_run(run_dir):
        raise ConfigError(f"--run_dir={run_dir} is not a run folder: it has no {_SETTINGS}.")
    try:
        config = Config.from_dict(read_json(path))
    except ConfigError as error:
        raise ConfigError(
            f"{run_dir} has no settings that this version reads ({error}); give another --run_dir, "
            "or --restart in training, which moves the run aside."
        ) from error
    # The folder may have been moved, and a restart is over.
    config = dataclasses.replace(config, run_dir=str(run_dir), restart=False)
    untrusted.update(getattr(config, name) for name in MODULES if name not in again)
    return config


def environment_spec(config: Config) -> EnvironmentSpec:
    """The spec in the run folder, or that of a new environment."""
    path = config.folder / _SPEC
    if not path.exists():
        return make_spec(config)
    try:
        with reading(path):
            spec = read_json(path, EnvironmentSpec)
            sizes = (*spec.frame_shape, spec.num_actions)
            is_small = min(sizes) > 0 and math.prod(sizes) * config.stack <= _MOST_VALUES
            if not (is_small and spec.frame_shape and spec.frame_stack == config.stack):
                raise ValueError(f"observations of {spec.frame_shape} are not expected")
            return spec
    except FileError as error:
        raise ConfigError(f"{error}; delete it to ask the environment instead.") from error


def check_settings(old: Config, new: Config) -> None:
    """Refuses settings that may not change on resume."""
    fields = Config.__dataclass_fields__
    fixed = [n for n in changed_settings(old, new) if not fields[n].metadata["may_change"]]
    if fixed:
        before = " ".join(f"--{name}={getattr(old, name)}" for name in fixed)
        after = " ".join(f"--{name}={getattr(new, name)}" for name in fixed)
        raise ConfigError(
            f"{new.folder} holds a run with {before}, which cannot change to {after} on resume; "
            "give the old settings, another --run_dir, or --restart to move the run aside."
        )


def changed_settings(old: Config, new: Config) -> list[str]:
    """Names of the settings that differ."""
    names = [field.name for field in dataclasses.fields(Config)]
    return [name for name in names if getattr(old, name) != getattr(new, name)]


class RunFolder:
    """The folder of a run while this process uses it."""

    def __init__(self, config: Config):
        self._config = config
        self.path = config.folder
        self.store = CheckpointStore(self.path / CHECKPOINTS)
        self._lock = FileLock(self.path / ".lock", timeout=0)
        self._resumes = resumes(config)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def lock(self) -> None:
        """Keeps other processes out of the folder, until the `with` block or this process ends."""
        if self._lock.is_locked:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for path in self.path.iterdir():
                inside(self.path, path.name)
            self._lock.acquire()
        except FileError as error:
            raise _unwritable(self.path, str(error)) from error
        except Timeout as error:
            raise FolderBusyError(
                f"Another process trains in {self.path}; wait for it, stop it, or give another "
                "--run_dir or --seed."
            ) from error
        except OSError as error:
            raise _unwritable(self.path, str(error.strerror)) from error

    def find_checkpoint(self) -> Checkpoint | None:
        """The checkpoint to resume from; locks a folder that holds a run."""
        if not self._resumes:
            return None
        self.lock()
        checkpoint, problems = self.store.newest_whole()
        for problem in problems:
            print(f"{problem}.")
        if checkpoint is None and problems:
            raise ConfigError(
                f"No checkpoint in {self.store.folder} is intact, and nothing was changed; give "
                "--restart to move the run aside and start again, or another --run_dir."
            )
        if checkpoint is not None:
            check_settings(checkpoint.config, self._config)
        return checkpoint

    def begin(self, spec: EnvironmentSpec) -> None:
        """Writes the settings and the spec; moves an older run aside, or prints what changed."""
        config = self._config
        self.lock()
        try:
            if config.restart and is_run(self.path):
                self._move_aside()
            elif resumes(config) and not self._resumes:
                raise ConfigError(
                    f"Another process started a run in {self.path} meanwhile; rerun the command to "
                    "resume it, or give another --run_dir."
                )
            elif resumes(config):
                old = read_config(self.path, again=MODULES)
                old = dataclasses.replace(old, run_dir=config.run_dir)
                for name in changed_settings(old, config):
                    new, before = getattr(config, name), getattr(old, name)
                    print(f"Changed on resume: --{name}={new} (was {before}).")
            text = config.to_json().encode()
            write_atomically(self.path / _SETTINGS, text)
            known = json.dumps(spec._asdict() | {"frame_dtype": spec.frame_dtype.name}, indent=2)
            write_atomically(self.path / _SPEC, known.encode() + b"\n")
        except OSError as error:
            raise _unwritable(self.path, str(error.strerror)) from error

    def _move_aside(self) -> None:
        aside = self.path.with_name(f"{self.path.name}_{datetime.now():%Y%m%d_%H%M%S}")
        self.path.rename(aside)
        print(f"The run in {self.path} was moved to {aside}.")
        self._lock.release()
        self._lock = FileLock(self.path / ".lock", timeout=0)
        self.lock()


def _unwritable(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"The run folder {folder} cannot be written ({reason}); give another --run_dir."
    )
