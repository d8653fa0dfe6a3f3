"""A3C: returns and losses by hand, rollouts, worker threads, checkpoints and commands.

One learner is compiled, and every crew with its settings uses it; see `compiled_learner`.
"""

import csv
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from rainbow_tf.agent.layers import PolicyHead
from rainbow_tf.agent.learner import DivergedError, make_optimizer
from rainbow_tf.agent.networks import make_network
from rainbow_tf.baselines import a3c
from rainbow_tf.baselines.a3c import SharedLearner
from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment
from rainbow_tf.export.check import check_version
from rainbow_tf.export.saved_model import export_policy
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.runs.weights import values
from rainbow_tf.training.checkpoint import Checkpointer, agent_variables, disk_bytes, restore
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.training.progress import describe
from rainbow_tf.types import EnvironmentSpec, StepOutput

SETTINGS = {
    "environment": "CartPole-v1",
    "algorithm": "a3c",
    "num_envs": 2,
    "n_step": 3,
    "frames": 400,
    "optimizer": "rmsprop",
    "rmsprop_decay": 0.9,
    "rmsprop_epsilon": 0.1,
    "rmsprop_centered": False,
    "learning_rate": 0.01,
    "eval_period_frames": 0,
}


def settings(**changes):
    return Config(**SETTINGS | changes)


