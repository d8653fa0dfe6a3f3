import json
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from model_server import Servable
from small_agents import CARTPOLE, CONFIGS, QBERT, make_agent, to_client

from rainbow_tf.agent.networks import Network, make_support
from rainbow_tf.config import Config
from rainbow_tf.export.signatures import (
    cvar,
    describe,
    make_signatures,
    to_stacks,
)
from rainbow_tf.runs.weights import make_policy
from rainbow_tf.types import EnvironmentSpec

ALPHAS = np.float32([0.001, 0.1, 0.25, 0.6, 1.0])


def tail_mean(support, probs, alpha):
    """CVaR by its definition: the mean over the quantiles below alpha, in small steps."""
    levels = (np.arange(20_000) + 0.5) / 20_000 * alpha
    atoms = np.minimum(np.searchsorted(np.cumsum(probs), levels), len(support) - 1)
    return support[atoms].mean()


def run(function, **inputs):
    outputs = function(**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: output.numpy() for name, output in outputs.items()}


class Agent(NamedTuple):
    config: Config
    network: Network
    spec: EnvironmentSpec
    stacks: np.ndarray  # [B, S, *frame]
    observations: np.ndarray  # the stacks as a client sends them
    signatures: dict

    def make_signatures(self, *, noisy):
        facts = describe(self.config, self.spec, -1, None, noisy=noisy)
        return make_signatures(
            self.network, config=self.config, spec=self.spec, facts=facts, noisy=noisy
        )


# The first three have the same graph as "cartpole", the last one is large.
SLOW = ("cartpole_no_double", "cartpole_no_prioritized", "cartpole_no_n_step", "qbert_nature")


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CONFIGS],
    scope="module",
)
def agent(request):
    """Every kind of agent."""
    config = CONFIGS[request.param]
    network, spec, stacks = make_agent(config)
    agent = Agent(config, network, spec, stacks, to_client(stacks, spec), {})
    return agent._replace(signatures=agent.make_signatures(noisy=False))


