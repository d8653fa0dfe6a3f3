import csv
import os
import signal

import numpy as np
import pytest
from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf.config import define_flags, from_flags

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
        define_flags(values)
        values(presets.expand(["train", f"--preset={name}", *arguments]))
        return from_flags(values)

    return parse
