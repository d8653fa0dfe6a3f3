"""The environment protocol, its factory, and the tracker of episode scores."""

from typing import Protocol

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.environments.atari import AtariEnvironment
from rainbow_tf.environments.gym import GymEnvironment
from rainbow_tf.types import EnvironmentSpec, Episode, StepOutput


class Environment(Protocol):
    """E lanes stepped together. Callers may keep outputs: they are never overwritten."""

    spec: EnvironmentSpec

    def reset(self) -> StepOutput:
        """Restarts every lane, always from the same seed."""

    def step(self, actions: np.ndarray) -> StepOutput:
        """Plays one action per lane, [E] int; a lane whose episode is over restarts instead."""

    def screen(self) -> np.ndarray:
        """The first lane rendered for viewing, [H, W, 3] uint8; needs `screens=True`."""

    def close(self) -> None:
        """Releases the lanes."""


def make_environment(
    config: Config, *, num_envs: int, seed: int, screens: bool = False
) -> Environment:
    """The environment of the settings."""
    kind = GymEnvironment if config.game is None else AtariEnvironment
    return kind(config=config, num_envs=num_envs, seed=seed, screens=screens)


def make_spec(config: Config) -> EnvironmentSpec:
    """The spec of the environment of the settings, from a new one that is closed again."""
    environment = make_environment(config, num_envs=1, seed=0)
    environment.close()
    return environment.spec


class EpisodeTracker:
    """Sums the unclipped rewards of E lanes, across lost lives, until each episode ends."""

    def __init__(self, num_lanes: int):
        self._scores = np.zeros(num_lanes)
        self._lengths = np.zeros(num_lanes, np.int64)

    def observe(self, output: StepOutput) -> list[Episode]:
        """Adds a step; returns the episodes that it finished."""
        self._scores += output.reward
        self._lengths += ~output.is_first
        lanes = np.flatnonzero(output.episode_over)
        finished = [Episode(float(self._scores[i]), int(self._lengths[i])) for i in lanes]
        self._scores[lanes] = 0
        self._lengths[lanes] = 0
        return finished