@pytest.fixture(scope="module", autouse=True)
def compiled_learner():
    """Crews of like settings share one compiled learner, reset to the weights of their seed.

    The next crew overwrites these weights: compare copies.
    """
    networks, learners = {}, {}

    def network(config, spec, *, seed, name):
        made = make_network(config, spec, seed=seed, name=name)
        shared = networks.setdefault(spec, made)
        shared.set_weights(made.get_weights())
        return shared

    def learner(*, config, spec, online):
        optimizer = make_optimizer(config)
        optimizer.build(online.trainable_variables)
        described = str(optimizer.get_config() | {"name": ""})
        key = (spec, config.n_step, config.entropy_cost, described)
        if key not in learners:
            learners[key] = SharedLearner(config=config, spec=spec, online=online)
        for old, new in zip(learners[key].optimizer.variables, optimizer.variables, strict=True):
            old.assign(new)
        return learners[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(a3c, "make_network", network)
        patch.setattr(a3c, "SharedLearner", learner)
        yield
    assert len(learners) <= 1, "only one should be compiled"


# Returns and losses.


@pytest.mark.parametrize(
    ("rewards", "discounts", "returns"),
    [
        # 3 + 8 / 2 = 7, 2 + 7 / 2 = 5.5, 1 + 5.5 / 2 = 3.75.
        ([1, 2, 3], [0.5, 0.5, 0.5], [3.75, 5.5, 7]),
        # A terminal after two steps cuts the bootstrap.
        ([1, 2, 0], [0.5, 0, 1], [2, 2, 8]),
        # A truncation after two steps keeps the bootstrap of the last observation.
        ([1, 2, 0], [0.5, 0.5, 1], [4, 6, 8]),
    ],
    ids=["full", "terminal", "truncated"],
)
def test_returns_by_hand(rewards, discounts, returns):
    arrays = np.array(rewards, np.float32), np.array(discounts, np.float32)
    result = a3c.n_step_returns(*map(tf.constant, arrays), tf.constant(8.0))
    np.testing.assert_allclose(result, returns)


def test_no_gradient_through_returns():
    bootstrap = tf.constant(8.0)
    with tf.GradientTape() as tape:
        tape.watch(bootstrap)
        total = tf.reduce_sum(a3c.n_step_returns(tf.ones(3), tf.ones(3), bootstrap))
    assert tape.gradient(total, bootstrap) is None


def loss_and_gradients(*, value, entropy_cost):
    """Of one step with probabilities 1/4 and 3/4, the first action, and a return of 3."""
    logits, values = tf.constant([[0.0, np.log(3)]], tf.float32), tf.constant([value])
    with tf.GradientTape() as tape:
        tape.watch([logits, values])
        loss = a3c.actor_critic_loss(
            logits, values, tf.constant([0]), tf.constant([3.0]), entropy_cost=entropy_cost
        )
    return loss.numpy(), *(gradient.numpy() for gradient in tape.gradient(loss, [logits, values]))


def test_loss_by_hand():
    loss, _, _ = loss_and_gradients(value=1.0, entropy_cost=0.1)
    # The advantage is 2: policy loss 2 ln 4, value loss 2^2 / 2; the entropy is ln 4 - 3/4 ln 3.
    entropy = np.log(4) - 0.75 * np.log(3)
    np.testing.assert_allclose(loss, [2 * np.log(4) + 2 - 0.1 * entropy], rtol=1e-6)


def test_gradients_by_hand():
    _, logits, values = loss_and_gradients(value=1.0, entropy_cost=0.0)
    # Advantage times (probabilities minus one-hot action): descent makes the action likelier.
    np.testing.assert_allclose(logits, [[2 * (0.25 - 1), 2 * 0.75]], rtol=1e-6)
    # Only from the value loss; the policy loss would add ln(1/4).
    np.testing.assert_allclose(values, [-2], rtol=1e-6)


def test_a_negative_advantage_makes_the_action_less_likely():
    _, logits, _ = loss_and_gradients(value=5.0, entropy_cost=0.0)
    np.testing.assert_allclose(logits, [[-2 * (0.25 - 1), -2 * 0.75]], rtol=1e-6)


def test_the_entropy_bonus_raises_the_entropy():
    _, logits, _ = loss_and_gradients(value=3.0, entropy_cost=1.0)  # no advantage
    # p (ln p + H): descent makes the likelier action less likely.
    entropy = np.log(4) - 0.75 * np.log(3)
    slope = 0.75 * (np.log(0.75) + entropy)
    assert slope > 0
    np.testing.assert_allclose(logits, [[-slope, slope]], rtol=1e-5)


def test_a_deterministic_policy_has_finite_gradients():
    logits = tf.constant([[0.0, 500.0]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = a3c.actor_critic_loss(
            logits, tf.zeros(1), tf.constant([1]), tf.ones(1), entropy_cost=1.0
        )
    assert np.isfinite(tape.gradient(loss, logits)).all()


def test_the_head_round_trips_through_its_config():
    arguments = {"num_actions": 3, "hidden_units": 4, "seed": 11, "name": "head"}
    layer = PolicyHead(**arguments)
    inputs = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)
    outputs = layer(inputs)
    assert [output.shape for output in outputs] == [(2, 3), (2,)]
    config = layer.get_config()
    assert {name: config[name] for name in arguments} == arguments
    for output, same in zip(outputs, PolicyHead.from_config(config)(inputs), strict=True):
        np.testing.assert_array_equal(output, same)


# Acting.


def test_actions_are_sampled_from_the_policy():
    shares = np.array([0.1, 0.2, 0.7])
    logits = np.tile(np.log(shares), (20_000, 1))
    actions = a3c.sample(logits, np.random.default_rng(1))
    assert actions.dtype == np.int32
    np.testing.assert_allclose(np.bincount(actions) / len(actions), shares, atol=0.01)


def policy_actor(logits, seed=1):
    def network(observation):
        lanes = tf.shape(observation)[0]
        return tf.repeat(tf.constant([logits], tf.float32), lanes, axis=0), observation[:, 0, 0]

    return a3c.PolicyActor(network=network, rng=np.random.default_rng(seed))


def test_the_policy_actor():
    observation = np.arange(8_000, dtype=np.float32)[:, None, None]
    sure = [0.0, 100.0, 0.0, 0.0]
    decision = policy_actor(sure).decide(observation)
    assert (decision.actions == 1).all()
    np.testing.assert_array_equal(decision.state_values, observation[:, 0, 0])
    # Of the random half, a quarter is the greedy action again.
    explored = policy_actor(sure).act(observation, epsilon=0.5)
    assert np.mean(explored == 1) == pytest.approx(0.5 + 0.5 / 4, abs=0.02)
    decision = policy_actor([0.0, np.log(3)]).decide(observation[:1])
    np.testing.assert_allclose(decision.values, [[0.25, 0.75]], rtol=1e-6)
    assert decision.probs is None
    even = [0.0] * 4
    one, same, other = (policy_actor(even, seed).act(observation) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


# Rollouts.


class ScriptedEnvironment:
    """One lane of (reward, terminal, over) steps; an observation is the number of steps so far."""

    def __init__(self, script):
        self.spec = EnvironmentSpec((1,), np.dtype(np.float32), 1, 2, ("0", "1"))
        self._script = script

    def _output(self, reward=0.0, terminal=False, over=False, first=False):
        self._over = over
        return StepOutput(
            observation=np.full((1, 1, 1), self._shown, np.float32),
            reward=np.array([reward], np.float32),
            terminal=np.array([terminal]),
            episode_over=np.array([over]),
            is_first=np.array([first]),
        )

    def reset(self):
        self._steps = itertools.cycle(self._script)
        self._shown = 0
        return self._output(first=True)

    def step(self, actions):
        self._shown += 1
        return self._output(first=True) if self._over else self._output(*next(self._steps))

    def close(self):
        pass


class Uniform:
    """A uniform policy."""

    def logits(self, weights, observation):
        return np.zeros((1, 2), np.float32)


def rollouts(script, count, **changes):
    worker = a3c.Worker(
        config=settings(**{"n_step": 5} | changes),
        environment=ScriptedEnvironment(script),
        learner=Uniform(),
        rng=np.random.default_rng(1),
    )
    worker.reset()
    return [worker.play(None) for _ in range(count)]


PLAIN = (1.0, False, False)


def test_a_rollout_ends_with_the_episode():
    script = [PLAIN, PLAIN, (1.0, True, True)]
    (first, episodes), (second, _) = rollouts(script, 2, discount=0.9)
    assert first.length == 3
    np.testing.assert_allclose(first.reward_t, [1, 1, 1, 0, 0])
    np.testing.assert_allclose(first.discount_t, [0.9, 0.9, 0, 1, 1])
    np.testing.assert_allclose(first.observation[[0, 1, 2, 5], 0, 0], [0, 1, 2, 3])
    assert episodes == [(3.0, 3)]
    # The reset, whose observation is 4, does not count as a step.
    assert second.observation[0, 0, 0] == 4


def test_a_truncation_keeps_the_bootstrap_of_the_last_observation():
    (rollout, episodes), (after, _) = rollouts([PLAIN, (1.0, False, True)], 2, discount=0.9)
    assert rollout.length == 2
    np.testing.assert_allclose(rollout.discount_t, [0.9, 0.9, 1, 1, 1])
    assert rollout.observation[-1, 0, 0] == 2  # and not the first of the next episode
    assert after.observation[0, 0, 0] == 3
    assert len(episodes) == 1


def test_a_lost_life_ends_the_rollout_and_not_the_episode():
    script = [(1.0, True, False), PLAIN, (1.0, True, True)]
    (first, none), (second, episodes) = rollouts(script, 2)
    assert (first.length, second.length) == (1, 2)
    assert first.discount_t[0] == 0
    assert second.observation[0, 0, 0] == 1
    assert none == []
    assert episodes == [(3.0, 3)]


def test_rewards_are_clipped_only_for_learning():
    script = [(7.0, False, False), (-3.0, True, True)]
    (clipped, episodes), *_ = rollouts(script, 1)
    (whole, _), *_ = rollouts(script, 1, clip_rewards=False)
    np.testing.assert_allclose(clipped.reward_t[:2], [1, -1])
    np.testing.assert_allclose(whole.reward_t[:2], [7, -3])
    assert episodes == [(4.0, 2)]


# The learner.


@pytest.fixture(scope="module")
def crew():
    crew = a3c.build_crew(settings())
    yield crew
    crew.close()


def rollout(length, seed=1, **changes):
    rng = np.random.default_rng(seed)
    padding = np.arange(3) >= length
    made = a3c.Rollout(
        observation=rng.normal(size=(4, 1, 4)).astype(np.float32),
        action_tm1=rng.integers(2, size=3, dtype=np.int32),
        reward_t=np.where(padding, 0, rng.normal(size=3)).astype(np.float32),
        discount_t=np.where(padding, 1, 0.9).astype(np.float32),
        length=np.int32(length),
    )
    return made._replace(**changes)


def expected_gradients(crew, steps, entropy_cost=0.01):
    """Step by step and eagerly, from the steps played and the last observation."""
    network, length = crew.learner.online, int(steps.length)
    with tf.GradientTape() as tape:
        logits, values_tm1 = network(steps.observation[:length])
        _, last = network(steps.observation[-1:])
        g_t, loss = tf.stop_gradient(last[0]), 0.0
        for t in reversed(range(length)):
            g_t = tf.stop_gradient(steps.reward_t[t] + steps.discount_t[t] * g_t)
            log_probs = tf.nn.log_softmax(logits[t])
            error = g_t - values_tm1[t]
            loss -= log_probs[steps.action_tm1[t]] * tf.stop_gradient(error)
            loss += 0.5 * error**2
            loss += entropy_cost * tf.reduce_sum(tf.exp(log_probs) * log_probs)
    return loss, tape.gradient(loss, network.trainable_variables)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_gradients_are_summed_over_the_steps_played(crew, length):
    steps = rollout(length)
    gradients, result = crew.learner.gradients(crew.learner.weights(), steps)
    loss, expected = expected_gradients(crew, steps)
    assert result.loss == pytest.approx(float(loss), rel=1e-5)
    assert len(result.errors) == length
    for gradient, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-6)


def test_padding_does_not_change_the_gradients(crew):
    steps = rollout(2)
    filled = steps.observation.copy()
    filled[2] = 1e3  # padding: the last observation is at index 3
    other = steps._replace(observation=filled, action_tm1=1 - steps.action_tm1)
    other.action_tm1[:2] = steps.action_tm1[:2]
    weights = crew.learner.weights()
    one, two = (crew.learner.gradients(weights, steps)[0] for steps in (steps, other))
    for gradient, same in zip(one, two, strict=True):
        np.testing.assert_allclose(gradient, same, rtol=1e-5, atol=1e-6)


def test_an_update_does_not_change_a_copy_of_the_weights(crew):
    weights = crew.learner.weights()
    before = [weight.numpy().copy() for weight in weights]
    gradients, _ = crew.learner.gradients(weights, rollout(3))
    crew.learner.apply(gradients, 0.1)
    for weight, value in zip(weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert any(
        (new.numpy() != old).any() for new, old in zip(crew.learner.weights(), before, strict=True)
    )


def eagerly(function, *specs):
    """Stands for `a3c._compiled`."""
    return function


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_threads_share_the_rmsprop_statistics(monkeypatch, crew, max_grad_norm):
    """RMSProp by hand, for the gradients of two threads in turn."""
    monkeypatch.setattr(a3c, "_compiled", eagerly)
    config = settings(max_grad_norm=max_grad_norm)
    learner = SharedLearner(
        config=config,
        spec=crew.spec,
        online=make_network(config, crew.spec, seed=1, name="online"),
    )
    weights = [weight.numpy() for weight in learner.weights()]
    mean_squares = [np.zeros_like(weight) for weight in weights]
    for seed in (1, 2):
        gradients, _ = learner.gradients(learner.weights(), rollout(3, seed))
        with futures.ThreadPoolExecutor(1) as thread:
            thread.submit(learner.apply, gradients, 0.01).result()
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in gradients))
        scale = 1 if max_grad_norm is None else min(1, max_grad_norm / norm)
        for i, gradient in enumerate(gradients):
            g = gradient.numpy() * scale
            mean_squares[i] = 0.9 * mean_squares[i] + 0.1 * g**2
            weights[i] = weights[i] - 0.01 * g / np.sqrt(mean_squares[i] + 0.1)
    for weight, value in zip(weights, learner.weights(), strict=True):
        np.testing.assert_allclose(value, weight, rtol=1e-4, atol=1e-6)


def test_a_non_finite_loss_raises_and_changes_nothing(crew):
    before = values(agent_variables(crew))
    steps = rollout(3, reward_t=np.array([0, np.nan, 0], np.float32))
    with pytest.raises(DivergedError, match="nan") as error:
        crew.learner.gradients(crew.learner.weights(), steps)
    assert error.value.details["rollout"]["action_tm1"] == steps.action_tm1.tolist()
    for name, value in values(agent_variables(crew)).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


# Threads.


def trained(config):
    """The variables after training, and the ticks."""
    crew = a3c.build_crew(config)
    ticks = list(a3c.train(config, crew))
    crew.close()
    return values(agent_variables(crew)), ticks


def test_one_worker_is_deterministic():
    config = settings(num_envs=1)
    (one, ticks), (two, same), (other, _) = map(
        trained, (config, config, dataclasses.replace(config, seed=2))
    )
    assert [tick[:3] for tick in ticks] == [tick[:3] for tick in same]
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)
    assert any((value != other[name]).any() for name, value in one.items())


