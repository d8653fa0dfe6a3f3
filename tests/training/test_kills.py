"""A run that is killed at any write, rename, fsync or deletion ends as if it had not been.

The run is real (folder, checkpoints, CSV files, best weights, replay); its agent and environment
are a few lines of NumPy, so that a kill at every single point takes seconds. Episodes end where
checkpoints are due: the resumed run then plays what the other would have played.
"""

import csv
import json
import os
import pathlib
import shutil
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from rainbow_tf import main
from rainbow_tf.config import Config
from rainbow_tf.replay.replay import make_replay
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.training import run as run_module
from rainbow_tf.training.build import Parts
from rainbow_tf.training.loop import train
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.types import Decision, StepOutput, UpdateResult, WorldSpec

LANES = 4
EPISODE_STEPS = 5  # with 4 lanes, an episode of all lanes ends every 20 frames
SPEC = WorldSpec((3,), np.dtype(np.float32), 1, 2, ("0", "1"))
# Scores of the evaluations by the frames at which they are made: the second one is the best.
SCORES = {80: 1.0, 160: 3.0, 240: 2.0}


def settings(folder):
    return Config(
        environment="Countdown-v0",
        frames=240,
        min_history_frames=40,
        target_period_frames=60,
        replay_capacity=160,  # the ring goes round
        batch_size=4,
        num_envs=LANES,
        log_period_frames=60,
        eval_period_frames=80,
        eval_frames=20,
        checkpoint_period_frames=40,
        max_checkpoints=2,
        run_dir=str(folder),
    )


class Environment:
    """Lanes in step; what is seen follows from the steps since the start of training."""

    spec = SPEC

    def __init__(self, steps, reward=1.0):
        self._steps = steps // LANES
        self._reward = reward

    def _output(self, *, reward, is_over, is_first):
        def column(value, dtype):
            return np.full(LANES, value, dtype)

        observation = np.full((LANES, 1, 3), self._steps, np.float32)
        return StepOutput(
            observation=observation + np.arange(LANES, dtype=np.float32)[:, None, None] / 8,
            reward=column(reward, np.float32),
            terminal=column(is_over, bool),
            episode_over=column(is_over, bool),
            is_first=column(is_first, bool),
        )

    def reset(self):
        self._is_over = False
        return self._output(reward=0, is_over=False, is_first=True)

    def step(self, actions):
        if self._is_over:
            return self.reset()
        self._steps += 1
        self._is_over = self._steps % EPISODE_STEPS == 0
        return self._output(reward=self._reward, is_over=self._is_over, is_first=False)

    def close(self):
        pass


class Variable:
    def __init__(self):
        self.value = np.zeros(3, np.float32)

    def numpy(self):
        return self.value.copy()

    def assign(self, value):
        self.value = np.array(value)


class Agent:
    """Learner, network and policy at once: sums of what it was taught."""

    def __init__(self):
        self._online, self._target = Variable(), Variable()
        self.online = SimpleNamespace(variables=[self._online], noise_scales=dict)
        self.variables = {"online": [self._online], "target": [self._target]}
        self.rng = np.random.default_rng(3)

    def update(self, batch):
        errors = np.abs(batch.observation_t[:, 0, 0] - batch.reward_t) % 7 + 0.1
        self._online.value += np.float32(errors.sum())
        return UpdateResult(errors, float(errors.mean()), 0.0)

    def update_target(self):
        self._target.value = self._online.value.copy()

    def act(self, observation, epsilon=0.0):
        return np.zeros(LANES, np.int32)

    def decide(self, observation, epsilon=0.0):
        values = np.zeros((LANES, 2), np.float32)
        return Decision(self.act(observation), values, values[:, 0], None)


def build(config, start):
    agent = Agent()
    replay = make_replay(
        config, SPEC, capacity=config.replay_capacity, rng=np.random.default_rng(1)
    )
    parts = Parts(Environment(start.steps), replay, agent, agent, agent)
    return parts, train(config, parts, start)


def evaluation_environment(config, *, num_envs, seed, training):
    assert num_envs == LANES
    return Environment(0, SCORES[seed - 1_000_003 * config.seed] / EPISODE_STEPS)


class Killed(BaseException):
    """What a SIGKILL is to the code: no handler expects it."""


class Disk:
    """Counts everything that changes files; kills at one of the points.

    A write that is killed leaves its first half. After the kill nothing changes any more, so that
    `finally` and `except` blocks leave what a real kill would leave.
    """

    CHANGES: ClassVar = {
        pathlib.Path: ("replace", "rename", "unlink", "mkdir", "rmdir"),
        os: ("fsync",),
        shutil: ("rmtree",),
    }

    def __init__(self, monkeypatch, kill_at=None):
        self._kill_at = kill_at
        self.points = []
        self.files = []
        self.is_dead = False
        self.committed = None  # the number of the last checkpoint whose manifest is in place
        for owner, names in self.CHANGES.items():
            for name in names:
                monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        self._open = pathlib.Path.open
        monkeypatch.setattr(
            pathlib.Path, "open", lambda path, *how, **more: self._opened(path, *how, **more)
        )

    def _counted(self, change):
        def changed(*arguments, **more):
            if self.is_dead:
                return None
            self.passes(f"{change.__name__} {arguments[0]}")
            # A kill loses nothing that was written: only a power cut needs the fsync.
            result = None if change.__name__ == "fsync" else change(*arguments, **more)
            if change.__name__ == "replace" and arguments[1].name == "manifest.json":
                self.committed = int(arguments[1].parent.name)
            return result

        return changed

    def _opened(self, path, mode="r", **more):
        if not set(mode) & set("wax+"):
            return self._open(path, mode, **more)
        if self.is_dead:
            return self._open(pathlib.Path(os.devnull), mode, **more)
        self.passes(f"open {path}")
        self.files.append(File(self, path, self._open(path, mode, buffering=0)))
        return self.files[-1]

    def passes(self, point):
        """Counts a point, and kills if it is the one."""
        self.points.append(point)
        if len(self.points) - 1 == self._kill_at:
            self.is_dead = True
            raise Killed


