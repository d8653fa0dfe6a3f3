"""Builds the parts of a run from its settings."""

import time
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import psutil

from rainbow_tf.agent.learner import Learner, make_optimizer
from rainbow_tf.agent.networks import make_network, make_support
from rainbow_tf.baselines import a3c
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import Environment, make_environment
from rainbow_tf.replay.replay import Replay, make_replay, replay_bytes
from rainbow_tf.runs.weights import make_policy
from rainbow_tf.types import Batch, EnvironmentSpec, Policy, ReplayLike

_MEASURED_STEPS = 10
_MEASURED_UPDATES = 5


class Parts(NamedTuple):
    """A run's environment, replay and agent."""

    environment: Environment
    replay: Replay
    learner: Learner
    actor: Policy
    evaluation_actor: Policy
    spec: EnvironmentSpec

    @property
    def generators(self) -> dict[str, np.random.Generator]:
        """All random generators, except the networks' noise."""
        return {
            "replay": self.replay.rng,
            "actor": self.actor.rng,
            "evaluation_actor": self.evaluation_actor.rng,
        }

    def seconds(self, config: Config, batch: Batch) -> tuple[float, float]:
        """Seconds per step, without and with its share of an update, from a short trial."""
        output = self.environment.reset()
        actions = self.actor.act(output.observation)
        started = time.perf_counter()
        for _ in range(_MEASURED_STEPS):
            output = self.environment.step(actions)
            actions = self.actor.act(output.observation)
        step_seconds = (time.perf_counter() - started) / (_MEASURED_STEPS * config.num_envs)

        self.learner.update(batch)
        started = time.perf_counter()
        for _ in range(_MEASURED_UPDATES):
            self.learner.update(batch)
        update_seconds = (time.perf_counter() - started) / _MEASURED_UPDATES
        return step_seconds, step_seconds + config.updates_per_step * update_seconds

    def close(self) -> None:
        """Closes the environment."""
        self.environment.close()


class AnyParts(Protocol):
    """What the parts of every run have in common, whatever the algorithm."""

    @property
    def replay(self) -> ReplayLike | None:
        """The replay buffer, if the agent has one."""

    @property
    def learner(self) -> Learner | a3c.SharedLearner:
        """The learner."""

    @property
    def evaluation_actor(self) -> Policy:
        """The policy that is evaluated."""

    @property
    def spec(self) -> EnvironmentSpec:
        """Shapes and actions of the environment."""

    @property
    def generators(self) -> dict[str, np.random.Generator]:
        """All random generators of this process, except the networks' noise."""

    def seconds(self, config: Config, batch: Batch) -> tuple[float, float]:
        """Seconds per step, without and with learning, from a short trial."""

    def close(self) -> None:
        """Closes environments and processes."""


def build_parts(config: Config, start_steps: int = 0) -> Parts:
    """The parts of Rainbow, each with its own random stream that follows from the seed.

    `start_steps` is part of the environment's seed, so a resumed run sees new episodes.
    """
    seeds = np.random.SeedSequence(config.seed)
    environment_seed, online_seed, target_seed = (int(s) // 2 for s in seeds.generate_state(3))
    environment_seed = (environment_seed + start_steps) % 2**31
    replay_rng, actor_rng, evaluation_rng = map(np.random.default_rng, seeds.spawn(3))

    environment = make_environment(config, num_envs=config.num_envs, seed=environment_seed)
    spec = environment.spec
    check_memory(config, spec)
    learner = make_learner(config, spec, online_seed=online_seed, target_seed=target_seed)
    replay = make_replay(config, spec, capacity=config.replay_capacity, rng=replay_rng)

    return Parts(
        environment=environment,
        replay=replay,
        learner=learner,
        actor=make_policy(config, learner.online, noise=True, rng=actor_rng),
        evaluation_actor=make_policy(
            config, learner.online, noise=config.eval_noise, rng=evaluation_rng
        ),
        spec=spec,
    )


def make_learner(
    config: Config, spec: EnvironmentSpec, *, online_seed: int, target_seed: int
) -> Learner:
    """Online and target network, and their learner."""
    if config.augmentation == "shift" and len(spec.frame_shape) == 1:
        raise ConfigError(
            f"--augmentation=shift moves images, and observations are {spec.frame_shape}; leave "
            "it out."
        )
    return Learner(
        online=make_network(config, spec, seed=online_seed, name="online"),
        target=make_network(config, spec, seed=target_seed, name="target"),
        support=make_support(config),
        double=config.double,
        priority=config.priority_measure,
        optimizer=make_optimizer(config),
        munchausen=config.munchausen,
        shift_seed=online_seed if config.augmentation == "shift" else None,
    )


def check_memory(config: Config, spec: EnvironmentSpec) -> None:
    """Refuses a replay that does not fit into memory."""
    needed = replay_bytes(config.replay_capacity, spec, compressed=config.compressed_replay)
    free = psutil.virtual_memory().available
    limit = Path("/sys/fs/cgroup/memory.max")  # a container may have less than the machine
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        free = min(free, int(text))
    if needed > free:
        raise ConfigError(
            f"The replay needs {needed / 1e9:.2f} GB and the machine has {free / 1e9:.2f} GB "
            "free; give --replay_compression=lz4 or a smaller --replay_capacity."
        )