def test_the_learning_rate_falls_to_zero():
    config = settings(frames=200, num_envs=1, log_period_frames=100)
    crew = a3c.build_crew(config)
    rates = {
        tick.frames: float(crew.learner.optimizer.learning_rate) for tick in a3c.train(config, crew)
    }
    for frames, rate in rates.items():
        assert rate == pytest.approx(0.01 * (1 - frames / 200), abs=0.01 * config.n_step / 200)
    assert min(rates) < 200
    assert len(rates) > 1


def test_ticks_count_all_steps_and_come_at_the_log_period():
    config = settings(num_envs=4, frames=300, log_period_frames=100)
    _, ticks = trained(config)
    frames = [tick.frames for tick in ticks]
    # After one worker reaches a mark, the others finish their rollouts and start none.
    for mark in (100, 200, 300):
        assert any(mark <= reached < mark + config.n_step for reached in frames)
    assert frames == sorted(set(frames))
    updates = [len(tick.results) for tick in ticks]
    assert ticks[-1].counters == (frames[-1], sum(updates))
    errors = [len(result.errors) for tick in ticks for result in tick.results]
    assert sum(errors) == frames[-1]


class Hooked:
    """An environment that calls a function before every step."""

    def __init__(self, environment, before):
        self._environment = environment
        self._before = before
        self.spec = environment.spec

    def step(self, actions):
        self._before()
        return self._environment.step(actions)

    def __getattr__(self, name):
        return getattr(self._environment, name)