class File:
    """A file open for writing: no buffer, and nothing is written after the kill."""

    def __init__(self, disk, path, file):
        self._disk, self._path, self._file = disk, path, file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def write(self, data):
        if self._disk.is_dead:
            return len(data)
        try:
            self._disk.passes(f"write {self._path}")
        except Killed:
            self._file.write(bytes(data)[: len(data) // 2])
            raise
        return self._file.write(data)

    def truncate(self, size):
        return size if self._disk.is_dead else self._file.truncate(size)


@pytest.fixture
def stub_run(monkeypatch, capsys):
    """A function that trains in a folder, killed at a point if one is given; returns the disk."""
    monkeypatch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", 40)
    monkeypatch.setattr(main, "load_tensorflow", lambda threads: None)
    monkeypatch.setattr(main, "build", build)
    monkeypatch.setattr("rainbow_tf.process.StopSignals.install", lambda self: None)
    monkeypatch.setattr("rainbow_tf.evaluation.evaluator.make_world", evaluation_environment)
    monkeypatch.setattr(run_module, "describe", lambda *_: "")
    no_films = SimpleNamespace(observe=lambda frames: None)
    monkeypatch.setattr(run_module, "Recorder", lambda **_: no_films)
    monkeypatch.setattr(Metrics, "_draw", lambda *_: None)  # TensorFlow's own files

    def run(folder, kill_at=None):
        with monkeypatch.context() as patch:
            disk = Disk(patch, kill_at)
            try:
                main.train(settings(folder))
            except Killed:
                assert disk.is_dead
        for file in disk.files:  # as the end of a process does
            file.close()
        said = capsys.readouterr().out
        assert "damaged" not in said
        return disk

    return run


def end_state(folder):
    """Everything that a finished run leaves, without times and the numbers of checkpoints."""
    state = {}
    for name, time in (("train.csv", "frames_per_second"), ("eval.csv", "seconds")):
        with (folder / name).open() as file:
            rows = list(csv.DictReader(file))
        state[name] = [{key: row[key] for key in row if key != time} for row in rows]
    state["config"] = (folder / "config.json").read_text().replace(str(folder), "")
    state["score"] = json.loads((folder / "best/score.json").read_text())
    with np.load(folder / "best/online.npz") as arrays:
        state["best"] = {name: array.tolist() for name, array in arrays.items()}
    store = CheckpointStore(folder / CHECKPOINTS)
    newest = store.open(store.numbers()[-1])
    state["run"] = {key: value for key, value in newest.state.items() if key != "config"}
    state["arrays"] = {
        name: {key: array.tolist() for key, array in store.read(file).items()}
        for name, file in newest.files.items()
    }
    return state


def left_over(folder):
    """Files that no checkpoint names, and halves of files."""
    store = CheckpointStore(folder / CHECKPOINTS)
    numbers = store.numbers()[-2:]
    needed = {store.folder / file.path for n in numbers for file in store.open(n).files.values()}
    needed |= {store.folder / f"{n:06d}" / "manifest.json" for n in numbers}
    found = {path for path in folder.rglob("*") if path.is_file()}
    return {p for p in found - needed if store.folder in p.parents or p.suffix == ".part"}


def test_a_kill_at_any_point_changes_nothing(stub_run, tmp_path):
    whole = stub_run(tmp_path / "whole")
    expected = end_state(tmp_path / "whole")
    assert [row["frames"] for row in expected["eval.csv"]] == ["80", "160", "240"]
    assert expected["score"]["frames"] == 160
    kinds = {point.split()[0] for point in whole.points}
    assert left_over(tmp_path / "whole") == set()
    assert kinds == {"open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir"}
    folder = tmp_path / "killed"
    for point, what in enumerate(whole.points):
        disk = stub_run(folder, kill_at=point)
        assert disk.is_dead
        newest, problems = CheckpointStore(folder / CHECKPOINTS).newest_whole()
        assert problems == [], what
        assert (newest and newest.number) == disk.committed, f"a checkpoint is lost at {what}"
        if point % 3 == 0:  # the resumed run is killed too, each time at another point
            stub_run(folder, kill_at=7 * point % 100)
        last = stub_run(folder)
        assert end_state(folder) == expected, f"killed at {point}: {what}"
        # A run whose last checkpoint was in place is finished, and what is left over stays.
        is_resumed = any(point.startswith("replace") for point in last.points)
        assert not is_resumed or not left_over(folder), what
        shutil.rmtree(folder)
