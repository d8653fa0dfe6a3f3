"""Plays whole episodes without learning, and compares predicted values with returns."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.console import progress_bar
from rainbow_tf.environments.base import Environment
from rainbow_tf.types import Policy


class EvaluatedEpisode(NamedTuple):
    """An episode: unclipped score, agent steps, and its predicted and obtained returns.

    Means are over the states in which the agent chose an action.
    """

    score: float
    length: int
    value_mean: float  # of max_a q(s, a)
    return_mean: float  # discounted, with rewards clipped as in learning
    outside_support: float | None  # share of returns; None without a support


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
    """Values, rewards and discounts of a lane's current episode."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.rewards: list[float] = []
        self.discounts: list[float] = []

    def finish(self, config: Config, bootstrap: float) -> EvaluatedEpisode:
        """The finished episode; `bootstrap` is the value of its last observation."""
        rewards = np.array(self.rewards)
        seen = np.clip(rewards, -1, 1) if config.clip_rewards else rewards
        returns = discounted_returns(seen, np.array(self.discounts), bootstrap)
        outside = None
        if config.has_support:
            outside = float(np.mean((returns < config.v_min) | (returns > config.v_max)))
        return EvaluatedEpisode(
            score=float(rewards.sum()),
            length=len(rewards),
            value_mean=float(np.mean(self.values)),
            return_mean=float(returns.mean()),
            outside_support=outside,
        )


class EvaluationGames:
    """E lanes at play; returns end where the environment reports `terminal`."""

    def __init__(self, policy: Policy, environment: Environment, *, config: Config):
        self._policy = policy
        self._environment = environment
        self._config = config
        self.steps = 0  # agent steps of all lanes
        output = environment.reset()
        self._lanes = [_Lane() for _ in output.reward]
        self._actions, self._values = self._decide(output.observation)

    def _decide(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        decision = self._policy.decide(observation, self._config.eval_epsilon)
        return decision.actions, decision.state_values

    def step(self) -> list[tuple[int, EvaluatedEpisode]]:
        """Plays one step; returns the episodes that it finished, with their lanes."""
        values_tm1 = self._values
        output = self._environment.step(self._actions)
        # Before the next step: a truncated episode bootstraps from its last observation.
        self._actions, self._values = self._decide(output.observation)
        finished = []
        for i in np.flatnonzero(~output.is_first):
            lane = self._lanes[i]
            lane.values.append(float(values_tm1[i]))
            lane.rewards.append(float(output.reward[i]))
            lane.discounts.append(0.0 if output.terminal[i] else self._config.discount)
            self.steps += 1
            if output.episode_over[i]:
                finished.append((int(i), lane.finish(self._config, float(self._values[i]))))
                self._lanes[i] = _Lane()
        return finished


def outside_support(episodes: Sequence[EvaluatedEpisode]) -> float | None:
    """Mean share of returns outside the support; None without one."""
    shares = [e.outside_support for e in episodes if e.outside_support is not None]
    return float(np.mean(shares)) if shares else None


def play_episodes(
    games: EvaluationGames, *, num_lanes: int, episodes: int
) -> Iterator[tuple[int, EvaluatedEpisode]]:
    """Yields (number, episode) as episodes finish: number n is the (n // E)th of lane n % E.

    Which episodes count is fixed in advance: the first to finish are the short ones.
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


def play_budget(
    games: EvaluationGames, *, num_lanes: int, steps: int
) -> Iterator[list[EvaluatedEpisode]]:
    """Yields the episodes that each step finishes, of all that begin within `steps`.

    The lanes share the budget. An episode that begins within it is played to its end and counts;
    dropping it would favour short episodes. A small bias remains, because fewer long episodes fit:
    3 % with 4 lanes if half of the episodes are ten times as long as the others.
    """
    playing = set(range(num_lanes))
    while playing:
        finished = [(lane, episode) for lane, episode in games.step() if lane in playing]
        yield [episode for _, episode in finished]
        if games.steps >= steps:
            playing -= {lane for lane, _ in finished}


def evaluate(
    policy: Policy, environment: Environment, *, config: Config, episodes: int, num_lanes: int
) -> list[EvaluatedEpisode]:
    """Plays episodes with a progress bar, and closes the environment."""
    played: dict[int, EvaluatedEpisode] = {}
    try:
        games = EvaluationGames(policy, environment, config=config)
        with progress_bar(total=episodes, unit="episode") as bar:
            for number, episode in play_episodes(games, num_lanes=num_lanes, episodes=episodes):
                played[number] = episode
                # Not the mean so far: short episodes finish first.
                bar.set_postfix_str(f"{games.steps:,} steps, last {episode.score:g}", refresh=False)
                bar.update()
    finally:
        environment.close()
    return [played[number] for number in range(episodes)]