def hooked_crew(config, *hooks):
    crew = a3c.build_crew(config)
    for worker, hook in zip(crew.workers, hooks, strict=False):
        worker.environment = Hooked(worker.environment, hook)
    return crew


def test_workers_play_concurrently():
    config = settings(num_envs=2, frames=100)
    meeting = threading.Barrier(2)
    met = []

    def meet():
        if not met:
            meeting.wait(timeout=60)
            met.append(True)

    for _ in a3c.train(config, hooked_crew(config, meet, meet)):
        pass
    assert met


def failing():
    raise RuntimeError("the environment broke")


def test_an_error_in_a_thread_ends_the_run():
    config = settings(num_envs=3, frames=10**9, log_period_frames=10**9)
    crew = hooked_crew(config, lambda: None, failing)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="the environment broke"):
        for _ in a3c.train(config, crew):
            pass
    assert time.monotonic() - started < 30
    assert not workers_alive()


def workers_alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("a3c")]


def test_threads_rest_between_ticks_and_end_after_them():
    config = settings(num_envs=4, frames=10**6)
    crew = a3c.build_crew(config)
    ticks = a3c.train(config, crew)
    next(ticks)
    before = values(agent_variables(crew))
    time.sleep(0.3)
    for name, value in values(agent_variables(crew)).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert workers_alive()
    ticks.close()
    assert not workers_alive()


