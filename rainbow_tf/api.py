"""The agent from Python: train it on your own environment, act, evaluate, save, load, export."""

import contextlib
import copy
import dataclasses
import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from rainbow_tf import process
from rainbow_tf.command import ALL_SETTINGS, parse_settings
from rainbow_tf.config import Config, ConfigError, hint
from rainbow_tf.environments.base import make_environment
from rainbow_tf.games import GAMES
from rainbow_tf.process import StopSignals, load_tensorflow, one_line
from rainbow_tf.runs.folder import (
    RunFolder,
    check_folder,
    environment_spec,
    is_finished,
    is_run,
    read_config,
)
from rainbow_tf.runs.store import has_best
from rainbow_tf.training.tracking import import_wandb
from rainbow_tf.types import (
    Counters,
    Decision,
    EnvironmentSpec,
    Episode,
    Policy,
    Tick,
    UpdateResult,
)
from rainbow_tf.video.encoder import VIDEOS, check_video

if TYPE_CHECKING:
    from rainbow_tf.agent.learner import Learner
    from rainbow_tf.agent.networks import Network
    from rainbow_tf.baselines.a3c import SharedLearner
    from rainbow_tf.training.build import AnyParts
    from rainbow_tf.training.run import Run

_EVALUATION_LANES = 8

AnyEnvironment = str | gymnasium.Env | Callable[..., gymnasium.Env]


class Progress(NamedTuple):
    """What happened since the last step of `Agent.training`."""

    frames: int  # of the run so far
    mean_return: float  # of the last 100 episodes; nan before the first
    episodes: list[Episode]  # that finished
    results: list[UpdateResult]  # of the updates
    epsilon: float
    beta: float


class Evaluation(NamedTuple):
    """Scores of an evaluation."""

    scores: np.ndarray  # [episodes]
    mean: float
    stderr: float | None  # standard error; None for a single episode


