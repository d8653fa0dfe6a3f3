"""Whole games against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rainbow_tf.config import Config
from rainbow_tf.evaluation.episodes import (
    EvaluatedEpisode,
    EvaluationGames,
    discounted_returns,
    play_budget,
    play_episodes,
)
from rainbow_tf.evaluation.statistics import score_summary
from rainbow_tf.types import Decision, StepOutput

CONFIG = Config(environment="CartPole-v1", discount=0.5, v_min=-0.7, v_max=2.6)


class ScriptedEnvironment:
    """Lanes that play written episodes, each a list of (reward, ending) steps, over and over.

    An observation is the number of steps since its episode began. Endings: "" none, "life" a lost
    life, "over" the game's end, "cut" the frame cap.
    """

    def __init__(self, *lanes):
        self.lanes = lanes
        self.actions = []

    def reset(self):
        self.episode = [0] * len(self.lanes)
        self.time = [0] * len(self.lanes)
        return self.output([(0.0, "")] * len(self.lanes), [True] * len(self.lanes))

    def step(self, actions):
        self.actions.append(actions)
        rows, firsts = [], []
        for i, episodes in enumerate(self.lanes):
            script = episodes[self.episode[i] % len(episodes)]
            firsts.append(self.time[i] == len(script))
            if firsts[-1]:
                self.episode[i] += 1
                self.time[i] = 0
                rows.append((0.0, ""))
            else:
                rows.append(script[self.time[i]])
                self.time[i] += 1
        return self.output(rows, firsts)

    def output(self, rows, firsts):
        endings = [ending for _, ending in rows]
        return StepOutput(
            observation=np.array(self.time),
            reward=np.array([reward for reward, _ in rows], np.float32),
            terminal=np.array([ending in ("life", "over") for ending in endings]),
            episode_over=np.array([ending in ("cut", "over") for ending in endings]),
            is_first=np.array(firsts),
        )


class ScriptedActor:
    """Expects the number of steps since the episode began, plus one."""

    def __init__(self):
        self.epsilons = set()

    def decide(self, observation, epsilon):
        self.epsilons.add(epsilon)
        return Decision(np.zeros(len(observation), np.int32), None, observation + 1.0, None)


def games(*lanes, config=CONFIG):
    return EvaluationGames(ScriptedActor(), ScriptedEnvironment(*lanes), config=config)


def first(*steps, config=CONFIG):
    """The first episode of one lane."""
    playing = games([list(steps)], config=config)
    return next(episode for _, episode in play_episodes(playing, episodes=1))


def test_a_game_by_hand():
    # Clipped 1, -1, 0.5; returns from the back 0.5, -1 + 0.25, 1 - 0.375; one is below -0.7.
    episode = first((3, ""), (-2, ""), (0.5, "over"))
    assert episode == EvaluatedEpisode(1.5, 3, 2.0, pytest.approx(0.125), pytest.approx(1 / 3))


def test_a_cut_game_takes_the_value_of_its_last_observation():
    # The last observation is worth 3: returns 1 + 1.5 and 1 + 1.25; the former is within 2.6.
    episode = first((1, ""), (1, "cut"))
    assert episode == EvaluatedEpisode(2.0, 2, 1.5, pytest.approx((2.5 + 2.25) / 2), 0.0)
    # Without the cut the last value is nothing: 1 and 1.5.
    assert first((1, ""), (1, "over")).return_mean == pytest.approx(1.25)


def test_a_lost_life_cuts_returns_and_not_the_game():
    # 0.5 from the first life, 0 + 0.5 and 1 from the second.
    episode = first((0.5, "life"), (0, ""), (1, "over"))
    assert episode == EvaluatedEpisode(1.5, 3, 2.0, pytest.approx(2 / 3), 0.0)


def test_rewards_are_clipped_only_where_learning_clips_them():
    unclipped = Config(
        environment="CartPole-v1", discount=0.5, clip_rewards=False, v_min=-0.7, v_max=2.6
    )
    assert first((4, ""), (2, "over"), config=unclipped)[3:] == (3.5, 0.5)
    assert first((4, ""), (2, "over"))[3:] == (1.25, 0.0)


@pytest.mark.parametrize("settings", [{"distributional": False}, {"returns": "quantile"}])
def test_agents_without_a_support_have_no_share_outside_it(settings):
    config = Config(environment="CartPole-v1", **settings)
    episode = first((100, "over"), config=config)
    assert episode.outside_support is None
    assert score_summary([episode])["outside_support"] is None
    judged = [episode._replace(outside_support=share) for share in (0.0, 1.0, 0.5)]
    assert score_summary(judged)["outside_support"] == 0.5


def test_returns_at_the_ends_of_the_support_are_inside():
    config = Config(environment="CartPole-v1", discount=0.0, v_min=-1, v_max=1)
    assert first((7, ""), (-7, ""), (0, "over"), config=config).outside_support == 0.0


def test_the_restart_is_no_step_of_the_next_game():
    playing = games([[(1, "over")], [(2, ""), (3, "over")]])
    episodes = [e for _, e in play_episodes(playing, episodes=2)]
    assert [(e.score, e.length, e.value_mean) for e in episodes] == [(1, 1, 1.0), (5, 2, 1.5)]
    assert playing.steps == 3


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.sampled_from([0.0, 0.9])), min_size=1, max_size=20),
    st.floats(-5, 5),
)
def test_returns_are_the_discounted_sums(steps, bootstrap):
    rewards, discounts = map(np.array, zip(*steps, strict=True))
    returns = discounted_returns(rewards, discounts, bootstrap)
    for t in range(len(steps)):
        total, weight = 0.0, 1.0
        for reward, discount in steps[t:]:
            total += weight * reward
            weight *= discount
        assert returns[t] == pytest.approx(total + weight * bootstrap)


def game(length):
    return [(1.0, "")] * (length - 1) + [(1.0, "over")]


def test_short_games_are_not_preferred():
    # The first four to finish would all be the first lane's.
    playing = games([game(1)], [game(10)])
    counted = dict(play_episodes(playing, episodes=4))
    assert [counted[n].score for n in range(4)] == [1, 10, 1, 10]


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(1, 12),
)
def test_each_lane_counts_its_first_games(lengths, episodes):
    playing = games(*([game(length) for length in lane] for lane in lengths))
    counted = dict(play_episodes(playing, episodes=episodes))
    assert sorted(counted) == list(range(episodes))
    for number, episode in counted.items():
        turn, lane = divmod(number, len(lengths))
        assert episode.length == lengths[lane][turn % len(lengths[lane])]


def test_a_budget_counts_every_episode_that_begins_within_it():
    # Steps 1 to 3 of both lanes are the budget of 6: the second lane has begun its third episode,
    # finishes it, and begins no other; the first lane finishes its only one.
    playing = games([game(5)], [game(1), game(1), game(3)])
    finished = list(play_budget(playing, steps=6))
    assert [[episode.length for episode in step] for step in finished] == [
        *([1], [], [1], []),  # every second step is a restart
        *([5], [], [3]),
    ]


LENGTHS = {  # of episodes in thousands of frames, drawn [n]
    "alike": lambda rng, n: rng.integers(28, 33, n),
    "half of them long": lambda rng, n: rng.choice([108, 10], n),
    "most of them long": lambda rng, n: rng.choice([108, 5], n, p=[0.9, 0.1]),
    "exponential": lambda rng, n: np.ceil(rng.exponential(40, n)).clip(1, 108).astype(int),
}


class SimulatedGames:
    """Lanes whose episodes have drawn lengths, each step a thousand frames."""

    def __init__(self, lengths):
        self.lengths = iter(lengths.tolist())
        self.steps = 0

    def play(self, lanes):
        self.num_lanes = lanes
        self.left = [next(self.lengths) for _ in range(lanes)]
        self.length = list(self.left)
        return self

    def step(self):
        finished = []
        for lane in range(self.num_lanes):
            self.left[lane] -= 1
            self.steps += 1
            if self.left[lane] == 0:
                finished.append((lane, self.length[lane]))
                self.left[lane] = self.length[lane] = next(self.lengths)
        return finished


# One lane plays few long episodes, and the more the shorter they are: the mean of such a ratio is
# above the truth by about variance / (mean^2 * episodes), 7 % in the second game.
@pytest.mark.parametrize(("lanes", "highest"), [(1, 1.09), (4, 1.06), (16, 1.06)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_budget_favours_neither_short_nor_long_episodes(lengths, lanes, highest):
    # The paper's 500K frames, and a score that grows with the length of an episode.
    rng = np.random.default_rng(1)
    draw = LENGTHS[lengths]
    means = []
    for _ in range(400):
        playing = SimulatedGames(draw(rng, 800)).play(lanes)
        finished = play_budget(playing, steps=500)
        means.append(np.mean([length for step in finished for length in step]))
    assert 0.97 < np.mean(means) / np.mean(draw(rng, 100_000)) < highest