# A whole run.


def test_describing_a_run_does_not_change_it(tmp_path):
    config = settings(run_dir=str(tmp_path / "run"))
    crew = a3c.build_crew(config)
    before = values(agent_variables(crew))
    states = [rng.bit_generator.state for rng in crew.generators.values()]
    text = describe(config, crew, 0)
    for name, value in values(agent_variables(crew)).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert [rng.bit_generator.state for rng in crew.generators.values()] == states
    assert "a3c" in text
    assert "replay" not in text
    assert "expected time" in text


def test_train_csv_leaves_replay_columns_empty(tmp_path):
    config = settings(run_dir=str(tmp_path), log_period_frames=200)
    crew = a3c.build_crew(config)
    metrics = Metrics(config=config, parts=crew, frames=0, evaluated=0)
    for tick in a3c.train(config, crew):
        metrics.observe(tick)
    metrics.close()
    names, *rows = [line.split(",") for line in (tmp_path / "train.csv").read_text().split()]
    for row in rows:
        shown = dict(zip(names, row, strict=True))
        assert float(shown["loss"]) != 0
        assert float(shown["q_mean"]) != 0
        assert int(shown["episodes"]) > 0
        assert (shown["priority_mean"], shown["priority_max"], shown["noise_scale"]) == ("",) * 3
        assert float(shown["replay_fill"]) == 0