class Agent:
    """A Rainbow agent and its run folder.

    `environment` is a Gymnasium id, an Atari game, module:Id, a class or function that makes an
    environment, or an environment, of which the agent plays copies. `preset` names one or several
    presets. `network` is the name of an architecture, or a function from the environment's spec to
    a Keras model of the torso. All other keywords are settings, as in `rainbow_tf.Config`.
    """

    def __init__(
        self,
        environment: AnyEnvironment,
        *,
        preset: str | Sequence[str] = (),
        network: str | Callable[[EnvironmentSpec], Any] | None = None,
        **settings: Any,
    ):
        unknown = [name for name in settings if name not in ALL_SETTINGS]
        if unknown:
            way_out = hint(unknown[0], ALL_SETTINGS, "docs/configuration.md lists them.")
            raise ConfigError(f"{unknown[0]} is not a setting; {way_out}")
        if isinstance(environment, gymnasium.Env) and settings.setdefault("num_envs", 1) != 1:
            raise ConfigError(
                f"num_envs={settings['num_envs']} needs several environments and one was given; "
                "give its class or a function that makes it."
            )
        name = _name(environment)
        settings["game" if name in GAMES else "environment"] = name
        if network is not None:
            settings["network"] = _name(network)
        presets = [preset] if isinstance(preset, str) else preset
        self._setup(parse_settings([f"--preset={name}" for name in presets], **settings))

    @classmethod
    def from_config(cls, config: Config) -> "Agent":
        """The agent of these settings."""
        agent = cls.__new__(cls)
        agent._setup(config)
        return agent

    def _setup(self, config: Config) -> None:
        self.config = config
        self.frames = 0  # that the weights were trained for
        self._run: Run | None = None
        self._stack: np.ndarray | None = None  # [E, S, *frame], of the episodes being acted in

    def learn(self, frames: int | None = None) -> "Agent":
        """Trains until the run has this many frames in total, from its last checkpoint if any."""
        for _ in self.training(frames):
            pass
        return self

    def training(self, frames: int | None = None) -> Iterator[Progress]:
        """Trains as `learn` does and yields after every step; leaving the loop saves the run."""
        if frames is not None:
            self.config = dataclasses.replace(self.config, frames=frames)
        with StopSignals() as stop, open_run(self.config, stop) as run:
            if run is None:
                return
            self._run = run
            self.network, self.policy = run.parts.learner.online, run.parts.evaluation_actor
            self.config = dataclasses.replace(self.config, restart=False)  # once is enough
            for tick in run.ticks():
                self.frames = tick.frames
                mean = run.metrics.return_mean(100)
                yield Progress(tick.frames, np.nan if mean is None else mean, *tick[2:])
        if stop.requested:
            raise KeyboardInterrupt

    @property
    def learner(self) -> "Learner | SharedLearner":
        """The learner of the run in training: networks, optimizer and its learning rate."""
        if self._run is None:
            raise ConfigError("There is no learner before training; call learn() or training().")
        return self._run.parts.learner

    @functools.cached_property
    def spec(self) -> EnvironmentSpec:
        """Shapes and actions of the environment."""
        return environment_spec(self.config)

    @functools.cached_property
    def policy(self) -> Policy:
        """The policy without exploration, for observations [E, S, *frame]."""
        self.restore()
        return self.policy

    @functools.cached_property
    def network(self) -> "Network":
        """The Keras model of the policy."""
        self.restore()
        return self.network

    def restore(self, snapshot: str = "latest") -> None:
        """Loads the network and policy: of the newest checkpoint, or of the best evaluation."""
        load_tensorflow(self.config.tensorflow_threads)
        from rainbow_tf.agent.networks import make_network
        from rainbow_tf.runs.weights import load_network, make_policy

        config, spec = self.config, self.spec
        if is_run(config.folder):
            self.network, self.frames, _ = load_network(config, snapshot)
        else:
            self.network = make_network(config, spec, seed=config.seed, name="online")
        rng = np.random.default_rng(config.seed)
        self.policy = make_policy(config, self.network, noise=config.eval_noise, rng=rng)

    def act(self, observation: np.ndarray) -> Any:
        """The greedy action for one observation, or actions for a batch of them.

        Observations are as the environment gives them. With stacked frames the agent keeps the
        stack; `reset` begins an episode. Complete stacks [E, S, *frame] are taken as they are.
        """
        decision, is_batch = self._decide(observation, keep=True)
        actions = decision.actions + self.spec.first_action
        return actions if is_batch else int(actions[0])

    def q_values(self, observation: np.ndarray) -> np.ndarray:
        """Mean returns of the actions, [A], or [E, A] for a batch."""
        if self.config.algorithm == "a3c":
            raise ConfigError("A3C estimates the value of states, not of actions.")
        decision, is_batch = self._decide(observation, keep=False)
        return decision.values if is_batch else decision.values[0]

    def return_distribution(self, observation: np.ndarray) -> Any:
        """The distributions of the actions' returns: a `tfp.distributions.FiniteDiscrete`.

        Quantiles are projected on `num_atoms` atoms from `v_min` to `v_max`.
        """
        import tensorflow_probability as tfp

        from rainbow_tf.agent.networks import make_support

        decision, is_batch = self._decide(observation, keep=False)
        if decision.probs is None:
            raise ConfigError("This agent has no return distributions: distributional is off.")
        probs = decision.probs if is_batch else decision.probs[0]
        return tfp.distributions.FiniteDiscrete(make_support(self.config), probs=probs)

    def reset(self) -> None:
        """Forgets the stacked frames: the next observation begins an episode."""
        self._stack = None

    def evaluate(self, episodes: int = 20, *, seed: int = 1) -> Evaluation:
        """Plays episodes without learning, with the rules of the run."""
        from rainbow_tf.evaluation.episodes import evaluate
        from rainbow_tf.evaluation.statistics import score_summary
        from rainbow_tf.runs.weights import check_finite

        check_finite(self.network)
        lanes = min(episodes, _EVALUATION_LANES)
        environment = make_environment(self.config, num_envs=lanes, seed=seed)
        played = evaluate(self.policy, environment, config=self.config, episodes=episodes)
        summary = score_summary(played)
        scores = np.array([episode.score for episode in played])
        return Evaluation(scores, summary["score_mean"], summary["score_stderr"])

    def save(self, run_dir: str | Path) -> Path:
        """Copies the run to a folder that commands and `load` read."""
        path, folder = Path(run_dir), self.config.folder
        if self._run is not None:
            self._run.save()
        if not is_run(folder):
            raise ConfigError(f"There is nothing to save in {folder}; call learn() first.")
        if path.exists() and path.resolve() != folder.resolve():
            raise ConfigError(f"{path} exists already; give another folder.")
        if path.resolve() != folder.resolve():
            shutil.copytree(folder, path, ignore=shutil.ignore_patterns(".lock"))
        return path

    def export(self, model_dir: str | Path) -> Path:
        """Writes the policy as the next version of a SavedModel; returns the version's folder."""
        from rainbow_tf.export.saved_model import export_policy
        from rainbow_tf.runs.weights import check_finite

        check_finite(self.network)
        return export_policy(
            self.network,
            config=self.config,
            spec=self.spec,
            output_dir=Path(model_dir),
            frames=self.frames,
        ).folder

    def _decide(self, observation: np.ndarray, *, keep: bool) -> tuple[Decision, bool]:
        """The decision for an observation, and whether it was a batch."""
        stacks, is_batch = self._stacked(np.asarray(observation))
        if keep:
            self._stack = stacks
        return self.policy.decide(stacks), is_batch

    def _stacked(self, observation: np.ndarray) -> tuple[np.ndarray, bool]:
        """The observation as stacks [E, S, *frame], and whether it was a batch."""
        frame, dtype, stack = self.spec[:3]
        extra = observation.ndim - len(frame)  # axes before the frame
        expected = ((), observation.shape[:1], (*observation.shape[:1], stack))
        is_known = 0 <= extra <= 2 and observation.shape == (*expected[extra], *frame)
        if not is_known or (dtype.kind in "ub" and observation.dtype.kind == "f"):
            raise ConfigError(
                f"An observation of shape {observation.shape} {observation.dtype} does not fit; "
                f"give {frame} {dtype}, a batch [E, ...] of them, or stacks [E, {stack}, ...]."
            )
        observation = observation.astype(dtype)
        if extra == 2:
            return observation, True
        frames = observation if extra else observation[None]
        older = self._stack
        if stack == 1 or older is None:
            older = np.zeros((len(frames), stack, *frame), dtype)
        if len(older) != len(frames):
            raise ConfigError(
                f"{len(older)} episodes were being played and {len(frames)} observations came; "
                "call reset() before episodes begin."
            )
        return np.concatenate([older[:, 1:], frames[:, None]], axis=1), bool(extra)


