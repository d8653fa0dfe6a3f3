import contextlib
import csv
import importlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf import cli
from rainbow_tf.command import define_settings, settings

TESTS = Path(__file__).parent

# The tests' own processes and the commands they start: no start-up notes of TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Ray forks this process. With servers of other tests in it, gRPC's fork handlers abort the child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores
    for variable in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
# A shell starts background jobs with Ctrl-C ignored, and commands would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that compile TensorFlow functions or take long; `make check` runs the others. Single tests
# in other files carry the marker themselves.
COMPILES = (
    "agent/test_actor.py",
    "agent/test_layers.py",
    "agent/test_learner.py",
    "agent/test_networks.py",
    "baselines/",
    "distributed/",
    "end_to_end/",
    "evaluation/",
    "export/",
    "test_benchmark.py",
    "test_evaluate.py",
    "test_push.py",
    "test_watch.py",
    "training/test_checkpoint.py",
    "training/test_kills.py",
    "training/test_progress.py",
    "training/test_recorder.py",
    "video/",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.relative_to(TESTS).as_posix().startswith(COMPILES):
            item.add_marker(pytest.mark.compiles)


@pytest.fixture(scope="session")
def rows_and_weights():
    """A function that reads the rows of a run's train.csv, without speeds, and its best weights."""

    def read(folder):
        with (folder / "train.csv").open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            del row["frames_per_second"]
        with np.load(folder / "best" / "online.npz") as arrays:
            weights = {name: array.tobytes() for name, array in arrays.items()}
        return rows, weights

    return read


@pytest.fixture(scope="session")
def preset():
    """A function that returns the settings of a preset, with flags after it."""

    def parse(name, *arguments):
        values = flags.FlagValues()
        define_settings(values)
        values(presets.expand(["train", f"--preset={name}", *arguments]))
        return settings(values)

    return parse


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    stdout: str
    stderr: str


@contextlib.contextmanager
def written_to(number, file):
    """Sends what Python and native code write to standard output or error into the file."""
    name = {1: "stdout", 2: "stderr"}[number]
    stream = getattr(sys, name)
    stream.flush()
    original = os.dup(number)
    os.dup2(file.fileno(), number)
    setattr(sys, name, open(number, "w", closefd=False, buffering=1))  # noqa: SIM115
    try:
        yield
    finally:
        getattr(sys, name).close()
        setattr(sys, name, stream)
        os.dup2(original, number)
        os.close(original)


@pytest.fixture(scope="session")
def run_command():
    """A function that runs a command in this process, by its name in `rainbow-tf`.

    It returns the exit status and the output; exceptions that the command does not handle pass.
    """

    def run(name, *arguments):
        command = importlib.import_module(cli.COMMANDS[name][0]).COMMAND
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        argv, status, last_words = sys.argv, 0, ""
        sys.argv = [name, *map(str, arguments)]
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            try:
                with written_to(1, stdout), written_to(2, stderr):
                    command.main()
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1
                last_words = "" if isinstance(end.code, int) else f"{end.code}\n"
            finally:
                sys.argv = argv
                for number, handler in handlers.items():
                    signal.signal(number, handler)
            texts = []
            for file in (stdout, stderr):
                file.seek(0)
                texts.append(file.read().decode())
        return Ended(status, texts[0], texts[1] + last_words)

    return run


@pytest.fixture
def uncompiled():
    """Runs TensorFlow functions as plain Python: a few calls take less than compiling them."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


class TrainedRun(NamedTuple):
    """A finished training run, to be read only: tests that write take a `copy`."""

    folder: Path
    settings: list[str]
    output: Ended

    def copy(self, folder):
        """A copy of the run in this folder, which is returned."""
        return Path(shutil.copytree(self.folder, folder))


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory, run_command):
    """A short CartPole run: 500 frames, 2 evaluations, 2 checkpoints, 8 or more rows."""
    folder = tmp_path_factory.mktemp("cartpole") / "run"
    settings = [
        "--environment=CartPole-v1",
        "--frames=500",
        "--min_history_frames=100",
        "--replay_capacity=1000",
        "--log_period_frames=50",
        "--eval_period_frames=250",
        "--eval_frames=100",
        "--checkpoint_period_frames=100",
    ]
    output = run_command("train", *settings, f"--run_dir={folder}")
    assert output.status == 0, output.stderr
    return TrainedRun(folder, settings, output)
