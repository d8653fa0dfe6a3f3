"""The update: every combination of settings, literal numbers, noise and determinism."""

import contextlib
import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal

from rainbow_tf.agent import losses
from rainbow_tf.agent.actor import Actor
from rainbow_tf.agent.layers import NoisyDense
from rainbow_tf.agent.learner import Learner, make_optimizer, random_shift
from rainbow_tf.agent.networks import make_network, make_support
from rainbow_tf.config import Config
from rainbow_tf.types import Batch, EnvironmentSpec

ENVIRONMENT = EnvironmentSpec((4,), np.dtype(np.float32), 1, 3, ("LEFT", "STAY", "RIGHT"))
BATCH_SIZE = 8


def settings(**kwargs):
    return Config(environment="CartPole-v1", **{"num_atoms": 11, **kwargs})


def make_learner(config, seed=1, learning_rate=1e-3):
    config = dataclasses.replace(config, learning_rate=learning_rate)
    return Learner(
        online=make_network(config, ENVIRONMENT, seed=seed, name="online"),
        target=make_network(config, ENVIRONMENT, seed=seed + 1000, name="target"),
        support=make_support(config),
        double=config.double,
        priority=config.priority_measure,
        optimizer=make_optimizer(config),
        munchausen=config.munchausen,
    )


def make_batch(seed=0, **fields):
    rng = np.random.default_rng(seed)
    drawn = Batch(
        observation_tm1=rng.normal(size=(BATCH_SIZE, 1, 4)).astype(np.float32),
        action_tm1=rng.integers(3, size=BATCH_SIZE, dtype=np.int32),
        reward_t=rng.normal(size=BATCH_SIZE).astype(np.float32),
        discount_t=np.float32([0.97, 0, 0.97, 0.5, 0.97, 0, 0.97, 0.97]),
        observation_t=rng.normal(size=(BATCH_SIZE, 1, 4)).astype(np.float32),
        weight=rng.uniform(0.25, 1, BATCH_SIZE).astype(np.float32),
    )
    return drawn._replace(**fields)


class Table(keras.Model):
    """A table with one entry per state, action and atom, so that gradients are known."""

    def __init__(self, entries):
        super().__init__()
        entries = np.float32(entries)  # [states, A, N]
        self.entries = self.add_weight(
            name="entries", shape=entries.shape, initializer=lambda shape, dtype: entries
        )
        self.built = True
        self.calls = []

    def call(self, observations, training=False):
        self.calls.append((training, observations))
        return tf.tensordot(observations[:, 0], self.entries, axes=1)


def table_learner(entries, *, support=None, double=True, **kwargs):
    config = settings(**{"learning_rate": 1.0, "distributional": support is not None, **kwargs})
    return Learner(
        online=Table(entries),
        target=Table(entries),
        support=support,
        double=double,
        priority=config.priority_measure,
        optimizer=make_optimizer(config),
        munchausen=config.munchausen,
    )


def table_batch(*transitions, states=2):
    """Transitions of (state, action, reward, discount, next state, weight)."""
    state, action, reward, discount, next_state, weight = zip(*transitions, strict=True)
    one_hot = np.eye(states, dtype=np.float32)[:, None]  # [states, S, states]
    return Batch(
        one_hot[list(state)],
        np.int32(action),
        np.float32(reward),
        np.float32(discount),
        one_hot[list(next_state)],
        np.float32(weight),
    )


def values_of(variables):
    return [variable.numpy() for variable in variables]


def assert_same(one, other):
    for left, right in zip(one, other, strict=True):
        assert_array_equal(left, right)


def differ(one, other):
    return [not np.array_equal(left, right) for left, right in zip(one, other, strict=True)]


def draws(network):
    """Number of noise draws of every noisy layer, from its seed state."""
    head = network.head
    parts = (head.value_hidden, head.value, head.advantage_hidden, head.advantage)
    layers = [*network.hidden, *parts]
    return np.array([int(layer.seed_generator.state[1]) for layer in layers])


def all_variables(learner):
    return [*learner.online.variables, *learner.target.variables, *learner.optimizer.variables]