def load(
    run_dir: str | Path,
    *,
    snapshot: str | None = None,
    environment: AnyEnvironment | None = None,
    network: str | Callable[[EnvironmentSpec], Any] | None = None,
) -> Agent:
    """The agent of a run folder, with its best weights, or the latest before an evaluation.

    It acts without an environment. To learn or evaluate, give one that is Python code again: the
    object, or its module:name. Code that only the run folder names is not imported.
    """
    given = {"environment": environment, "network": network}
    again: dict[str, Any] = {name: _name(what) for name, what in given.items() if what is not None}
    config = dataclasses.replace(read_config(Path(run_dir), again=again), **again)
    process.untrusted.difference_update(again.values())
    if snapshot not in (None, "best", "latest"):
        raise ConfigError(f"snapshot={snapshot} is unknown; give best or latest.")
    agent = Agent.from_config(config)
    agent.restore(snapshot or ("best" if has_best(config.folder) else "latest"))
    return agent


@contextlib.contextmanager
def open_run(config: Config, stop: StopSignals) -> "Iterator[Run | None]":
    """The run in the folder of the settings, new or resumed; None if it is finished."""
    check_folder(config)
    with RunFolder(config) as folder:
        checkpoint = folder.find_checkpoint()
        if checkpoint is not None and is_finished(config, checkpoint):
            print(
                f"Training in {folder.path} is complete ({checkpoint.frames:,} frames). Raise "
                "--frames to continue, or give --restart to start again."
            )
            yield None
            return
        if config.has_replay and config.frames <= config.min_history_frames:
            raise ConfigError(
                f"--frames={config.frames} ends before the first update, which follows "
                f"--min_history_frames={config.min_history_frames}; raise --frames or lower that."
            )
        if config.record_period_frames > 0:
            check_video(config.folder / VIDEOS / "0.mp4")
        if config.wandb:
            import_wandb()
        # TensorFlow takes seconds to load: settings are checked before it.
        if config.game is None:
            make_environment(config, num_envs=1, seed=config.seed).close()
        load_tensorflow(config.tensorflow_threads)
        from rainbow_tf.training import run as training

        with training.open_run(config, folder, checkpoint, stop=stop, build=build) as run:
            yield run


def build(config: Config, start: Counters) -> "tuple[AnyParts, Iterator[Tick]]":
    """The parts of a run and its ticks: in one process, or with actors on Ray."""
    if config.actors == 0:
        from rainbow_tf.training.run import build_single

        return build_single(config, start)
    from rainbow_tf.distributed.apex import learner as apex

    fleet = apex.build_fleet(config, start.steps)
    return fleet, apex.train(config, fleet, start)


def _name(what: AnyEnvironment | Callable[[EnvironmentSpec], Any]) -> str:
    """Its name in the settings; a Python object is remembered by it."""
    if isinstance(what, str):
        return what
    make: Callable = what if callable(what) else functools.partial(_copied, what)
    named = what if callable(what) else type(what.unwrapped)
    name = f"{named.__module__}:{named.__name__}"
    process.given[name] = make
    return name


def _copied(environment: gymnasium.Env) -> gymnasium.Env:
    """A copy of an environment: training and evaluation must not share one."""
    try:
        return copy.deepcopy(environment)
    except Exception as error:  # its fields can raise anything
        raise ConfigError(
            f"The environment cannot be copied ({one_line(error)}); give its class or a function "
            "that makes it."
        ) from error
