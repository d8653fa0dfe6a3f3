"""Targets and losses: literal numbers, and properties for any input."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose

from rainbow_tf.agent import losses

SUPPORT = np.arange(5, dtype=np.float32)  # 0, 1, 2, 3, 4
PAPER_SUPPORT = np.linspace(-10, 10, 51, dtype=np.float32)

laws = settings(max_examples=60, deadline=None)


def eager(function):
    return function


def graph(function):
    return tf.function(function, jit_compile=False, autograph=False)


def compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


every_mode = pytest.mark.parametrize("mode", [eager, graph, compiled])


def f32(values):
    return tf.constant(values, tf.float32)


def i32(values):
    return tf.constant(values, tf.int32)


def distributions(shape):
    """Probabilities over the last axis, many of them exactly 0."""
    masses = st.one_of(st.just(0.0), st.floats(0.0625, 1.0, width=32))
    return hnp.arrays(np.float32, shape, elements=masses).map(_normalised)


def _normalised(masses):
    masses = masses.copy()
    masses[..., 0] += masses.sum(axis=-1) == 0
    return masses / masses.sum(axis=-1, keepdims=True)


@st.composite
def supports(draw):
    v_min = draw(st.integers(-10, 10))
    width = draw(st.integers(1, 20))
    return np.linspace(v_min, v_min + width, draw(st.integers(2, 60)), dtype=np.float32)


@st.composite
def projections(draw, beyond=True):
    """A support, and a distribution on atoms that can be on or beyond it."""
    support = draw(supports())
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 8)))
    low, high = float(support[0]), float(support[-1])
    margin = 30.0 if beyond else 0.0
    anywhere = st.floats(low - margin, high + margin, width=32)
    on_an_atom = st.sampled_from(support.tolist())
    atoms = draw(hnp.arrays(np.float32, shape, elements=st.one_of(anywhere, on_an_atom)))
    return support, atoms, draw(distributions(shape))


def slow_projection(support, atoms, probs):
    """Algorithm 1 of Bellemare et al. 2017, literally, one mass at a time.

    Its one gap is filled: with l = u (a target exactly on an atom) the text loses the mass.
    """
    support, atoms, probs = (np.asarray(x, np.float64) for x in (support, atoms, probs))
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    projected = np.zeros((len(atoms), len(support)))
    for row in range(len(atoms)):
        for atom, mass in zip(atoms[row], probs[row], strict=True):
            position = (np.clip(atom, support[0], support[-1]) - support[0]) / spacing
            position = min(position, len(support) - 1)
            lower, upper = int(np.floor(position)), int(np.ceil(position))
            if lower == upper:
                projected[row, lower] += mass
            else:
                projected[row, lower] += mass * (upper - position)
                projected[row, upper] += mass * (position - lower)
    return projected


@every_mode
@pytest.mark.parametrize(
    ("atoms", "probs", "expected"),
    [
        pytest.param([1, 3], [0.25, 0.75], [0, 0.25, 0, 0.75, 0], id="on_atoms"),
        pytest.param([0, 4], [0.25, 0.75], [0.25, 0, 0, 0, 0.75], id="on_the_ends"),
        # 1.25 is a quarter of the way from 1 to 2: three quarters of its mass stay with 1.
        pytest.param([1.25], [1], [0, 0.75, 0.25, 0, 0], id="between_atoms"),
        pytest.param([-3, 7], [0.4, 0.6], [0.4, 0, 0, 0, 0.6], id="beyond_the_ends"),
        # 0.5 gives 0.1 to 0 and 0.1 to 1; 1 keeps 0.3; 3.9 gives 0.02 to 3 and 0.18 to 4;
        # 4.1 is clipped to 4 with its 0.3.
        pytest.param(
            [0.5, 1, 3.9, 4.1], [0.2, 0.3, 0.2, 0.3], [0.1, 0.4, 0, 0.02, 0.48], id="all_of_it"
        ),
    ],
)
def test_project_literal(mode, atoms, probs, expected):
    projected = mode(losses.project)(f32(SUPPORT), f32([atoms]), f32([probs]))
    assert_allclose(projected, [expected], atol=1e-6)


def test_project_treats_rows_separately():
    atoms, probs = f32([[1, 1], [2, 3]]), f32([[0.5, 0.5], [0.25, 0.75]])
    projected = losses.project(f32(SUPPORT), atoms, probs)
    assert_allclose(projected, [[0, 1, 0, 0, 0], [0, 0, 0.25, 0.75, 0]], atol=1e-6)


@laws
@given(projections())
def test_project_equals_algorithm_1(case):
    support, atoms, probs = case
    projected = losses.project(f32(support), f32(atoms), f32(probs))
    assert_allclose(projected, slow_projection(support, atoms, probs), atol=3e-4)


@laws
@given(projections())
def test_project_keeps_the_mass(case):
    support, atoms, probs = case
    projected = losses.project(f32(support), f32(atoms), f32(probs)).numpy()
    assert projected.min() >= 0
    assert_allclose(projected.sum(axis=1), probs.sum(axis=1), atol=3e-4)


@laws
@given(projections(beyond=False))
def test_project_keeps_the_mean_inside_the_support(case):
    support, atoms, probs = case
    projected = losses.project(f32(support), f32(atoms), f32(probs))
    assert_allclose(projected @ support[:, None], (atoms * probs).sum(1)[:, None], atol=2e-3)


@laws
@given(supports(), st.data())
def test_project_of_the_support_itself_is_the_identity(support, data):
    probs = data.draw(distributions((2, len(support))))
    atoms = np.stack([support, support])
    assert_allclose(losses.project(f32(support), f32(atoms), f32(probs)), probs, atol=1e-4)


def test_project_keeps_every_atom_of_the_default_support():
    # 0.4 is not a binary fraction: an index from a division could be slightly off.
    atoms = PAPER_SUPPORT[:, None]
    projected = losses.project(f32(PAPER_SUPPORT), f32(atoms), tf.ones((51, 1)))
    assert_allclose(projected, np.eye(51), atol=1e-5)


@every_mode
def test_categorical_target_literal(mode):
    # R = 1 and gamma = 0.5 move the atoms 0..4 to 1, 1.5, 2, 2.5, 3. Of the masses
    # 0.1, 0.2, 0.4, 0.2, 0.1 atom 1 gets 0.1 + 0.1, atom 2 gets 0.1 + 0.4 + 0.1, atom 3 the rest.
    probs = [0.1, 0.2, 0.4, 0.2, 0.1]
    decoy = [0.0] * 5
    logits_t = f32([[np.log(probs), decoy], [decoy, np.log(probs)]])
    target = mode(losses.categorical_target)(
        f32(SUPPORT), f32([1, 1]), f32([0.5, 0.5]), logits_t, i32([0, 1])
    )
    assert_allclose(target, [[0, 0.2, 0.6, 0.2, 0]] * 2, atol=1e-6)


def test_categorical_target_bootstraps_from_the_given_action():
    # Action 1 has the largest mean, but a double-Q selector can choose 0.
    logits_t = f32([[[9, -9, -9, -9, -9], [-9, -9, -9, -9, 9]]] * 2)
    target = losses.categorical_target(
        f32(SUPPORT), f32([0, 0]), f32([1, 1]), logits_t, i32([0, 1])
    )
    assert_allclose(target, [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]], atol=1e-6)


@every_mode
def test_categorical_target_at_a_terminal_is_the_reward(mode):
    logits_t = tf.random.stateless_normal((4, 3, 5), (1, 2))
    rewards = f32([2, 2.5, -1, 9])
    target = mode(losses.categorical_target)(
        f32(SUPPORT), rewards, tf.zeros(4), logits_t, i32([0, 1, 2, 0])
    )
    expected = [[0, 0, 1, 0, 0], [0, 0, 0.5, 0.5, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert_allclose(target, expected, atol=1e-6)


def test_categorical_target_without_reward_or_discounting_is_the_prediction():
    logits_t = tf.random.stateless_normal((3, 2, 51), (3, 4))
    target = losses.categorical_target(
        f32(PAPER_SUPPORT), tf.zeros(3), tf.ones(3), logits_t, i32([1, 0, 1])
    )
    chosen = tf.stack([logits_t[0, 1], logits_t[1, 0], logits_t[2, 1]])
    assert_allclose(target, tf.nn.softmax(chosen), atol=1e-6)


@laws
@given(st.data())
def test_categorical_target_is_the_bellman_operator_in_the_mean(data):
    # |R + gamma z| <= 1 + 0.9 * 10 stays inside the support: the mean must be R + gamma q.
    reward = data.draw(hnp.arrays(np.float32, 3, elements=st.floats(-1, 1, width=32)))
    discount = data.draw(hnp.arrays(np.float32, 3, elements=st.floats(0, 0.875, width=32)))
    logits = data.draw(hnp.arrays(np.float32, (3, 2, 51), elements=st.floats(-5, 5, width=32)))
    action = data.draw(hnp.arrays(np.int32, 3, elements=st.integers(0, 1)))
    target = losses.categorical_target(
        f32(PAPER_SUPPORT), f32(reward), f32(discount), f32(logits), i32(action)
    )
    q_t = losses.q_values(PAPER_SUPPORT, f32(logits)).numpy()[np.arange(3), action]
    assert_allclose(target @ PAPER_SUPPORT[:, None], (reward + discount * q_t)[:, None], atol=1e-4)
    assert_allclose(tf.reduce_sum(target, axis=1), np.ones(3), atol=1e-5)


def test_no_gradient_flows_into_the_targets():
    logits_t = tf.Variable(tf.random.stateless_normal((2, 3, 5), (1, 2)))
    logits_tm1 = tf.Variable(tf.random.stateless_normal((2, 3, 5), (3, 4)))
    reward, discount, action = f32([1, 2]), f32([0.9, 0.9]), i32([0, 1])
    with tf.GradientTape(persistent=True) as tape:
        target = losses.categorical_target(f32(SUPPORT), reward, discount, logits_t, action)
        divergence = losses.categorical_td_loss(logits_tm1, action, target)
        error = losses.td_error(
            logits_tm1[..., 0], action, reward, discount, logits_t[..., 0], action
        )
    assert tape.gradient(divergence, logits_t) is None
    assert tape.gradient(error, logits_t) is None
    assert tape.gradient(divergence, logits_tm1) is not None
    assert tape.gradient(error, logits_tm1) is not None


@every_mode
def test_kl_literal(mode):
    # 0.5 ln(0.5 / 0.25) + 0.5 ln(0.5 / 0.75) = 0.5 (0.693147 - 0.405465) = 0.143841.
    # 1 ln(1 / 0.25) + 0 = 1.386294: above 1, must not be clipped.
    # 1 ln(1 / exp(-30)) = 30: a confident wrong prediction.
    prediction = np.log([0.25, 0.75])
    decoy = [3.0, -3.0]
    logits = f32([[prediction, decoy], [decoy, prediction], [[-30, 0], decoy]])
    target = f32([[0.5, 0.5], [1, 0], [1, 0]])
    divergence = mode(losses.categorical_td_loss)(logits, i32([0, 1, 0]), target)
    assert_allclose(divergence, [0.143841, 1.386294, 30], rtol=1e-5)


@laws
@given(st.data())
def test_kl_is_cross_entropy_minus_entropy_and_not_negative(data):
    atoms = data.draw(st.integers(2, 51))
    target = data.draw(distributions((3, atoms)))
    logits = data.draw(hnp.arrays(np.float32, (3, atoms), elements=st.floats(-10, 10, width=32)))
    divergence = losses.categorical_td_loss(f32(logits[:, None]), i32([0, 0, 0]), f32(target))
    cross_entropy = -np.sum(target * tf.nn.log_softmax(logits).numpy(), axis=1)
    entropy = -np.sum(target * np.log(np.where(target > 0, target, 1)), axis=1)
    assert np.min(divergence) >= -1e-5
    assert_allclose(divergence, cross_entropy - entropy, atol=1e-4)


@laws
@given(hnp.arrays(np.float32, (3, 2, 51), elements=st.floats(-10, 10, width=32)))
def test_kl_of_a_perfect_prediction_is_zero(logits):
    action = i32([1, 0, 1])
    target = tf.nn.softmax(tf.gather(f32(logits), action, batch_dims=1))
    divergence = losses.categorical_td_loss(f32(logits), action, target)
    assert_allclose(divergence, np.zeros(3), atol=1e-5)


@every_mode
def test_kl_gradient_is_prediction_minus_target_for_the_action_taken(mode):
    logits = tf.random.stateless_normal((3, 4, 5), (1, 2))
    action = i32([2, 0, 3])
    target = f32([[0, 0, 1, 0, 0], [0.5, 0, 0, 0, 0.5], [0.2] * 5])  # including masses of 0

    def gradient(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = tf.reduce_sum(losses.categorical_td_loss(logits, action, target))
        return tape.gradient(loss, logits)

    expected = np.zeros((3, 4, 5), np.float32)
    for row, chosen in enumerate([2, 0, 3]):
        expected[row, chosen] = tf.nn.softmax(logits[row, chosen]) - target[row]
    assert_allclose(mode(gradient)(logits), expected, atol=1e-6)


@every_mode
def test_kl_and_gradient_are_finite_for_extreme_logits(mode):
    logits = f32([[[500, -500, 0]], [[-500, 500, 0]]])
    target = f32([[1, 0, 0], [1, 0, 0]])

    def loss_and_gradient(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = losses.categorical_td_loss(logits, i32([0, 0]), target)
        return loss, tape.gradient(loss, logits)

    loss, gradient = mode(loss_and_gradient)(logits)
    assert_allclose(loss, [0, 1000], rtol=1e-6)
    assert_allclose(gradient, [[[0, 0, 0]], [[-1, 1, 0]]], atol=1e-6)


@every_mode
def test_td_error_literal(mode):
    # 1 + 0.5 * 2 - 4 = -2;  -1 + 0 * 7 - (-3) = 2;  0 + 1 * 6 - 5 = 1.
    error = mode(losses.td_error)(
        f32([[4, 9], [9, -3], [5, 9]]),
        i32([0, 1, 0]),
        f32([1, -1, 0]),
        f32([0.5, 0, 1]),
        f32([[2, 8], [8, 7], [8, 6]]),
        i32([0, 1, 1]),
    )
    assert_allclose(error, [-2, 2, 1])


def test_td_error_gradient_is_for_the_action_taken_only():
    values = tf.Variable([[4.0, 9.0, 1.0]])
    with tf.GradientTape() as tape:
        error = losses.td_error(values, i32([1]), f32([1]), f32([0.5]), f32([[2, 8, 3]]), i32([0]))
    assert_allclose(tape.gradient(error, values), [[0, -1, 0]])


@every_mode
def test_huber_literal(mode):
    # Half the square up to 1, then linear with slope 1.
    loss = mode(losses.huber)(f32([0, 0.5, 1, -1, 2, -3]))
    assert_allclose(loss, [0, 0.125, 0.5, 0.5, 1.5, 2.5])


def test_huber_gradient_is_the_clipped_error():
    error = f32([-5, -1, -0.25, 0, 0.25, 1, 5])
    with tf.GradientTape() as tape:
        tape.watch(error)
        loss = losses.huber(error)
    assert_allclose(tape.gradient(loss, error), [-1, -1, -0.25, 0, 0.25, 1, 1])


@every_mode
def test_q_values_literal(mode):
    # -1 * 0.2 + 0 * 0.3 + 1 * 0.5 = 0.3; equal logits have the middle of the support as mean.
    logits = f32([[np.log([0.2, 0.3, 0.5]), [7, 7, 7]]])
    values = mode(lambda outputs: losses.q_values(np.float32([-1, 0, 1]), outputs))(logits)
    assert_allclose(values, [[0.3, 0]], atol=1e-6)


def test_q_values_without_a_support_are_the_outputs():
    assert_allclose(losses.q_values(None, f32([[[1], [2]], [[3], [4]]])), [[1, 2], [3, 4]])


VECTOR, MATRIX, CUBE = tf.zeros(2), tf.zeros((2, 2)), tf.zeros((2, 2, 2))
ACTION = i32([0, 1])
ACTION_COLUMN = i32([[0], [1]])  # [B] and [B, 1] would silently broadcast to [B, B]
COLUMN = tf.zeros((2, 1))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        pytest.param(losses.q_values, (np.zeros(2, np.float32), MATRIX), id="q_values-outputs"),
        pytest.param(losses.q_values, (None, MATRIX), id="q_values-no_support-outputs"),
        pytest.param(losses.project, (MATRIX, MATRIX, MATRIX), id="project-support"),
        pytest.param(losses.project, (VECTOR, VECTOR, MATRIX), id="project-atoms"),
        pytest.param(losses.project, (VECTOR, MATRIX, VECTOR), id="project-probs"),
        *(
            pytest.param(losses.categorical_target, arguments, id=f"categorical_target-{name}")
            for name, arguments in {
                "reward": (VECTOR, COLUMN, VECTOR, CUBE, ACTION),
                "discount": (VECTOR, VECTOR, COLUMN, CUBE, ACTION),
                "logits": (VECTOR, VECTOR, VECTOR, MATRIX, ACTION),
                "action": (VECTOR, VECTOR, VECTOR, CUBE, ACTION_COLUMN),
            }.items()
        ),
        *(
            pytest.param(losses.categorical_td_loss, arguments, id=f"categorical_td_loss-{name}")
            for name, arguments in {
                "logits": (MATRIX, ACTION, MATRIX),
                "action": (CUBE, ACTION_COLUMN, MATRIX),
                "target": (CUBE, ACTION, VECTOR),
            }.items()
        ),
        *(
            pytest.param(losses.td_error, arguments, id=f"td_error-{name}")
            for name, arguments in {
                "values_tm1": (CUBE, ACTION, VECTOR, VECTOR, MATRIX, ACTION),
                "action_tm1": (MATRIX, ACTION_COLUMN, VECTOR, VECTOR, MATRIX, ACTION),
                "reward": (MATRIX, ACTION, COLUMN, VECTOR, MATRIX, ACTION),
                "discount": (MATRIX, ACTION, VECTOR, COLUMN, MATRIX, ACTION),
                "values_t": (MATRIX, ACTION, VECTOR, VECTOR, CUBE, ACTION),
                "action_t": (MATRIX, ACTION, VECTOR, VECTOR, MATRIX, ACTION_COLUMN),
            }.items()
        ),
    ],
)
def test_wrong_ranks_raise(function, arguments):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        function(*arguments)


def quantile_outputs(quantiles, levels):
    """Outputs [B, A, N, 2] of quantiles [B, A, N] at levels [N]."""
    quantiles = np.asarray(quantiles, np.float32)
    return f32(np.stack([quantiles, np.broadcast_to(levels, quantiles.shape)], axis=-1))


@every_mode
def test_quantile_loss_literal(mode):
    # Targets 2, -0.5 and 0.5. Quantile 0 at level 1/4 has Huber losses 1.5, 0.125 and 0.125 with
    # weights 1/4, 3/4 and 1/4: a mean of 0.5 / 3. Quantile 1 at level 3/4 has losses 0.5, 1 and
    # 0.125 with weights 3/4, 1/4 and 1/4: a mean of 0.65625 / 3.
    outputs = quantile_outputs([[[9, 9], [0, 1]]], [0.25, 0.75])
    loss = mode(losses.quantile_td_loss)(outputs, i32([1]), f32([[2, -0.5, 0.5]]))
    assert_allclose(loss, [(0.5 + 0.65625) / 3], rtol=1e-6)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_quantile_regression_finds_the_quantile(level):
    # Returns are uniform on [0, 1000]. The Huber threshold of 1 is far below their spread.
    target = np.linspace(0, 1000, 1001, dtype=np.float32)
    guesses = np.arange(0, 1001, 10, dtype=np.float32)
    outputs = quantile_outputs(guesses[:, None, None], [level])
    targets = np.tile(target, (len(guesses), 1))
    loss = losses.quantile_td_loss(outputs, i32(np.zeros(len(guesses))), f32(targets))
    assert guesses[np.argmin(loss)] == pytest.approx(1000 * level)


def test_quantile_loss_gradient_is_for_the_action_taken_and_not_the_target():
    outputs = tf.Variable(quantile_outputs([[[0, 1], [0, 1]]], [0.25, 0.75]))
    outputs_t = tf.Variable(quantile_outputs([[[5, 6], [7, 8]]], [0.25, 0.75]))
    with tf.GradientTape() as tape:
        loss, errors = losses.losses_and_errors(
            None, "td", outputs, i32([1]), f32([1]), f32([0.5]), outputs_t, i32([0])
        )
    gradient = tape.gradient(loss, [outputs, outputs_t])
    # Targets 3.5 and 4 are more than 1 above both quantiles: slopes -1/4 and -3/4.
    assert_allclose(gradient[0][..., 0], [[[0, 0], [-0.25, -0.75]]])
    assert gradient[1] is None
    assert_allclose(errors, [1 + 0.5 * 5.5 - 0.5])  # of the means


@every_mode
def test_value_of_quantiles_is_their_mean(mode):
    outputs = quantile_outputs([[[1, 2, 6], [0, 0, 3]]], [0.2, 0.5, 0.9])
    assert_allclose(mode(lambda x: losses.q_values(None, x))(outputs), [[3, 1]])


def test_quantiles_are_shown_on_atoms():
    outputs = quantile_outputs([[[0.5, 4], [1, 9]]], [0.25, 0.75])
    expected = [[[0.25, 0.25, 0, 0, 0.5], [0, 0.5, 0, 0, 0.5]]]
    assert_allclose(losses.return_probs(SUPPORT, outputs), expected)
    assert losses.return_probs(None, outputs) is None


SOFT = 0.03 * np.log([0.25, 0.75])  # values whose softmax at the temperature of 0.03 is 1/4 and 3/4


@every_mode
def test_munchausen_literal(mode):
    # The first example took the action of probability 1/4; the second one of hardly any, whose
    # bonus is cut off at -1; the third the only sensible one.
    values_tm1 = f32([SOFT, [0, 10], [0, 10]])
    values_t = f32([SOFT, SOFT, SOFT])
    munchausen = mode(losses.munchausen)
    reward, policy = munchausen(values_tm1, i32([0, 0, 1]), f32([1, 2, 3]), values_t)
    assert_allclose(reward, [1 + 0.9 * 0.03 * np.log(0.25), 2 - 0.9, 3], rtol=1e-6)
    assert_allclose(policy.probs, [[0.25, 0.75]] * 3, rtol=1e-5)
    assert_allclose(policy.bonus, [-SOFT] * 3, rtol=1e-4)


def soft(values_t):
    """The policy of these values, as `munchausen` returns it."""
    values_t = f32(values_t)
    return losses.munchausen(values_t, i32(np.zeros(len(values_t))), f32([0]), values_t)[1]


def test_without_its_weight_munchausen_is_the_soft_target(monkeypatch):
    monkeypatch.setattr(losses, "_MUNCHAUSEN_WEIGHT", 0.0)
    reward, _ = losses.munchausen(f32([[0, 10]]), i32([0]), f32([2]), f32([SOFT]))
    assert_allclose(reward, [2])
    error = losses.td_error(
        f32([[0, 9]]), i32([0]), f32([2]), f32([0.5]), f32([SOFT]), soft([SOFT])
    )
    # tau log(sum(exp(q / tau))) is 0 for these values.
    assert_allclose(error, [2], atol=1e-6)


@laws
@given(hnp.arrays(np.float32, (3, 4), elements=st.floats(-1, 1, width=32)))
def test_soft_value_is_the_scaled_log_sum_of_exponentials(values):
    error = losses.td_error(
        f32(np.zeros((3, 4))), i32([0] * 3), f32([0] * 3), f32([1] * 3), f32(values), soft(values)
    )
    exact = values.astype(np.float64)
    highest = exact.max(axis=1)
    sums = np.exp((exact - highest[:, None]) / 0.03).sum(axis=1)
    assert_allclose(error, highest + 0.03 * np.log(sums), atol=1e-4)


def test_soft_targets_of_distant_values_are_the_greedy_ones():
    reward, discount = f32([0.5, 0]), f32([0.9, 0])
    taken, best = i32([1, 0]), i32([1, 2])
    means = [[0, 3, 1], [2, 1, 4]]
    logits = -100 * np.abs(SUPPORT - np.array(means)[..., None])  # certain of these returns
    quantiles = np.array(means)[..., None] + [-0.25, 0.25]
    for support, outputs in (
        (SUPPORT, f32(logits)),
        (None, f32(means)[..., None]),
        (None, quantile_outputs(quantiles, [0.25, 0.75])),
    ):
        priority = "kl" if support is not None else "td"
        results = [
            losses.losses_and_errors(
                support, priority, outputs, taken, reward, discount, outputs, action
            )
            for action in (best, soft(losses.q_values(support, outputs)))
        ]
        for hard, smooth in zip(*results, strict=True):
            assert_allclose(smooth, hard, rtol=1e-4, atol=1e-5)


@laws
@given(st.data())
def test_soft_categorical_target_is_the_soft_bellman_operator_in_the_mean(data):
    support = np.linspace(-20, 20, 81, dtype=np.float32)
    probs = data.draw(distributions((2, 3, 81)))
    probs = np.where(np.abs(support) <= 10, probs, 0) + 1e-6  # its targets stay inside
    probs /= probs.sum(axis=-1, keepdims=True)
    logits = f32(np.log(probs))
    values = losses.q_values(support, logits)
    policy = soft(values)
    reward, discount = f32([0.5, -1]), f32([0.9, 0.5])
    target = losses.categorical_target(f32(support), reward, discount, logits, policy)
    expected = losses.td_error(f32(np.zeros((2, 3))), i32([0, 0]), reward, discount, values, policy)
    assert_allclose(np.sum(target, axis=1), [1, 1], rtol=1e-4)
    assert_allclose(np.sum(target * support, axis=1), expected, atol=1e-2)