def restore(learner, values):
    for variable, value in zip(all_variables(learner), values, strict=True):
        variable.assign(value)


@contextlib.contextmanager
def eager_functions():
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.fixture
def eagerly():
    """Skips the compilation, which takes far longer than the test."""
    with eager_functions():
        yield


def test_compiled_and_eager_updates_agree():
    learners = [make_learner(settings(noisy=False), learning_rate=1e-4) for _ in range(2)]
    for step in range(100):
        compiled = learners[0].update(make_batch(step))
        with eager_functions():
            eager = learners[1].update(make_batch(step))
        assert_allclose(compiled.errors, eager.errors, atol=1e-5)
    one, other = (values_of(learner.online.trainable_variables) for learner in learners)
    for left, right in zip(one, other, strict=True):
        assert_allclose(left, right, atol=1e-5)


@pytest.fixture(scope="module")
def compiled_rainbow():
    learner = make_learner(settings())
    return learner, values_of(all_variables(learner))


@pytest.fixture
def rainbow(compiled_rainbow):
    """The full agent, compiled once and reset for every test."""
    learner, start = compiled_rainbow
    restore(learner, start)
    return learner


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    ("double", "dueling", "returns", "noisy", "munchausen"),
    list(
        itertools.product(
            [True, False], [True, False], ["categorical", "quantile", None], *[[True, False]] * 2
        )
    ),
)
def test_every_combination_learns_and_acts(double, dueling, returns, noisy, munchausen):
    # `prioritized` changes only the weights: equal ones, or those of make_batch.
    parts = {
        "double": double,
        "dueling": dueling,
        "distributional": returns is not None,
        "returns": returns or "categorical",
        "noisy": noisy,
        "munchausen": munchausen,
    }
    learner = make_learner(settings(**parts))
    before = values_of(learner.online.trainable_variables)
    for prioritized in (True, False):
        config = settings(**parts, prioritized=prioritized, n_step=3 if prioritized else 1)
        weight = make_batch().weight if prioritized else np.ones(BATCH_SIZE, np.float32)
        result = learner.update(make_batch(weight=weight))
        assert result.errors.shape == (BATCH_SIZE,)
        assert np.isfinite([*result.errors, result.loss, result.q_mean]).all()
        assert (result.errors >= -1e-6).all()  # a KL of 0 can round below 0
        after = values_of(learner.online.trainable_variables)
        assert all(np.isfinite(value).all() for value in after)
        assert all(differ(before, after))  # the gradient reaches every variable
        actor = Actor(
            network=learner.online,
            support=make_support(config),
            noise=config.noisy,
            rng=np.random.default_rng(1),
        )
        actions = actor.act(make_batch().observation_t, epsilon=0.0 if noisy else 0.5)
        assert actions.shape == (BATCH_SIZE,)
        assert set(actions) <= {0, 1, 2}


def test_compiled_rainbow_is_finite_and_moves_every_variable(rainbow):
    before = values_of(rainbow.online.trainable_variables)
    result = rainbow.update(make_batch())
    assert np.isfinite([*result.errors, result.loss, result.q_mean]).all()
    assert all(differ(before, values_of(rainbow.online.trainable_variables)))


def test_three_passes_draw_noise_three_times(rainbow):
    online, target = draws(rainbow.online), draws(rainbow.target)
    rainbow.update(make_batch())
    assert_array_equal(draws(rainbow.online) - online, [2, 2, 2, 2, 2])  # selection and prediction
    assert_array_equal(draws(rainbow.target) - target, [1, 1, 1, 1, 1])


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("double", [True, False])
def test_no_two_passes_share_noise(monkeypatch, double):
    learner = make_learner(settings(double=double))
    drawn = []
    draw = NoisyDense.draw_noise

    def recording(layer, groups):
        noise = draw(layer, groups)
        drawn.append(np.concatenate([np.ravel(part) for part in noise]))
        return noise

    monkeypatch.setattr(NoisyDense, "draw_noise", recording)
    learner.update(make_batch())
    assert len(drawn) == 5 * (3 if double else 2)  # five noisy layers
    for one, other in itertools.combinations(drawn, 2):
        assert np.intersect1d(one, other).size <= 2  # floats can match by chance


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("double", [True, False])
def test_every_pass_is_a_separate_noisy_call(double):
    # One call of the online network for both observations would share the noise.
    learner = table_learner(np.zeros((2, 2, 1)), double=double)
    batch = table_batch((0, 0, 1, 0.5, 1, 1), (0, 1, 1, 0.5, 1, 1))

    def states(network):
        assert all(training for training, _ in network.calls)
        return sorted(np.argmax(seen[:, 0], axis=-1).tolist() for _, seen in network.calls)

    learner.update(batch)
    assert states(learner.online) == ([[0, 0], [1, 1]] if double else [[0, 0]])
    assert states(learner.target) == [[1, 1]]