def test_disk_estimate_has_no_replay():
    spec = EnvironmentSpec((84, 84), np.dtype(np.uint8), 4, 6, ("",) * 6)
    assert disk_bytes(Config(game="qbert", algorithm="a3c"), spec, 1_000) < 100_000


def test_settings_that_a3c_implies():
    config = Config(game="qbert", algorithm="a3c", replay_capacity=1)
    assert config.agent == "a3c"
    parts = ("double", "prioritized", "dueling", "distributional", "noisy")
    assert not any(getattr(config, name) for name in parts)
    assert Config.from_dict(json.loads(config.to_json())) == config


def test_network_size_of_the_paper():
    config = Config(game="qbert", algorithm="a3c", num_envs=1)
    environment = make_environment(config, num_envs=1, seed=1)
    network = make_network(config, environment.spec, seed=1, name="online")
    convolutions = (8 * 8 * 4 + 1) * 16 + (4 * 4 * 16 + 1) * 32
    hidden, heads = (9 * 9 * 32 + 1) * 256, (256 + 1) * (6 + 1)
    assert network.count_params() == convolutions + hidden + heads
    logits, value = network(environment.reset().observation)
    assert logits.shape == (1, 6)
    assert value.shape == (1,)
    environment.close()


class NoState:
    """Metrics and an evaluator without a state."""

    def state(self):
        return {}


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_checkpoint_restores_the_run(tmp_path, num_envs):
    config = settings(num_envs=num_envs, run_dir=str(tmp_path))
    crew = a3c.build_crew(config)
    tick = next(a3c.train(config, crew))
    store = CheckpointStore(config.folder / CHECKPOINTS)
    Checkpointer(
        config=config,
        store=store,
        parts=crew,
        metrics=NoState(),
        evaluator=NoState(),
    ).save(tick.counters)
    saved = values(agent_variables(crew))
    assert any(name.startswith("optimizer") for name in saved)
    generators = {name: rng.bit_generator.state for name, rng in crew.generators.items()}
    checkpoint, problems = store.newest_whole()
    assert problems == []
    assert checkpoint.counters == tick.counters

    def resumed():
        crew = a3c.build_crew(config, checkpoint.counters.steps)
        restore(crew, store, checkpoint)
        return crew

    crew = resumed()
    for name, value in values(agent_variables(crew)).items():
        np.testing.assert_array_equal(value, saved[name], err_msg=name)
    assert {n: rng.bit_generator.state for n, rng in crew.generators.items()} == generators
    if num_envs == 1:  # one worker is deterministic after a resume too
        ends = []
        for crew in (resumed(), resumed()):
            restore(crew, store, checkpoint)
            *_, last = a3c.train(config, crew, checkpoint.counters)
            ends.append((last.counters, values(agent_variables(crew))))
        (reached, one), (same, two) = ends
        assert reached == same
        assert reached.steps >= config.frames
        for name, value in one.items():
            np.testing.assert_array_equal(value, two[name], err_msg=name)


# The commands.