def test_answers_are_those_of_the_network(agent):
    config, network, _, stacks, observations, signatures = agent
    support = make_support(config)
    answers = run(signatures["serving_default"], observations=observations)
    logits = network(stacks).numpy()
    values = logits[..., 0]
    if config.has_quantiles:
        np.testing.assert_allclose(answers["quantiles"], values, rtol=1e-5, atol=1e-5)
        values = values.mean(axis=-1)
    elif support is not None:
        probs = np.exp(logits - logits.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        values = probs @ support
        np.testing.assert_allclose(answers["probabilities"], probs, atol=1e-5)
    np.testing.assert_allclose(answers["q_values"], values, rtol=1e-5, atol=1e-5)
    assert answers["actions"].dtype == np.int32
    np.testing.assert_array_equal(answers["actions"], answers["q_values"].argmax(1))
    one = run(signatures["serving_default"], observations=observations[:1])
    np.testing.assert_allclose(one["q_values"], values[:1], rtol=1e-5, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="The batch is empty"):
        run(signatures["serving_default"], observations=observations[:0])


def test_risk_values_are_the_mean_of_the_worst_returns(agent):
    config, network, _, stacks, observations, signatures = agent
    if not config.distributional:
        assert "risk" not in signatures
        return
    support = make_support(config)
    alphas = np.resize(ALPHAS, len(stacks))
    answers = run(signatures["risk"], observations=observations, alpha=alphas)
    if config.has_quantiles:  # the network gives the quantiles below alpha themselves
        levels = alphas[:, None] * np.float32([(i + 0.5) / 8 for i in range(8)])
        worst = network(stacks, levels=levels)[..., 0].numpy().mean(axis=-1)
        np.testing.assert_allclose(answers["action_values"], worst, rtol=1e-5, atol=1e-5)
        return
    for values, logits, alpha in zip(
        answers["action_values"], network(stacks), alphas, strict=True
    ):
        probs = tf.nn.softmax(tf.cast(logits, tf.float64)).numpy()
        by_hand = [tail_mean(support, p, alpha) for p in probs]
        np.testing.assert_allclose(values, by_hand, atol=0.01 * (support[1] - support[0]))
    np.testing.assert_array_equal(answers["actions"], answers["action_values"].argmax(1))
    np.testing.assert_array_equal(answers["values"], answers["action_values"].max(1))
    greedy = run(signatures["serving_default"], observations=observations)
    is_mean = alphas == 1
    np.testing.assert_array_equal(answers["actions"][is_mean], greedy["actions"][is_mean])
    np.testing.assert_array_equal(answers["action_values"][is_mean], greedy["q_values"][is_mean])
    with pytest.raises(tf.errors.InvalidArgumentError, match="The batch is empty"):
        run(signatures["risk"], observations=observations[:0], alpha=alphas[:0])


def test_agents_have_the_signatures_that_fit_them(agent):
    config, signatures = agent.config, agent.signatures
    expected = {"serving_default", "metadata"}
    expected |= {"risk"} if config.distributional else set()
    expected |= {"from_frames"} if config.game is not None else set()
    assert signatures.keys() == expected
    outputs = signatures["serving_default"].structured_outputs
    facts = signatures["metadata"].structured_outputs
    assert ("probabilities" in outputs) == ("support" in facts) == config.has_support
    assert ("quantiles" in outputs) == ("levels" in facts) == config.has_quantiles


def test_stacks_are_rebuilt_from_what_a_client_sends(agent):
    np.testing.assert_array_equal(to_stacks(agent.observations, agent.spec), agent.stacks)


@pytest.mark.parametrize(
    ("agent", "shape"),
    [
        ("qbert", (84, 84, 4)),
        ("breakout_stack", (84, 84, 2)),
        ("minatar", (10, 10, 4)),
        ("minatar_stack", (10, 10, 8)),
        ("cartpole", (4,)),
        ("cartpole_stack", (3, 4)),
    ],
    indirect=["agent"],
)
def test_shape_of_observations(agent, shape):
    assert agent.spec.observation_shape == shape == agent.observations.shape[1:]


@pytest.mark.parametrize("agent", ["cartpole", "cartpole_dqn", "minatar", "qbert"], indirect=True)
def test_actions_are_exactly_those_of_the_actor(agent):
    config, network, _, stacks, observations, signatures = agent
    actor = make_policy(config, network, noise=False, rng=np.random.default_rng(0))
    answers = run(signatures["serving_default"], observations=observations)
    np.testing.assert_array_equal(answers["actions"], actor.act(stacks))


@pytest.mark.parametrize("agent", ["cartpole", "qbert"], indirect=True)
def test_noise_is_left_out_unless_requested(agent):
    quiet = agent.signatures["serving_default"]
    noisy = agent.make_signatures(noisy=True)["serving_default"]
    first, second, noisy_first, noisy_second = (
        run(function, observations=agent.observations)["q_values"]
        for function in (quiet, quiet, noisy, noisy)
    )
    np.testing.assert_array_equal(first, second)
    assert np.abs(noisy_first - noisy_second).min() > 0
    assert np.abs(noisy_first - first).min() > 0
    assert np.abs(noisy_first - first).max() < np.ptp(make_support(agent.config)) / 2
    alike = np.repeat(agent.observations[:1], 16, axis=0)
    values = run(noisy, observations=alike)["q_values"]
    assert len(np.unique(values[:, 0])) == 16, "every example draws its own noise"


# Metadata.


def test_metadata_describes_the_policy(qbert_model):
    servable = Servable(qbert_model / "1", batching=False)
    query = tf.make_tensor_proto(np.zeros(2, np.int32))
    facts = servable.run("metadata", {"query": query})
    assert {len(fact) for fact in facts.values()} == {2}
    facts = {name: fact[0] for name, fact in facts.items()}
    assert facts["game"] == b"qbert"
    assert facts["agent"] == b"data_efficient"
    actions = [b"NOOP", b"FIRE", b"UP", b"RIGHT", b"LEFT", b"DOWN"]
    assert facts["action_meanings"].tolist() == actions
    np.testing.assert_array_equal(facts["support"], make_support(QBERT))
    assert facts["frames_trained"] == 1_000
    assert facts["score"] == 12.5
    assert facts["score_protocol"] == b"no-op starts"
    assert not facts["noisy"]
    preprocessing = json.loads(facts["preprocessing"])
    assert preprocessing["observation_shape"] == [84, 84, 4]
    assert (preprocessing["action_repeat"], preprocessing["protocol"]) == (4, "paper")
    assert json.loads(facts["versions"])["tensorflow"] == tf.__version__


def test_metadata_of_an_environment_with_unknown_training(cartpole):
    _, settings = cartpole
    facts = describe(CARTPOLE, settings["spec"], -1, None, noisy=False)
    assert (facts["game"], facts["agent"]) == ("CartPole-v1", "rainbow")
    assert facts["frames_trained"] == -1
    assert np.isnan(facts["score"])
    assert facts["score_protocol"] == ""


# Conditional value at risk.


def test_cvar_by_hand():
    support = np.float32([-10, 0, 10])
    logits = np.log(np.float32([[[0.2, 0.5, 0.3], [1e-30, 1, 1e-30]]] * 6))
    alpha = np.float32([0.1, 0.2, 0.45, 0.8, 1.0, 1e-9])
    values = cvar(support, tf.constant(logits), tf.constant(alpha)).numpy()
    # 0.45 takes all of -10 and half of 0: -2 / 0.45. 0.8 takes a third of 10: (-2 + 1) / 0.8.
    np.testing.assert_allclose(values[:, 0], [-10, -10, -2 / 0.45, -1.25, 1, -10], rtol=1e-5)
    np.testing.assert_allclose(values[:, 1], np.zeros(6), atol=1e-5)
    # A small alpha prefers the certain return, the mean prefers the gamble.
    np.testing.assert_array_equal(values.argmax(1), [1, 1, 1, 1, 0, 1])


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(seed=st.integers(0, 2**32 - 1))
def test_cvar_grows_with_alpha_up_to_the_mean(seed):
    rng = np.random.default_rng(seed)
    support = np.linspace(-3, 5, 9, dtype=np.float32)
    logits = np.repeat(rng.normal(0, 3, (1, 4, 9)).astype(np.float32), 30, axis=0)
    alpha = np.linspace(0.001, 1, 30, dtype=np.float32)
    values = cvar(support, tf.constant(logits), tf.constant(alpha)).numpy()
    assert (np.diff(values, axis=0) >= -1e-4).all()
    assert (values >= -3 - 1e-4).all()
    np.testing.assert_allclose(values[-1], tf.nn.softmax(logits[0]).numpy() @ support, atol=1e-5)