@pytest.mark.parametrize(
    ("double", "expected"),
    # With q_online(s1) = (5, 1) and q_target(s1) = (2, 7) the online network selects action 0:
    # 1 + 0.5 * 2 - 0 = 2. With the target as selector: 1 + 0.5 * 7 - 0 = 4.5.
    [(True, 2.0), (False, 4.5)],
)
def test_double_q_literal(double, expected):
    learner = table_learner([[[0], [9]], [[5], [1]]], double=double)
    learner.target.entries.assign([[[9], [9]], [[2], [7]]])
    result = learner.update(table_batch((0, 0, 1, 0.5, 1, 1)))
    assert_allclose(result.errors, [expected])  # the absolute TD error, not its Huber loss
    assert_allclose(result.loss, expected - 0.5)
    assert_allclose(result.q_mean, 9)  # of the greedy action in s_tm1


@pytest.mark.parametrize("double", [True, False])
def test_munchausen_literal(double):
    # By the target, both actions of s0 have probability 1/2: a bonus of 0.9 * 0.03 ln(1/2) for the
    # one taken. The policy of s1 is the online network's if double, with probabilities of 1/4 and
    # 3/4, and the target's otherwise, with 1/2 each; the target values s1 at 2 and 2.
    learner = table_learner(
        [[[0], [9]], [[0.03 * np.log(0.25)], [0.03 * np.log(0.75)]]],
        double=double,
        munchausen=True,
    )
    learner.target.entries.assign([[[5], [5]], [[2], [2]]])
    result = learner.update(table_batch((0, 0, 1, 0.5, 1, 1)))
    policy = np.array([0.25, 0.75] if double else [0.5, 0.5])
    soft = 2 - 0.03 * np.sum(policy * np.log(policy))
    expected = 1 + 0.9 * 0.03 * np.log(0.5) + 0.5 * soft
    assert_allclose(result.errors, [expected], rtol=1e-5)


def numbered_images(batch=64, height=12, width=10):
    """Images [B, 2, H, W] whose pixels are their numbers, row by row; the second frame is +1."""
    pixels = np.arange(height * width, dtype=np.uint8).reshape(height, width)
    return np.tile(np.stack([pixels, pixels + 1]), (batch, 1, 1, 1))


