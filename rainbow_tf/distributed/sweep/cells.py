"""The runs of a sweep: one agent, environment and seed each, in a folder of its own."""

import contextlib
import csv
import dataclasses
import enum
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import make_environment
from rainbow_tf.process import StopSignals, load_tensorflow
from rainbow_tf.replay.replay import replay_bytes
from rainbow_tf.runs.folder import FolderBusyError, RunFolder, check_folder, is_finished
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.types import EnvironmentSpec

OUTPUT = "output.log"  # in the run folder: what the run printed
_PROGRAM_BYTES = 1_500_000_000  # measured without the replay: 1.1 to 1.4 GB
_TAIL_BYTES = 4096


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
        cpus = f"{self.cpus:g} CPU{'s' if self.cpus != 1 else ''}"
        gpus = f"{self.gpus:g} GPU{'s' if self.gpus != 1 else ''}"
        return f"{cpus}, {gpus} and {self.memory / 1e9:.1f} GB"


class Cell(NamedTuple):
    """One run of a sweep."""

    preset: str
    config: Config
    request: Resources
    spec: EnvironmentSpec

    @property
    def name(self) -> str:
        """Environment, agent and seed, as in the folder."""
        return f"{self.config.environment_name}/{self.config.agent}/seed_{self.config.seed}"


class State(NamedTuple):
    """Progress of a run, read from its folder."""

    frames: int  # of the last row of train.csv, or of the checkpoint
    saved_frames: int  # of the checkpoint
    is_finished: bool
    frames_per_second: float | None
    score: float | None  # of the last evaluation, or else the mean training return


class Ending(enum.Enum):
    """How the process of a run ended."""

    DONE = enum.auto()
    STOPPED = enum.auto()  # by a signal, with a checkpoint
    BUSY = enum.auto()  # another process uses the folder
    LOST = enum.auto()  # worth a retry
    FAILED = enum.auto()  # would fail again


class Outcome(NamedTuple):
    """How a run's process ended, and why if it is not done."""

    ending: Ending
    reason: str = ""


def make_cells(
    *,
    environment_flags: Sequence[str],
    agent_names: Sequence[str],
    seed_numbers: Sequence[int],
    arguments: Sequence[str],
    out: Path,
    cpus: int | None,
    parse: Callable[[Sequence[str]], Config],
) -> list[Cell]:
    """Every run of the sweep, checked; all runs of a seed come before the next seed.

    `arguments` apply to every run; `parse` turns a run's arguments into settings.
    """
    cells: list[Cell] = []
    specs: dict[str, EnvironmentSpec] = {}
    for environment in environment_flags:
        for agent in agent_names:
            shared = [f"--preset={agent}", *arguments, environment]
            config = parse(shared)
            if config.actors > 0:
                raise ConfigError(
                    f"--preset={agent} has --actors={config.actors}, but a run of a sweep is one "
                    "process; leave that preset out."
                )
            its_cpus = cpus or (2 if config.game is not None else 1)
            if config.threads is None:
                shared.append(f"--threads={its_cpus}")
                config = dataclasses.replace(config, threads=its_cpus)
            if environment not in specs:
                specs[environment] = _spec(config)
            memory = _memory(config, specs[environment])
            for seed in seed_numbers:
                folder = out.absolute() / config.environment_name / config.agent / f"seed_{seed}"
                cells.append(
                    Cell(
                        preset=agent,
                        config=dataclasses.replace(config, seed=seed, run_dir=str(folder)),
                        request=Resources(cpus=its_cpus, gpus=0, memory=memory),
                        spec=specs[environment],
                    )
                )
    _check_folders(cells)
    return sorted(cells, key=lambda cell: seed_numbers.index(cell.config.seed))


def _spec(config: Config) -> EnvironmentSpec:
    environment = make_environment(config, num_envs=1, seed=0, training=True)
    environment.close()
    return environment.spec


def _memory(config: Config, spec: EnvironmentSpec) -> int:
    capacity = config.replay_capacity if config.has_replay else 0
    replay = replay_bytes(capacity, spec, compressed=config.compressed_replay)
    return replay + _PROGRAM_BYTES


