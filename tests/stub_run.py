"""A training run whose agent and environment are a few lines of NumPy: it takes milliseconds.

The rest is real: folder, checkpoints, CSV files, evaluations, best weights and replay. Episodes
end where checkpoints are due, so that a resumed run plays what the other would have played.
"""

import contextlib
import csv
import io
import json
import signal
from types import SimpleNamespace

import numpy as np

from rainbow_tf import api, main
from rainbow_tf.config import Config
from rainbow_tf.replay.replay import make_replay
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.training import run as run_module
from rainbow_tf.training.build import Parts
from rainbow_tf.training.loop import train
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.types import Decision, EnvironmentSpec, StepOutput, UpdateResult

LANES = 4
EPISODE_STEPS = 5  # with 4 lanes, an episode of all lanes ends every 20 frames
SPEC = EnvironmentSpec((3,), np.dtype(np.float32), 1, 2, ("0", "1"))
# Scores of the evaluations by the frames at which they are made: the second one is the best.
SCORES = {80: 1.0, 160: 3.0, 200: 0.5, 240: 2.0, 300: 0.5, 320: 0.5}


def settings(folder, **changes):
    values = {
        "environment": "Countdown-v0",
        "frames": 240,
        "min_history_frames": 40,
        "target_period_frames": 60,
        "replay_capacity": 160,  # the ring goes round
        "batch_size": 4,
        "num_envs": LANES,
        "log_period_frames": 60,
        "eval_period_frames": 80,
        "eval_frames": 20,
        "checkpoint_period_frames": 40,
        "max_checkpoints": 2,
        "run_dir": str(folder),
    }
    return Config(**values | changes)


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
    parts = Parts(Environment(start.steps), replay, agent, agent, agent, SPEC)
    return parts, train(config, parts, start)


def evaluation_environment(config, *, num_envs, seed):
    assert num_envs == LANES
    return Environment(0, SCORES[seed - 1_000_003 * config.seed] / EPISODE_STEPS)


def patch(monkeypatch):
    """Makes `main.train` build stub runs, without the trial that measures speed."""
    monkeypatch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", 40)
    monkeypatch.setattr(api, "load_tensorflow", lambda threads: None)
    monkeypatch.setattr(api, "build", build)
    monkeypatch.setattr(api, "make_environment", lambda config, **_: Environment(0))
    monkeypatch.setattr("rainbow_tf.evaluation.evaluator.make_environment", evaluation_environment)
    monkeypatch.setattr(run_module, "describe", lambda *_: "")
    no_films = SimpleNamespace(observe=lambda frames: None)
    monkeypatch.setattr(run_module, "Recorder", lambda **_: no_films)
    monkeypatch.setattr(Metrics, "_draw", lambda *_: None)  # TensorFlow writes these files


def train_stub(folder, **changes):
    """Trains or resumes as the command does; returns what it printed."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):  # a stopped run
            main.train(settings(folder, **changes))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return printed.getvalue()


def rows(path, *without):
    """The rows of a CSV file, without some columns."""
    with path.open() as file:
        return [{k: row[k] for k in row if k not in without} for row in csv.DictReader(file)]


def end_state(folder):
    """Everything that a finished run leaves, without times and the numbers of checkpoints."""
    state = {
        "train.csv": rows(folder / "train.csv", "frames_per_second"),
        "eval.csv": rows(folder / "eval.csv", "seconds"),
    }
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