def test_shifts_are_of_up_to_4_pixels_and_repeat_the_edge():
    images = numbered_images()
    padded = np.pad(images[0], ((0, 0), (4, 4), (4, 4)), mode="edge")
    shifted = random_shift(tf.constant(images), tf.constant([1, 2])).numpy()
    assert shifted.dtype == np.uint8
    seen = set()
    for example in shifted:
        found = [
            (y, x)
            for y, x in itertools.product(range(9), repeat=2)
            if np.array_equal(example, padded[:, y : y + 12, x : x + 10])
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert {y for y, _ in seen} == {x for _, x in seen} == set(range(9))
    assert len(seen) > 30


def test_a_shift_moves_rows_and_columns_of_planes():
    planes = np.stack([numbered_images(8)] * 3, axis=-1)  # [B, S, H, W, C]
    shifted = random_shift(tf.constant(planes), tf.constant([1, 2])).numpy()
    plain = random_shift(tf.constant(planes[..., 0]), tf.constant([1, 2])).numpy()
    assert_array_equal(shifted, np.stack([plain] * 3, axis=-1))


def test_updates_shift_each_observation_anew():
    seen = []

    class Watcher(Table):
        def call(self, observations, training=False):
            seen.append(observations.numpy())
            return tf.zeros((len(observations), 2, 1)) + self.entries[:1]

    networks = [Watcher([[[0], [0]]]) for _ in range(2)]
    with eager_functions():
        learner = Learner(
            online=networks[0],
            target=networks[1],
            support=None,
            double=True,
            priority="td",
            optimizer=make_optimizer(settings()),
            shift_seed=1,
        )
        images, zeros = numbered_images(32), np.zeros(32, np.float32)
        batch = Batch(images, zeros.astype(np.int32), zeros, zeros, images, zeros + 1)
        learner.update(batch)
        learner.update(batch)
    # The target and the selector see the same shifted s_t; s_tm1 has shifts of its own.
    target, selector, prediction = seen[:3]
    assert_array_equal(target, selector)
    assert not np.array_equal(target, prediction)
    assert not np.array_equal(target, seen[3])
    assert learner.variables["shifts"][0].numpy().tolist()[1] == 4  # draws so far


@pytest.mark.parametrize("double", [True, False])
def test_selection_is_by_the_mean_not_the_mode(double):
    # On the atoms 0, 5, 10 action 0 has (0.3, 0.7, 0), mean 3.5, mode 5; action 1 has
    # (0.55, 0, 0.45), mean 4.5, mode 0. By the mean the target is action 1's, and the
    # prediction is uniform: 0.55 ln(3 * 0.55) + 0.45 ln(3 * 0.45) = 0.410473.
    actions = np.log([[0.3, 0.7, 1e-12], [0.55, 1e-12, 0.45]])
    entries = [np.zeros((2, 3)), actions]
    learner = table_learner(entries, support=np.float32([0, 5, 10]), double=double)
    result = learner.update(table_batch((0, 0, 0, 1, 1, 1)))
    assert_allclose(result.errors, [0.410473], rtol=1e-5)


def test_adam_step_literal():
    # q(s0, a0) = 1, target 3: the TD error 2 is clipped to 1, times the weight 0.001 is the
    # gradient g = -0.001. Adam's first step is lr g / (|g| + eps / sqrt(1 - 0.999)):
    # 0.001 / (0.001 + 0.00015 * 31.6228) = 0.001 / 0.00574342 = 0.174112.
    # Keras's own epsilon of 1e-7 would make it 0.99685.
    learner = table_learner([[[1], [2]], [[0], [0]]])
    learner.update(table_batch((0, 0, 3, 0, 1, 0.001)))
    assert_allclose(learner.online.entries, [[[1.174112], [2]], [[0], [0]]], rtol=1e-5)


def test_two_steps_of_dqn_rmsprop_literal():
    # q = 1, target 3 and then again 3: the TD errors above 1 are clipped, so g = -1 twice, with
    # a learning rate of 0.1, a decay of 0.95 and 0.01 in the root.
    # Step 1: mean square 0.05, mean -0.05: 0.1 / sqrt(0.05 - 0.0025 + 0.01) = 0.417029.
    # Step 2: mean square 0.0975, mean -0.0975: 0.1 / sqrt(0.0975 - 0.00950625 + 0.01) = 0.319449.
    dqn = {"optimizer": "rmsprop", "rmsprop_epsilon": 0.01}
    learner = table_learner([[[1], [2]], [[0], [0]]], learning_rate=0.1, **dqn)
    learner.update(table_batch((0, 0, 3, 0, 1, 1)))
    assert_allclose(learner.online.entries[0, 0], [1.417029], rtol=1e-5)
    learner.update(table_batch((0, 0, 3, 0, 1, 1)))
    assert_allclose(learner.online.entries[0, 0], [1.736478], rtol=1e-5)


def test_default_rmsprop_equals_dqn_on_summed_gradients():
    # DQN sums the gradients of 32 examples and has 0.01 in the root; ours averages them.
    rng = np.random.default_rng(1)
    learner = table_learner(np.zeros((2, 2, 1)), optimizer="rmsprop", learning_rate=0.00025)
    q, mean, square = np.zeros((2, 2)), np.zeros((2, 2)), np.zeros((2, 2))
    for _ in range(5):
        state, action = rng.integers(2, size=(2, 32))
        reward = rng.normal(scale=0.02, size=32)
        ones, zeros = np.ones(32), np.zeros(32, int)
        learner.update(table_batch(*zip(state, action, reward, zeros, zeros, ones, strict=True)))
        gradient = np.zeros((2, 2))
        np.add.at(gradient, (state, action), q[state, action] - reward)
        mean = 0.95 * mean + 0.05 * gradient
        square = 0.95 * square + 0.05 * gradient**2
        q -= 0.00025 * gradient / np.sqrt(square - mean**2 + 0.01)
        assert_allclose(learner.online.entries[..., 0], q, rtol=1e-4)


def test_uncentred_rmsprop_step_literal():
    # 0.1 / sqrt(0.01 + 0.1) with a decay of 0.99 and an epsilon of 0.1, as in A3C.
    a3c = {"rmsprop_decay": 0.99, "rmsprop_epsilon": 0.1, "rmsprop_centered": False}
    learner = table_learner([[[1], [2]], [[0], [0]]], optimizer="rmsprop", learning_rate=0.1, **a3c)
    learner.update(table_batch((0, 0, 3, 0, 1, 1)))
    assert_allclose(learner.online.entries[0, 0], [1.301511], rtol=1e-5)


def test_gradient_norm_is_clipped():
    # Two examples with gradients -1 / 2 each: their norm is 0.707107. RMSProp with a decay of 0
    # and a huge epsilon is plain descent: a step is lr g / 1000.
    plain = {"optimizer": "rmsprop", "rmsprop_decay": 0.0, "rmsprop_epsilon": 1e6}
    plain |= {"rmsprop_centered": False, "learning_rate": 1000.0}
    batch = table_batch((0, 0, 3, 0, 1, 1), (1, 1, 3, 0, 1, 1))
    for max_norm, step in ((None, 0.5), (10.0, 0.5), (0.070710678, 0.05)):
        learner = table_learner([[[1], [2]], [[0], [0]]], max_grad_norm=max_norm, **plain)
        learner.update(batch)
        expected = [[[1 + step], [2]], [[0], [step]]]
        assert_allclose(learner.online.entries, expected, rtol=1e-4)


def test_clipped_norm_is_global():
    # The gradients 3 and 4 have a norm of 5; clipped to 1 they are 0.6 and 0.8.
    plain = {"optimizer": "rmsprop", "rmsprop_decay": 0.0, "rmsprop_epsilon": 1e6}
    plain |= {"rmsprop_centered": False, "learning_rate": 1000.0}
    optimizer = make_optimizer(settings(max_grad_norm=1.0, **plain))
    weights = [keras.Variable(0.0), keras.Variable(0.0)]
    optimizer.build(weights)
    optimizer.apply([tf.constant(3.0), tf.constant(4.0)])
    assert_allclose([float(weight) for weight in weights], [-0.6, -0.8], rtol=1e-4)


def test_priorities_by_kl_cross_entropy_and_td_error():
    # The support is 0, 5, 10. All logits are 0: the mean is 5. The reward of 2.5 with no bootstrap
    # gives the target (0.5, 0.5, 0) with entropy ln 2 = 0.693147 and mean 2.5.
    # Cross-entropy with a third each: ln 3 = 1.098612; KL: ln 3 - ln 2; TD error: 2.5 - 5.
    errors, steps = {}, []
    for priority in ("kl", "ce", "td"):
        learner = table_learner(
            np.zeros((2, 2, 3)), support=np.float32([0, 5, 10]), priority=priority
        )
        result = learner.update(table_batch((0, 0, 2.5, 0, 1, 1)))
        errors[priority] = result.errors[0]
        assert result.loss == pytest.approx(0.405465, rel=1e-5)
        steps.append(learner.online.entries.numpy())
    assert_allclose(list(errors.values()), [0.405465, 1.098612, 2.5], rtol=1e-5)
    # The target is constant, so the gradient does not depend on the priority.
    assert_array_equal(steps[0], steps[1])
    assert_array_equal(steps[0], steps[2])


def test_perfect_prediction_has_zero_kl_but_not_zero_cross_entropy():
    # All distributions are uniform, also the target with discount 1 and reward 0.
    uniform = np.zeros((2, 2, 3))
    for priority, error in (("kl", 0.0), ("ce", np.log(3)), ("td", 0.0)):
        learner = table_learner(uniform, support=np.float32([0, 5, 10]), priority=priority)
        result = learner.update(table_batch((0, 0, 0, 1, 1, 1)))
        assert_allclose(result.errors, [error], atol=1e-6)


def test_default_optimizer_is_that_of_the_paper():
    config = Config(game="pong")
    learner = make_learner(config, learning_rate=config.learning_rate)
    assert type(learner.optimizer) is keras.optimizers.Adam
    assert learner.optimizer.epsilon == 1.5e-4
    assert float(learner.optimizer.learning_rate) == pytest.approx(6.25e-5)
    assert (learner.optimizer.beta_1, learner.optimizer.beta_2) == (0.9, 0.999)


@pytest.mark.usefixtures("eagerly")
def test_gradient_is_the_weighted_mean_of_the_examples():
    # Support 0, 1 and logits of 0: prediction (0.5, 0.5). A terminal reward of 1 is the
    # target (0, 1), so that an example's gradient is (0.5, -0.5) times its weight, over B = 2.
    # The optimizer is plain gradient descent with a learning rate of 1.
    learner = table_learner(np.zeros((2, 2, 2)), support=np.float32([0, 1]))
    learner.optimizer = keras.optimizers.SGD(1.0)
    learner.optimizer.build(learner.online.trainable_variables)
    result = learner.update(table_batch((0, 0, 1, 0, 0, 0.2), (1, 1, 1, 0, 0, 0.8)))
    expected = np.zeros((2, 2, 2))
    expected[0, 0] = [-0.05, 0.05]
    expected[1, 1] = [-0.2, 0.2]
    assert_allclose(learner.online.entries, expected, atol=1e-7)
    assert_allclose(result.errors, [np.log(2)] * 2, rtol=1e-6)  # priorities are not weighted
    assert_allclose(result.loss, np.log(2) * (0.2 + 0.8) / 2, rtol=1e-6)


def test_example_of_weight_zero_has_no_effect(rainbow):
    weight = np.ones(BATCH_SIZE, np.float32)
    weight[3] = 0
    batch = make_batch(weight=weight, discount_t=np.zeros(BATCH_SIZE, np.float32))
    start = values_of(all_variables(rainbow))
    rainbow.update(batch)
    after = values_of(rainbow.online.trainable_variables)
    restore(rainbow, start)
    other_reward = batch.reward_t.copy()
    other_reward[3] = 7
    other_action = batch.action_tm1.copy()
    other_action[3] = (other_action[3] + 1) % 3
    rainbow.update(batch._replace(reward_t=other_reward, action_tm1=other_action))
    for one, other in zip(after, values_of(rainbow.online.trainable_variables), strict=True):
        assert_allclose(one, other, atol=1e-7)


def test_target_changes_only_with_update_target(rainbow):
    target = values_of(rainbow.target.trainable_variables)
    assert_same(target, values_of(rainbow.online.trainable_variables))  # initially equal
    for seed in range(3):
        rainbow.update(make_batch(seed))
    assert_same(target, values_of(rainbow.target.trainable_variables))
    online = values_of(rainbow.online.trainable_variables)
    assert any(differ(target, online))
    seeds = values_of(rainbow.target.non_trainable_variables)
    rainbow.update_target()
    assert_same(online, values_of(rainbow.target.trainable_variables))
    assert_same(online, values_of(rainbow.online.trainable_variables))
    # Its noise stays independent: a copied seed state would repeat the online network's noise.
    assert_same(seeds, values_of(rainbow.target.non_trainable_variables))
    observation = make_batch().observation_t
    noise = rainbow.online(observation, training=True) - rainbow.target(observation, training=True)
    assert np.abs(noise).max() > 1e-3


def test_errors_are_the_kl_divergence():
    # Without noise the three passes can be repeated here.
    config = settings(noisy=False)
    learner = make_learner(config)
    learner.update(make_batch(1))  # now online and target network differ
    support, batch = make_support(config), make_batch()
    logits_tm1 = learner.online(batch.observation_tm1).numpy()
    selector = losses.q_values(support, learner.online(batch.observation_t)).numpy()
    logits_t = learner.target(batch.observation_t)
    action_t = selector.argmax(axis=1).astype(np.int32)
    target = losses.categorical_target(
        support, batch.reward_t, batch.discount_t, logits_t, action_t
    ).numpy()
    chosen = tf.nn.softmax(logits_tm1[np.arange(BATCH_SIZE), batch.action_tm1]).numpy()
    ratio = np.where(target > 0, target, 1) / np.where(target > 0, chosen, 1)
    expected = np.sum(target * np.log(ratio), axis=1)
    q_tm1 = (tf.nn.softmax(logits_tm1) @ support[:, None]).numpy()[..., 0]
    result = learner.update(batch)
    assert_allclose(result.errors, expected, rtol=1e-3, atol=1e-5)
    assert_allclose(result.loss, np.mean(batch.weight * expected), rtol=1e-3)
    assert_allclose(result.q_mean, q_tm1.max(axis=1).mean(), rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("double", [True, False])
def test_errors_without_distributions_are_absolute_td_errors(double):
    learner = make_learner(settings(noisy=False, distributional=False, double=double))
    for _ in range(5):
        learner.update(make_batch(1))
    batch = make_batch(reward_t=np.linspace(-3, 3, BATCH_SIZE, dtype=np.float32))
    rows = np.arange(BATCH_SIZE)
    q_tm1 = learner.online(batch.observation_tm1).numpy()[..., 0]
    q_t = learner.target(batch.observation_t).numpy()[..., 0]
    selector = learner.online(batch.observation_t).numpy()[..., 0] if double else q_t
    target = batch.reward_t + batch.discount_t * q_t[rows, selector.argmax(axis=1)]
    expected = np.abs(target - q_tm1[rows, batch.action_tm1])
    assert expected.max() > 1.5
    assert_allclose(learner.update(batch).errors, expected, rtol=1e-4, atol=1e-5)


def test_overfits_one_batch(rainbow):
    rainbow.optimizer.learning_rate = 3e-3
    batch = make_batch()
    results = [rainbow.update(batch).loss for _ in range(200)]
    assert np.mean(results[-10:]) < 0.1 * results[0]


def test_observation_after_a_terminal_does_not_matter(rainbow):
    start = values_of(all_variables(rainbow))
    ended = make_batch(discount_t=np.zeros(BATCH_SIZE, np.float32))
    first = rainbow.update(ended)
    after = values_of(rainbow.online.trainable_variables)
    restore(rainbow, start)
    second = rainbow.update(ended._replace(observation_t=make_batch(9).observation_t))
    assert_allclose(first.errors, second.errors, rtol=1e-5)
    for one, other in zip(after, values_of(rainbow.online.trainable_variables), strict=True):
        assert_allclose(one, other, atol=1e-6)


def test_same_state_same_updates(rainbow):
    start = values_of(all_variables(rainbow))
    runs = []
    for _ in range(2):
        restore(rainbow, start)
        errors = [rainbow.update(make_batch(seed)).errors for seed in range(10)]
        runs.append([*errors, *values_of(all_variables(rainbow))])
    assert_same(*runs)


@pytest.mark.usefixtures("eagerly")
def test_same_seed_same_learner():
    def after_updates(seed, updates):
        learner = make_learner(settings(), seed=seed)
        for batch_seed in range(updates):
            learner.update(make_batch(batch_seed))
        return values_of(all_variables(learner))

    assert_same(after_updates(seed=1, updates=3), after_updates(seed=1, updates=3))
    assert all(differ(after_updates(seed=1, updates=1)[:4], after_updates(seed=2, updates=1)[:4]))


def test_updates_are_traced_once(rainbow):
    (compiled,) = [
        function
        for function in vars(rainbow).values()
        if hasattr(function, "experimental_get_tracing_count")
    ]
    for seed in range(20):
        rainbow.update(make_batch(seed))
        if seed % 5 == 0:
            rainbow.update_target()
    assert compiled.experimental_get_tracing_count() == 1
