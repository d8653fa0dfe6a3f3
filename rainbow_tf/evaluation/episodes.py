"""Plays whole episodes without learning, and compares predicted values with returns."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.console import progress_bar
from rainbow_tf.environments.base import Environment
from rainbow_tf.types import Policy

# Value of the state before a step, its reward and its discount.
_Step = tuple[float, float, float]


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


def _finished(config: Config, steps: list[_Step], bootstrap: float) -> EvaluatedEpisode:
    """An episode; `bootstrap` is the value of its last observation."""
    values, rewards, discounts = map(np.array, zip(*steps, strict=True))
    seen = np.clip(rewards, -1, 1) if config.clip_rewards else rewards
    returns = discounted_returns(seen, discounts, bootstrap)
    outside = None
    if config.has_support:
        outside = float(np.mean((returns < config.v_min) | (returns > config.v_max)))
    return EvaluatedEpisode(
        score=float(rewards.sum()),
        length=len(rewards),
        value_mean=float(values.mean()),
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
        self.num_lanes = len(output.reward)
        self._lanes: list[list[_Step]] = [[] for _ in output.reward]  # of the current episodes
        self._decision = policy.decide(output.observation, config.eval_epsilon)

    def step(self) -> list[tuple[int, EvaluatedEpisode]]:
        """Plays one step; returns the episodes that it finished, with their lanes."""
        values_tm1 = self._decision.state_values
        output = self._environment.step(self._decision.actions)
        # Before the next step: a truncated episode bootstraps from its last observation.
        self._decision = self._policy.decide(output.observation, self._config.eval_epsilon)
        finished = []
        for i in np.flatnonzero(~output.is_first):
            discount = 0.0 if output.terminal[i] else self._config.discount
            self._lanes[i].append((float(values_tm1[i]), float(output.reward[i]), discount))
            self.steps += 1
            if output.episode_over[i]:
                bootstrap = float(self._decision.state_values[i])
                finished.append((int(i), _finished(self._config, self._lanes[i], bootstrap)))
                self._lanes[i] = []
        return finished


def play_episodes(
    games: EvaluationGames, *, episodes: int
) -> Iterator[tuple[int, EvaluatedEpisode]]:
    """Yields (number, episode) as episodes finish: number n is the (n // E)th of lane n % E.

    Which episodes count is fixed in advance: the first to finish are the short ones.
    """
    numbers = list(range(games.num_lanes))  # of each lane's current episode
    counted = 0
    while counted < episodes:
        for lane, episode in games.step():
            number = numbers[lane]
            numbers[lane] += games.num_lanes
            if number < episodes:
                counted += 1
                yield number, episode


def play_budget(games: EvaluationGames, *, steps: int) -> Iterator[list[EvaluatedEpisode]]:
    """Yields the episodes that each step finishes, of all that begin within `steps`.

    The lanes share the budget. An episode that begins within it is played to its end and counts;
    dropping it would favour short episodes. A small bias remains, because fewer long episodes fit:
    3 % with 4 lanes if half of the episodes are ten times as long as the others.
    """
    playing = set(range(games.num_lanes))
    while playing:
        finished = [(lane, episode) for lane, episode in games.step() if lane in playing]
        yield [episode for _, episode in finished]
        if games.steps >= steps:
            playing -= {lane for lane, _ in finished}


def evaluate(
    policy: Policy, environment: Environment, *, config: Config, episodes: int
) -> list[EvaluatedEpisode]:
    """Plays episodes with a progress bar, and closes the environment."""
    played: dict[int, EvaluatedEpisode] = {}
    try:
        games = EvaluationGames(policy, environment, config=config)
        with progress_bar(total=episodes, unit="episode") as bar:
            for number, episode in play_episodes(games, episodes=episodes):
                played[number] = episode
                # Not the mean so far: short episodes finish first.
                bar.set_postfix_str(f"{games.steps:,} steps, last {episode.score:g}", refresh=False)
                bar.update()
    finally:
        environment.close()
    return [played[number] for number in range(episodes)]