def flags(folder, **changes):
    return [
        *(f"--{name}={value}" for name, value in (SETTINGS | changes).items()),
        f"--run_dir={folder}",
    ]


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_command_takes_an_a3c_run(run_command, tmp_path):
    """Trained for a moment, resumed, evaluated, exported, played and reported."""

    def run(*arguments):
        ended = run_command(*arguments)
        assert ended.status == 0, ended.stderr
        return ended.stdout

    folder = tmp_path / "runs" / "cartpole_v1" / "a3c" / "seed_1"
    periods = {"log_period_frames": 100, "eval_period_frames": 200, "eval_frames": 50}
    first = run("train", *flags(folder, frames=200, **periods))
    assert "Done after 20" in first
    assert "replay" not in first
    again = run("train", *flags(folder, frames=400, **periods))
    assert "Resuming from checkpoint" in again
    assert "Done after 40" in again
    assert [int(row["frames"]) // 100 for row in rows(folder / "train.csv")] == [1, 2, 3, 4]
    # At least one update for 3 steps.
    assert all(int(row["updates"]) >= int(row["frames"]) / 3 for row in rows(folder / "train.csv"))
    assert [int(row["frames"]) // 200 for row in rows(folder / "eval.csv")] == [1, 2]
    assert json.loads((folder / "config.json").read_text())["algorithm"] == "a3c"

    run("evaluate", f"--run_dir={folder}", "--episodes=2", "--snapshot=latest")
    (summary,) = folder.glob("evaluations/*/summary.json")
    summary = json.loads(summary.read_text())
    assert (summary["agent"], summary["episodes"], summary["support"]) == ("a3c", 2, None)
    models = tmp_path / "models"
    run("export", f"--run_dir={folder}", f"--out={models}")
    run("check", models)
    assert "mean score" in run("play", f"--model_dir={models}", "--episodes=1")
    run("report", f"--runs={tmp_path / 'runs'}", f"--out={tmp_path / 'report'}")
    assert any("A3C" in path.read_text() for path in (tmp_path / "report").rglob("*.md"))


def test_the_exported_policy(crew, tmp_path):
    network = crew.learner.online
    export = export_policy(network, config=settings(), spec=crew.spec, output_dir=tmp_path)
    assert export.signatures == ("serving_default", "metadata")
    assert check_version(export.folder) == []
    model = tf.saved_model.load(str(export.folder))
    observations = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    answer = model.signatures["serving_default"](tf.constant(observations))
    logits, value = network(observations[:, None])
    assert answer.keys() == {"actions", "probabilities", "values"}
    np.testing.assert_array_equal(answer["actions"], np.argmax(logits, axis=1))
    np.testing.assert_allclose(answer["probabilities"], tf.nn.softmax(logits), rtol=1e-5)
    np.testing.assert_allclose(answer["values"], value, rtol=1e-5, atol=1e-6)
    facts = model.signatures["metadata"](tf.constant([0]))
    assert facts["algorithm"].numpy() == [b"a3c"]


def test_a_stop_is_prompt_and_saves_the_run(run_command, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    play, sent = a3c.Worker.play, []

    def stopping(self, weights):
        if (folder / "train.csv").exists() and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return play(self, weights)

    monkeypatch.setattr(a3c.Worker, "play", stopping)
    ended = run_command("train", *flags(folder, num_envs=4, frames=10**8))
    assert sent
    assert ended.status == 143, ended.stderr
    assert "Traceback" not in ended.stderr
    frames = int(ended.stdout.split("Stopped after ")[1].split(" frames")[0].replace(",", ""))
    checkpoint, _ = CheckpointStore(folder / CHECKPOINTS).newest_whole()
    assert checkpoint.frames == frames > 0
    # The first tick: no worker plays another round.
    assert frames <= a3c._ROUND_UPDATES * 3 * 4 + 3 * 4


@pytest.mark.slow
def test_a_stopped_process_saves_its_run(tmp_path):
    folder = tmp_path / "run"
    command = ["--algorithm=a3c", "--environment=CartPole-v1", "--num_envs=4", "--frames=100000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rainbow_tf.main", *command, f"--run_dir={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 240
    while not (folder / "train.csv").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    assert "Traceback" not in stderr
    frames = int(stdout.split("Stopped after ")[1].split(" frames")[0].replace(",", ""))
    checkpoint, _ = CheckpointStore(folder / CHECKPOINTS).newest_whole()
    assert checkpoint.frames == frames > 0
