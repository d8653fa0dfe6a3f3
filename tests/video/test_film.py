"""Films: whole episodes, scene by scene, with the policy's estimates."""

import itertools

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment
from rainbow_tf.types import Decision
from rainbow_tf.video.film import play

CARTPOLE = Config(environment="CartPole-v1", v_min=0, v_max=100)


class Leaning:
    """Pushes the cart toward where the pole leans, which balances it, or away."""

    def __init__(self, *, is_wise=True):
        self.is_wise = is_wise
        self.observations = []
        self.epsilons = set()

    def decide(self, observation, epsilon):
        self.observations.append(observation)
        self.epsilons.add(epsilon)
        leans_right = observation[0, 0, 2] + observation[0, 0, 3] > 0
        action = int(leans_right == self.is_wise)
        values = np.array([[7.0, 7.0]])
        values[0, action] = 9.0 + len(self.observations)
        return Decision(np.array([action]), values, values.max(axis=1), np.full((1, 2, 51), 1 / 51))


def film(config=CARTPOLE, *, episodes=2, **kwargs):
    actor = Leaning(**kwargs)
    environment = make_environment(config, num_envs=1, seed=3, screens=True)
    scenes = list(play(actor, environment, config=config, episodes=episodes))
    environment.close()
    return actor, scenes


def test_scenes_cover_whole_episodes():
    actor, scenes = film(is_wise=False)
    games = [list(game) for _, game in itertools.groupby(scenes, lambda scene: scene.episode)]
    assert len(games) == 2
    assert len(actor.observations) == sum(len(game) - 1 for game in games)
    for game in games:
        steps = [scene.step for scene in game]
        assert steps == list(range(len(game)))
        assert 8 <= steps[-1] <= 15
        assert [scene.score for scene in game] == steps  # CartPole's reward is 1 per step
        assert [scene.is_last for scene in game] == [False] * (len(game) - 1) + [True]
    # The second game starts with a new observation.
    start = len(games[0]) - 1
    assert np.abs(actor.observations[start]).max() < 0.05
    assert not np.array_equal(actor.observations[start], actor.observations[0])


def test_scenes_have_the_actor_s_estimates():
    _, scenes = film(episodes=1, is_wise=False)
    for number, scene in enumerate(scenes[:-1], start=1):
        action, values, value, probs = (part[0] for part in scene.decision)
        assert value == 9.0 + number == values[action]
        assert probs.shape == (2, 51)
    assert scenes[-1].decision is scenes[-2].decision


def test_screens_follow_the_game():
    _, scenes = film(episodes=1, is_wise=False)
    # The pole falls: each screen but the first few shows it lower.
    assert len({scene.screen.tobytes() for scene in scenes}) > len(scenes) / 2
    assert not np.array_equal(scenes[-1].screen, scenes[-2].screen)


def test_epsilon_is_that_of_evaluation():
    config = Config(environment="CartPole-v1", eval_epsilon=0.25, max_episode_frames=5)
    actor, scenes = film(config, episodes=1)
    assert actor.epsilons == {0.25}
    assert len(scenes) == 6


def test_atari_steps_count_four_frames():
    config = Config(game="qbert", max_episode_frames=40)
    environment = make_environment(config, num_envs=1, seed=1, screens=True)

    class Still:
        def decide(self, observation, epsilon):
            return Decision(np.array([0]), np.zeros((1, 6)), np.zeros(1), None)

    scenes = list(play(Still(), environment, config=config, episodes=1))
    environment.close()
    assert [scene.frame for scene in scenes] == list(range(0, 44, 4))
    assert scenes[0].screen.shape == (210, 160, 3)
