"""The runs of a sweep: one agent, environment and seed each, in a folder of its own."""

import contextlib
import csv
import dataclasses
import enum
import itertools
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import make_spec
from rainbow_tf.files import FileError, inside, open_file, record
from rainbow_tf.process import StopSignals, load_tensorflow
from rainbow_tf.replay.replay import replay_bytes
from rainbow_tf.runs.folder import FolderBusyError, RunFolder, check_folder, is_finished
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.types import EnvironmentSpec

OUTPUT = "output.log"  # in the run folder: what the run printed
_PROGRAM_BYTES = 1_500_000_000  # measured without the replay: 1.1 to 1.4 GB
_TAIL_BYTES = 4096
_BUSY_SECONDS = 10.0


def counted(number: float, name: str) -> str:
    """A number with its noun: 1 run, 3,990 runs."""
    return f"{number:,g} {name}{'' if number == 1 else 's'}"


class Resources(NamedTuple):
    """What a run needs, or a machine has."""

    cpus: float
    gpus: float
    memory: float  # bytes

    def room_for(self, wanted: "Resources") -> int:
        """How many such runs fit at the same time."""
        shares = (have // want for have, want in zip(self, wanted, strict=True) if want > 0)
        return int(min(shares))

    def __str__(self) -> str:
        devices = f"{counted(self.cpus, 'CPU')}, {counted(self.gpus, 'GPU')}"
        return f"{devices} and {self.memory / 1e9:.1f} GB"


class Cell(NamedTuple):
    """One run of a sweep."""

    name: str  # environment, agent and seed, as in the folder
    preset: str
    config: Config
    request: Resources
    spec: EnvironmentSpec


class State(NamedTuple):
    """Progress of a run, read from its folder."""

    frames: int  # of the last row of train.csv, or of the checkpoint
    saved_frames: int  # of the checkpoint
    is_finished: bool
    frames_per_second: float | None
    score: float | None  # of the last evaluation, or else the mean training return
    output_bytes: int = 0  # of the run's output, which grows as soon as its process starts


class Status(enum.Enum):
    """Status of a run, in the order of the summary."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"  # also after Ray has it, until its process starts
    FAILED = "failed"


class Outcome(NamedTuple):
    """Status of a run after its process ended: done, failed, or waiting for a retry."""

    status: Status
    reason: str = ""
    retry_seconds: float = 0.0


def make_cells(
    kinds: Iterable[tuple[str, Config]], *, seeds: Iterable[int], out: Path, cpus: int | None
) -> list[Cell]:
    """One checked run per preset with its settings, and per seed; seed after seed."""
    specs: dict[str, EnvironmentSpec] = {}
    cells = []
    for seed, (preset, config) in itertools.product(seeds, kinds):
        if config.actors > 0:
            raise ConfigError(
                f"--preset={preset} has --actors={config.actors}, but a run of a sweep is one "
                "process; leave that preset out."
            )
        environment = config.environment_name
        if environment not in specs:
            specs[environment] = make_spec(config)
        spec, compressed = specs[environment], config.compressed_replay
        capacity = config.replay_capacity if config.has_replay else 0
        memory = replay_bytes(capacity, spec, compressed=compressed) + _PROGRAM_BYTES
        its_cpus = cpus or (2 if config.game is not None else 1)
        threads = its_cpus if config.threads is None else config.threads
        name = f"{environment}/{config.agent}/seed_{seed}"
        folder = str(out.absolute() / name)
        config = dataclasses.replace(config, seed=seed, run_dir=folder, threads=threads)
        cells.append(Cell(name, preset, config, Resources(its_cpus, 0, memory), spec))
    _check_folders(cells)
    return cells


def with_gpus(cells: Iterable[Cell], nodes: Iterable[Resources], gpus: float | None) -> list[Cell]:
    """The runs with their GPUs: as given, or one for Atari if the cluster has any."""
    has_gpus = any(node.gpus for node in nodes)
    given = []
    for cell in cells:
        default = int(has_gpus and cell.config.game is not None)
        request = cell.request._replace(gpus=default if gpus is None else gpus)
        given.append(cell._replace(request=request))
    return given


def _check_folders(cells: Iterable[Cell]) -> None:
    """Refuses two runs in one folder, and a folder that holds a run with other settings."""
    seen: dict[Path, str] = {}
    for cell in cells:
        config = cell.config
        run = f"{cell.preset} on {config.game or config.environment}"
        other = seen.setdefault(config.folder, run)
        if other != run:
            raise ConfigError(
                f"{other} and {run} are the same agent and environment by name and would share "
                f"{config.folder}; leave one out of --presets or --games, or sweep them "
                "separately, each with its own --out."
            )
        try:
            check_folder(config)
        except ConfigError as error:
            raise ConfigError(
                f"{error} A sweep has neither --run_dir nor --restart: give another --out, or "
                "move that folder away."
            ) from error


def read_state(config: Config) -> State:
    """Progress of a run, without reading its large files."""
    saved, is_done = 0, False
    with contextlib.suppress(ConfigError):  # its own process says what is wrong
        checkpoint = CheckpointStore(config.folder / CHECKPOINTS).newest()
        if checkpoint is not None:
            saved, is_done = checkpoint.frames, is_finished(config, checkpoint)
    trained = _last_row(config.folder / "train.csv")
    evaluated = _last_row(config.folder / "eval.csv")
    output = config.folder / OUTPUT
    return State(
        frames=max(saved, int(trained.get("frames", 0))),
        saved_frames=saved,
        is_finished=is_done,
        frames_per_second=trained.get("frames_per_second"),
        score=evaluated.get("score_mean", trained.get("return_mean_100")),
        output_bytes=output.stat().st_size if output.exists() else 0,
    )


def _last_row(path: Path) -> dict[str, float]:
    """The numbers in the last complete row of a CSV file, by column."""
    try:
        with open_file(path) as file:
            text = file.readline(_TAIL_BYTES)
            file.seek(max(file.tell(), path.stat().st_size - _TAIL_BYTES))
            text += file.read(_TAIL_BYTES)
    except FileError:
        return {}
    complete, _, _ = text.rpartition(b"\n")
    rows = list(csv.DictReader(complete.decode(errors="replace").splitlines()))
    numbers = {}
    for name, cell in rows[-1].items() if rows else ():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = record(float, float(cell))
    return numbers


def train_cell(cell: Cell) -> Outcome:
    """Trains a run in this process, which prints to the run's folder; returns how it ended."""
    output = cell.config.folder / OUTPUT
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with inside(cell.config.folder, OUTPUT).open(
            "ab"
        ) as file:  # with these descriptors, native code prints to it too
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        print(f"Process {os.getpid()} on {socket.gethostname()} started.", flush=True)
        _train(cell.config)
        is_done = read_state(cell.config).is_finished
        early = Outcome(Status.WAITING, "ended before it was done")
        outcome = Outcome(Status.DONE) if is_done else early
    except KeyboardInterrupt:
        outcome = Outcome(Status.WAITING, "stopped before training began")
    except FolderBusyError as error:
        outcome = Outcome(Status.WAITING, str(error), retry_seconds=_BUSY_SECONDS)
    except ConfigError as error:
        outcome = Outcome(Status.FAILED, str(error))
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(Status.WAITING, f"{type(error).__name__}: {error}")
    if outcome.reason:
        print(f"rainbow_tf: {outcome.reason}")
    sys.stdout.flush()
    sys.stderr.flush()
    return outcome


def _train(config: Config) -> None:
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.training.run import open_run

    check_folder(config)
    with RunFolder(config) as folder:
        checkpoint = folder.find_checkpoint()
        if checkpoint is None or not is_finished(config, checkpoint):
            stop = StopSignals(second=signal.SIG_DFL)
            with open_run(config, folder, checkpoint, stop=stop) as run:
                for _ in run.ticks():
                    pass