def with_gpus(cells: Iterable[Cell], nodes: Iterable[Resources], gpus: float | None) -> list[Cell]:
    """The runs with their GPUs: as given, or one for Atari if the cluster has any."""
    has_gpus = any(node.gpus for node in nodes)
    with_their_gpus = []
    for cell in cells:
        default = 1 if has_gpus and cell.config.game is not None else 0
        request = cell.request._replace(gpus=default if gpus is None else gpus)
        with_their_gpus.append(cell._replace(request=request))
    return with_their_gpus


def _check_folders(cells: Iterable[Cell]) -> None:
    """Refuses two runs in one folder, and a folder that holds a run with other settings."""
    seen: dict[Path, Cell] = {}
    for cell in cells:
        config = cell.config
        other = seen.setdefault(config.folder, cell)
        if other is not cell and other.preset != cell.preset:
            raise ConfigError(
                f"--presets has {other.preset} and {cell.preset}, which are both the agent "
                f"{config.agent} and would share {config.folder}; sweep them separately, each "
                "with its own --out."
            )
        if other is not cell:
            raise ConfigError(
                f"--games has {other.config.environment} and {config.environment}, which would "
                f"share {config.folder}; leave one of them out."
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
    checkpoint = CheckpointStore(config.folder / CHECKPOINTS).newest()
    saved = 0 if checkpoint is None else checkpoint.frames
    trained = _last_row(config.folder / "train.csv")
    evaluated = _last_row(config.folder / "eval.csv")
    return State(
        frames=max(saved, int(trained.get("frames", 0))),
        saved_frames=saved,
        is_finished=checkpoint is not None and is_finished(config, checkpoint),
        frames_per_second=trained.get("frames_per_second"),
        score=evaluated.get("score_mean", trained.get("return_mean_100")),
    )


def _last_row(path: Path) -> dict[str, float]:
    """The numbers of the last complete row of a CSV file, by column."""
    try:
        with path.open("rb") as file:
            header = file.readline()
            start = file.tell()
            file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]  # the rest is an incomplete line
    except OSError:
        return {}
    columns, *rows = csv.reader(line.decode(errors="replace") for line in (header, *lines[-1:]))
    numbers = {}
    for row in rows:
        for name, text in zip(columns, row, strict=False):
            with contextlib.suppress(ValueError):
                numbers[name] = float(text)
    return numbers


def output_bytes(config: Config) -> int:
    """Size of the run's output, which grows as soon as its process starts."""
    try:
        return (config.folder / OUTPUT).stat().st_size
    except OSError:
        return 0


def train_cell(cell: Cell) -> Outcome:
    """Trains a run in this process; returns how it ended."""
    try:
        _print_to(cell.config.folder / OUTPUT)
        print(f"Process {os.getpid()} on {socket.gethostname()} started.", flush=True)
        return _train(cell.config)
    except KeyboardInterrupt:
        return Outcome(Ending.STOPPED, "stopped before training began")
    except Exception as error:
        traceback.print_exc()
        return Outcome(Ending.LOST, f"{type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _print_to(path: Path) -> None:
    """Appends what this process prints to a file, including output of native code."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)


def _train(config: Config) -> Outcome:
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.training.run import train_run

    try:
        check_folder(config)
        with RunFolder(config) as folder:
            checkpoint = folder.find_checkpoint()
            if checkpoint is None or not is_finished(config, checkpoint):
                train_run(config, folder, checkpoint, stop=StopSignals(second=signal.SIG_DFL))
    except FolderBusyError as error:
        return _told(Ending.BUSY, str(error))
    except ConfigError as error:
        return _told(Ending.FAILED, str(error))
    if read_state(config).is_finished:
        return Outcome(Ending.DONE)
    return Outcome(Ending.STOPPED, "ended before it was finished")


def _told(ending: Ending, reason: str) -> Outcome:
    print(f"rainbow_tf: {reason}")
    return Outcome(ending, reason)
