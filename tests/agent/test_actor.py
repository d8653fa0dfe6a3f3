"""Acting: greedy in the mean return, independent noise per lane, epsilon."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal

from rainbow_tf.agent.actor import Actor
from rainbow_tf.agent.networks import make_network, make_support
from rainbow_tf.config import Config
from rainbow_tf.training.build import build_parts
from rainbow_tf.types import EnvironmentSpec

LANES = 64
ENVIRONMENT = EnvironmentSpec((4,), np.dtype(np.float32), 1, 4, ("UP", "DOWN", "LEFT", "RIGHT"))


class Table(keras.Model):
    """A table of outputs by state; observations [S=1, states] are one-hot states."""

    def __init__(self, entries):
        super().__init__()
        self.entries = np.float32(entries)  # [states, A, N]
        self.modes = []

    def call(self, observations, training=False, noise_per_example=False):
        self.modes.append((training, noise_per_example))
        return tf.tensordot(observations[:, 0], self.entries, axes=1)


def table_actor(entries, *, support=None, noise=False, seed=0):
    return Actor(
        network=Table(entries),
        support=support,
        noise=noise,
        rng=np.random.default_rng(seed),
    )


def one_hot(states, count):
    return np.eye(count, dtype=np.float32)[list(states)][:, None]  # [E, S, states]


# The third of four actions is the best.
PREFERS_2 = [[[0], [1], [9], [2]]]
SAME_STATE = one_hot([0] * 8000, 1)


@pytest.fixture(scope="module")
def noisy_network():
    """With sigmas so large that the noise decides."""
    config = Config(environment="CartPole-v1", noisy_sigma=10.0, num_atoms=11)
    return make_network(config, ENVIRONMENT, seed=1, name="online"), make_support(config)


def network_actor(noisy_network, noise):
    network, support = noisy_network
    return Actor(
        network=network,
        support=support,
        noise=noise,
        rng=np.random.default_rng(1),
    )


@pytest.fixture(scope="module")
def noisy_actor(noisy_network):
    return network_actor(noisy_network, noise=True)


def same_observation(seed=0, lanes=LANES):
    frame = np.random.default_rng(seed).normal(size=(1, 1, 4)).astype(np.float32)
    return frame.repeat(lanes, axis=0)


def test_greedy_literal():
    actor = table_actor([[[1], [3], [2]], [[5], [4], [-1]], [[-3], [-2], [-1]]])
    actions = actor.act(one_hot([0, 1, 2, 0], 3))
    assert_array_equal(actions, [1, 0, 2, 1])
    assert actions.dtype == np.int32


def test_greedy_in_the_mean_not_the_mode():
    # On the atoms 0, 5, 10 action 0 has mean 3.5 and mode 5; action 1 has mean 4.5 and mode 0.
    logits = np.log([[[0.3, 0.7, 1e-12], [0.55, 1e-12, 0.45]]])
    actor = table_actor(logits, support=np.float32([0, 5, 10]))
    assert_array_equal(actor.act(one_hot([0], 1)), [1])


def test_greedy_with_negative_values():
    # On a support below zero the largest probability at the largest atom still wins.
    logits = np.log([[[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]]])
    actor = table_actor(logits, support=np.float32([-2, -1]))
    assert_array_equal(actor.act(one_hot([0, 0], 1)), [2, 2])


@pytest.mark.parametrize("noise", [True, False])
def test_noise_is_per_lane_or_off(noise):
    network = Table(PREFERS_2)
    rng = np.random.default_rng(0)
    Actor(network=network, support=None, noise=noise, rng=rng).act(one_hot([0], 1))
    assert set(network.modes) == {(noise, noise)}


def test_every_lane_has_its_own_noise(noisy_actor):
    actions = noisy_actor.act(same_observation())
    assert set(actions) == {0, 1, 2, 3}


def test_noise_is_fresh_at_every_step(noisy_actor):
    observation = same_observation()
    steps = [noisy_actor.act(observation) for _ in range(5)]
    for one, other in itertools.combinations(steps, 2):
        # About a quarter of the lanes agree by chance.
        assert np.mean(one != other) > 0.4


def test_lanes_are_independent(noisy_actor):
    # Neighbouring lanes agree no more often than by chance.
    observation = same_observation()
    actions = np.stack([noisy_actor.act(observation) for _ in range(40)])
    shares = np.bincount(actions.ravel(), minlength=4) / actions.size
    expected = np.square(shares).sum()
    assert np.mean(actions[:, :-1] == actions[:, 1:]) == pytest.approx(expected, abs=0.06)


def test_mean_policy_without_noise(noisy_network):
    network, support = noisy_network
    actor = network_actor(noisy_network, noise=False)
    observation = np.random.default_rng(5).normal(size=(LANES, 1, 4)).astype(np.float32)
    seeds = [variable.numpy() for variable in network.non_trainable_variables]
    actions = actor.act(observation)
    assert_array_equal(actor.act(observation), actions)
    values = tf.nn.softmax(network(observation, training=False)) @ support[:, None]
    assert_array_equal(actions, tf.argmax(values[..., 0], axis=1))
    assert len(set(actions)) > 1
    for variable, before in zip(network.non_trainable_variables, seeds, strict=True):
        assert_array_equal(variable, before)  # evaluation does not advance the noise of training


def test_noise_is_determined_by_the_seed_state(noisy_network, noisy_actor):
    network, _ = noisy_network
    observation = same_observation()
    seeds = [variable.numpy() for variable in network.non_trainable_variables]
    first = noisy_actor.act(observation)
    assert not np.array_equal(noisy_actor.act(observation), first)
    for variable, before in zip(network.non_trainable_variables, seeds, strict=True):
        variable.assign(before)
    assert_array_equal(noisy_actor.act(observation), first)


def test_acting_is_traced_once(noisy_actor):
    compiled = [
        function
        for function in vars(noisy_actor).values()
        if hasattr(function, "experimental_get_tracing_count")
    ]
    for seed in range(10):
        noisy_actor.act(same_observation(seed), epsilon=0.1 * (seed % 2))
        noisy_actor.decide(same_observation(seed), epsilon=0.1 * (seed % 2))
        noisy_actor.act_and_outputs(same_observation(seed), epsilon=0.1 * (seed % 2))
    assert [function.experimental_get_tracing_count() for function in compiled] == [1]


def test_epsilon_zero_is_greedy():
    assert set(table_actor(PREFERS_2).act(SAME_STATE)) == {2}
    assert set(table_actor(PREFERS_2).act(SAME_STATE, epsilon=0.0)) == {2}


def test_epsilon_one_is_uniform():
    actions = table_actor(PREFERS_2).act(SAME_STATE, epsilon=1.0)
    assert_allclose(np.bincount(actions) / len(actions), [0.25] * 4, atol=0.025)


def test_epsilon_statistics():
    # With epsilon = 0.4 each action gets 0.4 / 4 = 0.1, and the greedy one 0.6 more.
    actions = table_actor(PREFERS_2).act(SAME_STATE, epsilon=0.4)
    assert_allclose(np.bincount(actions) / len(actions), [0.1, 0.1, 0.7, 0.1], atol=0.025)
    assert actions.dtype == np.int32


def test_epsilon_is_independent_per_lane_and_step():
    actor = table_actor(PREFERS_2)
    first, second = (actor.act(SAME_STATE, epsilon=0.4) for _ in range(2))
    explored = first != 2
    assert 0 < explored.sum() < len(explored)
    # 0.3 of all lanes visibly explore, and 0.3 of those do so again at the next step.
    assert np.mean(second[explored] != 2) == pytest.approx(0.3, abs=0.05)


def test_random_actions_come_from_the_given_generator():
    def actions(seed):
        return table_actor(PREFERS_2, seed=seed).act(SAME_STATE, epsilon=0.5)

    assert_array_equal(actions(1), actions(1))
    assert not np.array_equal(actions(1), actions(2))


@pytest.mark.parametrize(
    ("noisy", "eval_noise", "acting_draws", "evaluation_draws"),
    [(True, False, True, False), (True, True, True, True), (False, True, False, False)],
)
def test_a_run_acts_with_noise_and_evaluates_without(
    noisy, eval_noise, acting_draws, evaluation_draws
):
    config = Config(
        environment="CartPole-v1", noisy=noisy, eval_noise=eval_noise, replay_capacity=100
    )
    tf.config.run_functions_eagerly(True)
    try:
        parts = build_parts(config)
        seeds = parts.learner.online.non_trainable_variables
        observation = same_observation(lanes=config.num_envs)

        def draws_noise(actor):
            before = [seed.numpy() for seed in seeds]
            actor.act(observation)
            return any(
                not np.array_equal(seed, old) for seed, old in zip(seeds, before, strict=True)
            )

        assert draws_noise(parts.actor) is acting_draws
        assert draws_noise(parts.evaluation_actor) is evaluation_draws
    finally:
        tf.config.run_functions_eagerly(False)


# Values.


def test_values_literal():
    actor = table_actor([[[1], [3], [2]], [[5], [4], [-1]], [[-3], [-2], [-1]]])
    actions, _, values, _ = actor.decide(one_hot([0, 1, 2, 0], 3))
    assert_array_equal(actions, [1, 0, 2, 1])
    assert_array_equal(values, [3, 5, -1, 3])
    assert (actions.dtype, values.dtype) == (np.int32, np.float32)


def test_values_are_means_of_distributions():
    logits = np.log([[[0.3, 0.7, 1e-12], [0.55, 1e-12, 0.45]]])
    actor = table_actor(logits, support=np.float32([0, 5, 10]))
    assert_allclose(actor.decide(one_hot([0], 1)).state_values, [4.5], rtol=1e-5)


def test_decide_returns_the_actions_of_act(noisy_network):
    actor = network_actor(noisy_network, noise=False)
    observation = np.random.default_rng(0).normal(size=(LANES, 1, 4)).astype(np.float32)
    actions, _, values, _ = actor.decide(observation)
    assert_array_equal(actions, actor.act(observation))
    assert len(set(values)) == LANES


def test_exploration_changes_only_the_actions():
    actor, twin = table_actor(PREFERS_2), table_actor(PREFERS_2)
    actions, _, values, _ = actor.decide(SAME_STATE, 0.4)
    assert_array_equal(actions, twin.act(SAME_STATE, 0.4))
    assert np.mean(actions != 2) == pytest.approx(0.3, abs=0.03)
    assert_array_equal(values, [9] * len(SAME_STATE))


def test_values_are_noisy_if_acting_is(noisy_actor):
    values = noisy_actor.decide(same_observation()).state_values
    assert len(set(values)) > LANES // 2


def test_decision_has_the_estimates_behind_it():
    probs = [[0.3, 0.7, 0.0], [0.5, 0.0, 0.5]]
    actor = table_actor(np.log(np.float32([probs]) + 1e-12), support=np.float32([0, 5, 10]))
    actions, values, state_values, distributions = actor.decide(one_hot([0, 0], 1))
    assert_array_equal(actions, [1, 1])
    assert_allclose(values, [[3.5, 5.0]] * 2, rtol=1e-5)
    assert_allclose(state_values, [5.0] * 2, rtol=1e-5)
    assert_allclose(distributions, [probs] * 2, atol=1e-6)


def test_decision_without_support_has_no_distributions():
    actions, values, _, distributions = table_actor(PREFERS_2).decide(one_hot([0], 1))
    assert_array_equal(actions, [2])
    assert_array_equal(values, [[0, 1, 9, 2]])
    assert distributions is None
