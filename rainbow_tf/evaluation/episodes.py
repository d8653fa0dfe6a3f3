"""Plays whole games without learning, and holds what the agent expects against what it gets."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.environments.base import World
from rainbow_tf.types import Policy


class JudgedEpisode(NamedTuple):
    """A whole game: its unclipped score, its agent steps, and the values of its states.

    Means are over the states in which the agent chose an action.
    """

    score: float
    length: int
    value_mean: float  # of max_a q(s, a)
    return_mean: float  # discounted, of the rewards that learning sees
    outside_support: float | None  # share of the returns; None for agents without a support


def discounted_returns(
    reward_t: np.ndarray, discount_t: np.ndarray, bootstrap: float
) -> np.ndarray:
    """Returns of the states before each reward: G_tm1 = r_t + discount_t G_t, all [T]."""
    returns = np.empty(len(reward_t))
    g_t = bootstrap
    for t in reversed(range(len(reward_t))):
        returns[t] = g_t = reward_t[t] + discount_t[t] * g_t
    return returns


class _Lane:
    """What a lane saw since its episode began."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.rewards: list[float] = []
        self.discounts: list[float] = []

    def judge(self, config: Config, bootstrap: float) -> JudgedEpisode:
        """The episode up to here; `bootstrap` is the value of the observation at its end."""
        rewards = np.array(self.rewards)
        seen = np.clip(rewards, -1, 1) if config.clip_rewards else rewards
        returns = discounted_returns(seen, np.array(self.discounts), bootstrap)
        outside = None
        if config.distributional:
            outside = float(np.mean((returns < config.v_min) | (returns > config.v_max)))
        return JudgedEpisode(
            score=float(rewards.sum()),
            length=len(rewards),
            value_mean=float(np.mean(self.values)),
            return_mean=float(returns.mean()),
            outside_support=outside,
        )


class JudgedGames:
    """E lanes under way; returns end where the world says `terminal`."""

    def __init__(self, policy: Policy, world: World, *, config: Config):
        self._policy = policy
        self._world = world
        self._config = config
        self.steps = 0  # agent steps of all lanes
        output = world.reset()
        self._lanes = [_Lane() for _ in output.reward]
        self._actions, self._values = self._judge(output.observation)

    def _judge(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        decision = self._policy.decide(observation, self._config.eval_epsilon)
        return decision.actions, decision.state_values

    def step(self) -> list[tuple[int, JudgedEpisode]]:
        """Plays one step; gives the lanes whose episodes it finished, with these episodes."""
        values_tm1 = self._values
        output = self._world.step(self._actions)
        # Judged at once: an episode that was cut takes the value of its last observation.
        self._actions, self._values = self._judge(output.observation)
        finished = []
        for i in np.flatnonzero(~output.is_first):
            lane = self._lanes[i]
            lane.values.append(float(values_tm1[i]))
            lane.rewards.append(float(output.reward[i]))
            lane.discounts.append(0.0 if output.terminal[i] else self._config.discount)
            self.steps += 1
            if output.episode_over[i]:
                finished.append((int(i), lane.judge(self._config, float(self._values[i]))))
                self._lanes[i] = _Lane()
        return finished


def outside_support(episodes: Sequence[JudgedEpisode]) -> float | None:
    """Mean share of returns that leave the support; None for agents without one."""
    shares = [e.outside_support for e in episodes if e.outside_support is not None]
    return float(np.mean(shares)) if shares else None


def play_episodes(
    games: JudgedGames, *, num_lanes: int, episodes: int
) -> Iterator[tuple[int, JudgedEpisode]]:
    """Yields (number, episode) as episodes finish: number n is lane n % E's (n // E)th.

    Which episodes count is settled before they are played: the first to finish are the short ones.
    """
    played = [0] * num_lanes
    counted = 0
    while counted < episodes:
        for lane, episode in games.step():
            number = lane + played[lane] * num_lanes
            played[lane] += 1
            if number < episodes:
                counted += 1
                yield number, episode


def play_budget(games: JudgedGames, *, num_lanes: int, steps: int) -> Iterator[list[JudgedEpisode]]:
    """Yields the episodes that each step finishes, of all that begin within `steps`.

    The budget is shared by the lanes. An episode that began within it is played to its end and
    counts; dropping it would favour short episodes. What remains is that few episodes fit when
    they are long: with 4 lanes and half of the games ten times as long, 3 %.
    """
    playing = set(range(num_lanes))
    while playing:
        finished = [(lane, episode) for lane, episode in games.step() if lane in playing]
        yield [episode for _, episode in finished]
        if games.steps >= steps:
            playing -= {lane for lane, _ in finished}
