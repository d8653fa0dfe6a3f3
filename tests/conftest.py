import csv
import importlib
import os
import signal
from typing import NamedTuple

import numpy as np
import pytest
from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf import cli
from rainbow_tf.command import define_settings, settings

# The tests' own processes and the commands they start: no start-up notes of TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# A shell starts what runs in its background deaf to Ctrl-C, and commands would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def rows_and_weights():
    """A function that reads what a run left: the rows of its CSV less speeds, its best weights."""

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
    """A function that gives the settings of a preset, with flags after it."""

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


@pytest.fixture
def run_command(capfd):
    """A function that runs a command in this process, by its name in `rainbow-tf`."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(name, *arguments):
        command = importlib.import_module(cli.COMMANDS[name][0]).COMMAND
        capfd.readouterr()
        status, last_words = 0, ""
        try:
            command.main([name, *map(str, arguments)])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
            last_words = "" if isinstance(end.code, int) else f"{end.code}\n"
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        stdout, stderr = capfd.readouterr()
        return Ended(status, stdout, stderr + last_words)

    return run
