"""Noisy layers and the dueling head: formulas, statistics, and the contract with Keras."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rainbow_tf.agent.layers import NoisyDense, QuantileHead, ReturnHead, SpectralConv2D

# f(eps) = sign(eps) sqrt|eps| with eps ~ N(0, 1) has variance E|eps| = sqrt(2 / pi).
NOISE_VARIANCE = np.sqrt(2 / np.pi)


def eager(function):
    return function


def graph(function):
    return tf.function(function, jit_compile=False, autograph=False)


def compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


# Compiled code draws other numbers from the same distribution, so both modes are tested.
both_modes = pytest.mark.parametrize("mode", [eager, compiled])


def noisy_layer(fan_in, units, **kwargs):
    layer = NoisyDense(units, seed=kwargs.pop("seed", 7), **kwargs)
    layer.build((None, fan_in))
    return layer


def seed_state(layer):
    return layer.seed_generator.state.numpy()


def random(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def only_noise(layer):
    """Sets means to 0 and sigmas to 1, so that outputs are the noise."""
    for weight in (layer.kernel, layer.bias):
        weight.assign(tf.zeros_like(weight))
    for weight in (layer.kernel_sigma, layer.bias_sigma):
        weight.assign(tf.ones_like(weight))


def seen_noise(layer, mode=eager, groups=None):
    """The noise of one call on the kernel and the bias, measured from its outputs.

    An input of 0 shows the bias noise; the unit vectors show the kernel noise on top of it.
    """
    only_noise(layer)
    fan_in = layer.kernel.shape[0]
    probes = np.vstack([np.eye(fan_in), np.zeros(fan_in)]).astype(np.float32)
    if groups is not None:
        probes = np.stack([probes] * groups)
    outputs = mode(lambda x: layer(x, training=True))(tf.constant(probes)).numpy()
    bias_noise = outputs[..., -1, :]
    return outputs[..., :-1, :] - bias_noise[..., None, :], bias_noise


def randomise(layer, seed=0):
    """Sets random weights."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))


def formula(layer, inputs, kernel_noise, bias_noise):
    """Equation 4 of the paper in NumPy: y = (b + W x) + (b_n * eps_b + (W_n * eps_w) x)."""
    kernel, bias, kernel_sigma, bias_sigma = (
        w.numpy().astype(np.float64)
        for w in (layer.kernel, layer.bias, layer.kernel_sigma, layer.bias_sigma)
    )
    return bias + inputs @ kernel + bias_sigma * bias_noise + inputs @ (kernel_sigma * kernel_noise)


@pytest.mark.parametrize("fan_in", [4, 400])
@pytest.mark.parametrize("sigma0", [0.5, 0.1, 0.0])
def test_initial_weights(fan_in, sigma0):
    # Units differ from inputs, so that a wrong fan shows.
    layer = noisy_layer(fan_in, 900, sigma0=sigma0)
    bound = 1 / np.sqrt(fan_in)
    for mean in (layer.kernel.numpy(), layer.bias.numpy()):
        assert np.abs(mean).max() <= bound
        assert mean.max() > 0.98 * bound
        assert mean.min() < -0.98 * bound
        assert_allclose(mean.std(), bound / np.sqrt(3), rtol=0.05)  # uniform
    assert_allclose(layer.kernel_sigma, np.full((fan_in, 900), sigma0 * bound), rtol=1e-6)
    assert_allclose(layer.bias_sigma, np.full(900, sigma0 * bound), rtol=1e-6)


def test_default_sigma0_is_that_of_the_paper():
    assert_allclose(noisy_layer(16, 3).kernel_sigma, np.full((16, 3), 0.5 / 4))


def test_literal_noise(monkeypatch):
    # f(eps) of the inputs (2, -1) and of the outputs (3, -2):
    # W + W_n * eps = [[1 + 0.5*6, 2 + 1*-4], [3 + 1*-3, 4 + 0.5*2]] = [[4, -2], [0, 5]]
    # b + b_n * eps = [1 + 0.1*3, -1 + 0.2*-2] = [1.3, -1.4]
    # x = (1, 2) gives (4 + 0 + 1.3, -2 + 10 - 1.4) = (5.3, 6.6).
    layer = noisy_layer(2, 2)
    layer.kernel.assign([[1, 2], [3, 4]])
    layer.bias.assign([1, -1])
    layer.kernel_sigma.assign([[0.5, 1], [1, 0.5]])
    layer.bias_sigma.assign([0.1, 0.2])
    noise_in, noise_out = tf.constant([[2.0, -1.0]]), tf.constant([[3.0, -2.0]])
    monkeypatch.setattr(layer, "draw_noise", lambda groups: (noise_in, noise_out))
    inputs = np.float32([[1, 2]])
    assert_allclose(layer(inputs, training=True), [[5.3, 6.6]], rtol=1e-6)
    assert_allclose(layer(inputs[None], training=True), [[[5.3, 6.6]]], rtol=1e-6)
    assert_allclose(layer(inputs, training=False), [[8, 9]], rtol=1e-6)  # b + x W


def test_draw_noise_is_f_of_a_normal():
    # eps = sign(n) n^2 inverts n = f(eps); the moments of eps are those of N(0, 1).
    layer = noisy_layer(30, 20)
    noise_in, noise_out = layer.draw_noise(5000)
    assert noise_in.shape == (5000, 30)
    assert noise_out.shape == (5000, 20)
    for noise in (noise_in.numpy(), noise_out.numpy()):
        epsilon = np.sign(noise) * noise**2
        assert_allclose(epsilon.mean(), 0, atol=0.02)
        assert_allclose(epsilon.var(), 1, atol=0.03)
        assert_allclose((epsilon**4).mean(), 3, atol=0.2)
        assert_allclose((np.abs(epsilon) < 1).mean(), 0.6827, atol=0.01)


@both_modes
def test_kernel_noise_is_an_outer_product_with_the_bias_noise(mode):
    kernel_noise, bias_noise = seen_noise(noisy_layer(6, 5), mode)
    noise_in = kernel_noise[:, 0] / bias_noise[0]
    assert_allclose(kernel_noise, np.outer(noise_in, bias_noise), rtol=1e-3, atol=1e-5)
    assert np.linalg.matrix_rank(kernel_noise, tol=1e-4) == 1
    assert len(np.unique(np.abs(np.concatenate([noise_in, bias_noise])))) == 11  # none is shared


def test_kernel_noise_of_each_group_is_an_outer_product():
    kernel_noise, bias_noise = seen_noise(noisy_layer(6, 5), groups=3)
    for kernel, bias in zip(kernel_noise, bias_noise, strict=True):
        noise_in = kernel[:, 0] / bias[0]
        assert_allclose(kernel, np.outer(noise_in, bias), rtol=1e-3, atol=1e-5)
    for one, other in itertools.combinations(range(3), 2):
        assert np.abs(bias_noise[one] - bias_noise[other]).min() > 0
        assert np.abs(kernel_noise[one] - kernel_noise[other]).min() > 0


@both_modes
@pytest.mark.parametrize("groups", [None, 4])
def test_output_equals_the_formula(mode, groups):
    layer = noisy_layer(4, 6)
    before = seed_state(layer)
    kernel_noise, bias_noise = seen_noise(layer, mode, groups)
    layer.seed_generator.state.assign(before)
    randomise(layer)
    inputs = random((5, 4) if groups is None else (groups, 5, 4))
    outputs = mode(lambda x: layer(x, training=True))(tf.constant(inputs))
    if groups is None:
        expected = formula(layer, inputs, kernel_noise, bias_noise)
    else:
        expected = np.stack(
            [
                formula(layer, inputs[group], kernel_noise[group], bias_noise[group])
                for group in range(groups)
            ]
        )
    assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    fan_in=st.integers(1, 7),
    units=st.integers(1, 15),
    groups=st.integers(1, 3),
    rows=st.integers(1, 4),
)
def test_group_equals_a_shared_draw_with_the_same_noise(fan_in, units, groups, rows):
    layer = noisy_layer(fan_in, units)
    randomise(layer)
    inputs = random((groups, rows, fan_in))
    noise_in, noise_out = layer.draw_noise(groups)
    layer.draw_noise = lambda groups: (noise_in, noise_out)
    together = layer(inputs, training=True)
    for group in range(groups):
        own = (noise_in[group : group + 1], noise_out[group : group + 1])
        layer.draw_noise = lambda groups, own=own: own
        alone = layer(inputs[group], training=True)
        assert_allclose(together[group], alone, rtol=1e-4, atol=1e-4)


@both_modes
def test_noise_is_fresh_in_every_call(mode):
    layer = noisy_layer(4, 3)
    call = mode(lambda x: layer(x, training=True))
    inputs = tf.constant(random((2, 4)))
    outputs = [call(inputs).numpy() for _ in range(4)]
    for one, other in itertools.combinations(outputs, 2):
        assert np.abs(one - other).min() > 0


def test_rows_of_a_matrix_share_noise():
    outputs = noisy_layer(4, 3)(np.ones((5, 4), np.float32), training=True).numpy()
    assert_allclose(outputs, outputs[:1].repeat(5, axis=0), rtol=1e-6)


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4)])
def test_mean_layer_without_training(shape):
    layer = noisy_layer(4, 6)
    randomise(layer)
    before = seed_state(layer)
    inputs = random(shape)
    expected = inputs @ layer.kernel.numpy() + layer.bias.numpy()
    first, second = layer(inputs, training=False), layer(inputs, training=False)
    assert_array_equal(first, second)
    assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
    assert_array_equal(seed_state(layer), before)  # no noise was drawn


def test_noise_is_off_by_default():
    layer = noisy_layer(4, 3)
    inputs = random((2, 4))
    assert_array_equal(layer(inputs), layer(inputs, training=False))


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4)])
def test_noise_follows_the_dtype_policy(shape):
    layer = NoisyDense(3, seed=7, dtype="mixed_bfloat16")
    outputs = layer(random(shape), training=True)
    assert layer.kernel.dtype == "float32"
    assert outputs.dtype == tf.bfloat16
    full = noisy_layer(4, 3)(random(shape), training=True)
    assert_allclose(tf.cast(outputs, tf.float32), full, atol=0.05)


def test_activation_comes_after_the_noise():
    plain, relu = noisy_layer(4, 30), noisy_layer(4, 30, activation="relu")
    inputs = random((5, 4))
    outputs = plain(inputs, training=True).numpy()
    assert (outputs < 0).any()
    assert_allclose(relu(inputs, training=True), np.maximum(outputs, 0))


@both_modes
def test_mean_and_variance_of_the_output(mode):
    # y_j = mu_j + n_j (s_j + sum_i n_i x_i S_ij) with independent n of variance v and mean 0:
    # E y_j = mu_j,  Var y_j = v s_j^2 + v^2 sum_i x_i^2 S_ij^2.
    layer = noisy_layer(3, 4)
    randomise(layer)
    draws = 40_000
    inputs = random((1, 1, 3))
    outputs = mode(lambda x: layer(x, training=True))(tf.constant(inputs.repeat(draws, axis=0)))
    outputs = outputs.numpy()[:, 0]
    variance = NOISE_VARIANCE * np.square(layer.bias_sigma) + NOISE_VARIANCE**2 * np.square(
        inputs[0, 0]
    ) @ np.square(layer.kernel_sigma)
    standard_error = np.sqrt(variance / draws)
    mean = layer(inputs, training=False).numpy()[0, 0]
    assert np.all(np.abs(outputs.mean(axis=0) - mean) < 5 * standard_error)
    assert_allclose(outputs.var(axis=0), variance, rtol=0.08)


def test_shared_noise_has_the_same_statistics():
    # The other code path: one draw per call, many calls.
    layer = noisy_layer(3, 64)
    layer.kernel_sigma.assign(tf.ones((3, 64)))
    layer.bias_sigma.assign(tf.ones(64))
    inputs = np.float32([[1, 2, 0]])
    mean = layer(inputs)
    call = graph(lambda x: layer(x, training=True) - mean)
    deviations = np.stack([call(tf.constant(inputs)).numpy() for _ in range(1500)])
    variance = NOISE_VARIANCE + NOISE_VARIANCE**2 * 5  # 1^2 + 2^2 = 5
    assert_allclose(np.square(deviations).mean(), variance, rtol=0.1)
    assert_allclose(deviations.mean(), 0, atol=0.05)


@both_modes
@pytest.mark.parametrize("groups", [None, 2])
def test_gradient_reaches_every_weight(mode, groups):
    # dy/dW = x, dy/db = 1, dy/dW_n = x * eps_w, dy/db_n = eps_b, summed over the rows.
    layer = noisy_layer(3, 4)
    before = seed_state(layer)
    kernel_noise, bias_noise = seen_noise(layer, mode, groups)
    layer.seed_generator.state.assign(before)
    inputs = random((5, 3) if groups is None else (groups, 5, 3))
    names = [v.name for v in layer.trainable_variables]

    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, training=True))
        return tape.gradient(loss, layer.trainable_variables)

    found = dict(zip(names, mode(gradients)(tf.constant(inputs)), strict=True))
    sums = np.atleast_2d(inputs.sum(axis=-2))  # [G, in]
    kernel_noise = kernel_noise.reshape(-1, 3, 4)
    bias_noise = bias_noise.reshape(-1, 4)
    expected_kernel_sigma = (sums[:, :, None] * kernel_noise).sum(axis=0)
    assert_allclose(found["kernel"], sums.sum(0)[:, None].repeat(4, axis=1), rtol=1e-4, atol=1e-5)
    assert_allclose(found["bias"], np.full(4, 5.0 * len(sums)), rtol=1e-5)
    assert_allclose(found["kernel_sigma"], expected_kernel_sigma, rtol=1e-3, atol=1e-4)
    assert_allclose(found["bias_sigma"], 5 * bias_noise.sum(axis=0), rtol=1e-4, atol=1e-5)


@both_modes
def test_seed_state_determines_the_noise(mode):
    layer = noisy_layer(4, 3)
    call = mode(lambda x: layer(x, training=True))
    inputs = tf.constant(random((2, 4)))
    before = seed_state(layer)
    first = call(inputs).numpy()
    layer.seed_generator.state.assign(before)
    assert_array_equal(call(inputs), first)
    layer.seed_generator.state.assign([before[0] + 1, before[1]])  # same count, another seed
    assert np.abs(call(inputs) - first).min() > 0


def test_seed_determines_weights_and_noise():
    inputs = random((2, 4))
    first = noisy_layer(4, 3)(inputs, training=True)
    assert_array_equal(noisy_layer(4, 3)(inputs, training=True), first)
    other = noisy_layer(4, 3, seed=8)
    assert np.abs(other(inputs) - noisy_layer(4, 3)(inputs)).min() > 0
    only_noise(other)
    same = noisy_layer(4, 3)
    only_noise(same)
    assert np.abs(other(inputs, training=True) - same(inputs, training=True)).min() > 0


def test_seed_state_is_a_variable():
    # `layer.weights` and Keras's files omit it: checkpoints must save `layer.variables`.
    layer = noisy_layer(4, 3)
    assert any(variable is layer.seed_generator.state for variable in layer.variables)


def test_graph_and_eager_agree():
    layer = noisy_layer(4, 3)
    inputs = tf.constant(random((2, 4)))
    before = seed_state(layer)
    first = layer(inputs, training=True)
    layer.seed_generator.state.assign(before)
    assert_allclose(graph(lambda x: layer(x, training=True))(inputs), first, rtol=1e-5)


def test_one_call_is_one_draw():
    # Checkpoints and the tests that count draws rely on it.
    layer = noisy_layer(4, 3)
    before = seed_state(layer)
    layer(random((2, 4)), training=True)
    layer(random((3, 2, 4)), training=True)
    assert_array_equal(seed_state(layer) - before, [0, 2])


def test_noise_scale_is_the_mean_absolute_sigma():
    layer = noisy_layer(2, 2)
    layer.kernel_sigma.assign([[1, -2], [3, 0]])
    assert float(layer.noise_scale()) == pytest.approx(1.5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"units": 0},
        {"units": -2},
        {"units": 4, "sigma0": -0.1},
        {"units": 4, "activation": "no_such_activation"},
    ],
)
def test_noisy_dense_rejects(arguments):
    with pytest.raises(ValueError, match=r".+"):
        NoisyDense(arguments.pop("units"), **arguments)


NOISY_ARGUMENTS = {
    "units": 6,
    "sigma0": 0.25,
    "activation": "relu",
    "seed": 11,
    "name": "noisy",
}
HEAD_ARGUMENTS = {
    "num_actions": 3,
    "num_atoms": 5,
    "hidden_units": 4,
    "dueling": False,
    "noisy": False,
    "sigma0": 0.25,
    "layer_norm": True,
    "seed": 11,
    "name": "head",
}
QUANTILE_ARGUMENTS = {
    **{name: value for name, value in HEAD_ARGUMENTS.items() if name != "num_atoms"},
    "num_levels": 6,
    "num_cosines": 5,
}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (NoisyDense, NOISY_ARGUMENTS),
        (ReturnHead, HEAD_ARGUMENTS),
        (QuantileHead, QUANTILE_ARGUMENTS),
    ],
)
def test_keras_contract(kind, arguments):
    """No argument has its default value, so that a forgotten one shows."""
    positional = {"units", "num_actions", "num_atoms", "num_levels"}
    layer = kind(
        *(value for name, value in arguments.items() if name in positional),
        **{name: value for name, value in arguments.items() if name not in positional},
    )
    config = layer.get_config()
    assert {name: config[name] for name in arguments} == arguments
    assert kind.from_config(config).get_config() == config
    revived = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(revived) is kind
    assert revived.get_config() == config
    inputs = random((2, 4))
    assert layer.compute_output_shape((2, 4)) == layer(inputs).shape
    assert layer.compute_output_shape((2, 7, 4)) == layer(np.stack([inputs] * 7, axis=1)).shape
    assert_array_equal(revived(inputs), layer(inputs))  # same seed, same initial weights


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("noisy", [True, False])
def test_saved_models_load_with_the_same_outputs(tmp_path, dueling, noisy):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            NoisyDense(6, activation="relu", seed=1),
            ReturnHead(3, 5, hidden_units=4, dueling=dueling, noisy=noisy, seed=2),
        ]
    )
    inputs = random((7, 4))
    model(inputs, training=True)  # advances the seed state, which must not affect the mean
    for weight in model.trainable_variables:
        weight.assign(weight + 0.1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_array_equal(loaded(inputs), model(inputs))
    assert_allclose(loaded.predict(inputs, verbose=0), model(inputs), rtol=1e-5, atol=1e-6)


def head(features=3, **kwargs):
    layer = ReturnHead(
        kwargs.pop("num_actions", 4), kwargs.pop("num_atoms", 5), **{"seed": 3, **kwargs}
    )
    layer.build((None, features))
    return layer


def parts(layer):
    """The dense layers of a dueling head."""
    return layer.value_hidden, layer.value, layer.advantage_hidden, layer.advantage


@pytest.mark.parametrize("noisy", [True, False])
def test_dueling_literal(noisy):
    # x = 1: the value's hidden unit is 2, the advantage's 3.
    # Value, per atom: (2, -2). Advantages: (3, 0), (0, 3), (6, 6), their mean over actions (3, 3).
    # (2 + 3 - 3, -2 + 0 - 3), (2 + 0 - 3, -2 + 3 - 3), (2 + 6 - 3, -2 + 6 - 3).
    layer = head(1, num_actions=3, num_atoms=2, hidden_units=1, noisy=noisy)
    layer.value_hidden.kernel.assign([[2]])
    layer.advantage_hidden.kernel.assign([[3]])
    layer.value.kernel.assign([[1, -1]])
    layer.advantage.kernel.assign([[1, 0, 0, 1, 2, 2]])
    for part in parts(layer):
        part.bias.assign(tf.zeros_like(part.bias))
    assert_allclose(layer(np.float32([[1]])), [[[2, -5], [-1, -2], [5, 1]]])
    # Negative hidden units are cut off by the ReLU.
    assert_allclose(layer(np.float32([[-1]])), [[[0, 0], [0, 0], [0, 0]]])


def test_without_dueling_literal():
    layer = head(1, num_actions=3, num_atoms=2, hidden_units=1, noisy=False, dueling=False)
    layer.advantage_hidden.kernel.assign([[2]])
    layer.advantage.kernel.assign([[1, 0, 0, 1, 2, 2]])
    layer.advantage.bias.assign([0, 0, 0, 0, 0, 1])
    assert_allclose(layer(np.float32([[1]])), [[[2, 0], [0, 2], [4, 5]]])


def with_same_noise(layer, features):
    """A noisy head that is always called with the same seed state."""
    for part in parts(layer):
        part.seed_generator.state.assign([5, 0])
    return layer(features, training=True).numpy()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(6, 3), (6, 2, 3)])
def test_value_and_advantage_streams_are_separate(training, shape):
    # The mean of the outputs over actions is the value; the rest are centred advantages.
    layer = head(hidden_units=8)
    features = random(shape)

    def streams():
        outputs = with_same_noise(layer, features) if training else layer(features).numpy()
        value = outputs.mean(axis=-2)
        return value, outputs - value[..., None, :]

    value, advantage = streams()
    assert np.ptp(advantage, axis=-2).min() > 0
    for weight in layer.advantage_hidden.trainable_variables:
        weight.assign_add(tf.ones_like(weight))
    value_after, advantage_after = streams()
    assert_allclose(value_after, value, atol=2e-5)
    assert np.abs(advantage_after - advantage).max() > 0.1
    for weight in layer.value_hidden.trainable_variables:
        weight.assign_add(tf.ones_like(weight))
    value_last, advantage_last = streams()
    assert np.abs(value_last - value).max() > 0.1
    assert_allclose(advantage_last, advantage_after, atol=2e-5)


@pytest.mark.parametrize("training", [False, True])
def test_advantages_are_centred_over_actions_not_atoms(training):
    # The mean over actions must not depend on the advantage stream, atom by atom.
    layer = head()
    features = random((6, 3))
    call = with_same_noise if training else (lambda layer, x: layer(x).numpy())
    before = call(layer, features)
    layer.advantage.kernel.assign(random(layer.advantage.kernel.shape))
    after = call(layer, features)
    assert_allclose(after.mean(axis=1), before.mean(axis=1), atol=1e-4)
    assert np.abs(after - before).max() > 0.1
    assert np.abs(after.sum(axis=2) - before.sum(axis=2)).max() > 0.1


def test_layers_of_a_head_do_not_share_noise():
    layer = head(8, num_actions=2, num_atoms=4, hidden_units=8)
    drawn = [
        np.concatenate([np.ravel(noise) for noise in part.draw_noise(1)]) for part in parts(layer)
    ]
    for one, other in itertools.combinations(drawn, 2):
        assert not np.intersect1d(one, other).size


@pytest.mark.parametrize("seed", [3, None])
def test_hidden_layers_of_a_dueling_head_draw_independent_noise(seed):
    # Chance correlations over 4000 draws have a standard deviation of 1 / sqrt(4000) = 0.016.
    layer = head(40, hidden_units=8, seed=seed)
    value, advantage = (
        np.concatenate(part.draw_noise(4000), axis=1)
        for part in (layer.value_hidden, layer.advantage_hidden)
    )
    between = np.corrcoef(value, advantage, rowvar=False)[:48, 48:]
    assert between.shape == (48, 48)
    assert np.abs(between).max() < 0.1
    assert not hasattr(head(hidden_units=8, dueling=False), "value_hidden")


@pytest.mark.parametrize("shape", [(6, 3), (6, 2, 3)])
def test_one_call_of_a_head_is_one_draw_per_layer(shape):
    layer = head(hidden_units=8)
    before = [seed_state(part) for part in parts(layer)]
    layer(random(shape), training=True)
    for part, state in zip(parts(layer), before, strict=True):
        assert_array_equal(seed_state(part) - state, [0, 1])


def test_initial_weights_of_a_head_are_bounded_by_fan_in():
    for noisy in (True, False):
        layer = head(100, hidden_units=400, noisy=noisy)
        assert_allclose(np.abs(layer.value_hidden.kernel).max(), 0.1, rtol=0.01)
        assert_allclose(np.abs(layer.advantage_hidden.kernel).max(), 0.1, rtol=0.01)
        assert np.abs(layer.value_hidden.kernel - layer.advantage_hidden.kernel).max() > 0.1
        assert_allclose(np.abs(layer.value.kernel).max(), 0.05, rtol=0.01)
        assert_allclose(np.abs(layer.advantage.kernel).max(), 0.05, rtol=0.01)
    layer = head(100, hidden_units=400, sigma0=2.0)
    for hidden in (layer.value_hidden, layer.advantage_hidden):
        assert_allclose(hidden.kernel_sigma, np.full((100, 400), 0.2), rtol=1e-6)
    assert_allclose(layer.value.kernel_sigma, np.full((400, 5), 0.1), rtol=1e-6)
    assert_allclose(layer.advantage.bias_sigma, np.full(20, 0.1), rtol=1e-6)


def test_layer_norm_stands_between_a_hidden_layer_and_its_relu():
    layer = head(layer_norm=True, noisy=False)
    randomise(layer)
    features = random((6, 3))
    before = layer(features).numpy()
    for hidden in (layer.advantage_hidden, layer.value_hidden):
        hidden.kernel.assign(7 * hidden.kernel)
        hidden.bias.assign(7 * hidden.bias)
    assert_allclose(layer(features), before, rtol=1e-3, atol=1e-4)  # no scale passes it
    normed = layer.norms[0](layer.advantage_hidden(features)).numpy()
    assert (normed < 0).any()  # the ReLU comes later


def quantile_head(**kwargs):
    layer = QuantileHead(3, kwargs.pop("num_levels", 8), num_cosines=5, seed=3, **kwargs)
    layer.build((None, 4))
    randomise(layer)
    return layer


def test_quantiles_by_hand():
    layer = quantile_head(noisy=False, dueling=False, hidden_units=6)
    features, levels = random((2, 4)), np.float32([[0.1, 0.7] * 4, [0.2, 0.9] * 4])
    outputs = layer(features, levels=levels).numpy()
    embedding, hidden, last = layer.embedding, layer.advantage_hidden, layer.advantage
    for example, which in itertools.product(range(2), range(8)):
        cosines = np.cos(np.pi * np.arange(5) * levels[example, which])
        embedded = np.maximum(cosines @ embedding.kernel.numpy() + embedding.bias.numpy(), 0)
        units = (features[example] * embedded) @ hidden.kernel.numpy() + hidden.bias.numpy()
        expected = np.maximum(units, 0) @ last.kernel.numpy() + last.bias.numpy()
        assert_allclose(outputs[example, :, which, 0], expected, rtol=1e-4, atol=1e-5)
        assert_allclose(outputs[example, :, which, 1], levels[example, which])


def test_levels_are_evenly_spaced_unless_training():
    layer = quantile_head()
    levels = layer(random((2, 4)))[..., 1].numpy()
    assert_allclose(levels, np.tile((np.arange(8) + 0.5) / 8, (2, 3, 1)))


@both_modes
def test_levels_in_training_are_uniform_and_fresh_for_every_example_and_call(mode):
    layer = quantile_head(num_levels=50)
    call = mode(lambda x: layer(x, training=True))
    levels = np.stack([call(tf.constant(random((20, 4)))).numpy() for _ in range(2)])[..., 1]
    assert (levels == levels[:, :, :1]).all()  # the same for all actions
    assert len(np.unique(levels)) > 0.99 * 2 * 20 * 50
    assert 0 <= levels.min() < levels.max() < 1
    assert_allclose(np.histogram(levels[:, :, 0], 4, (0, 1))[0], 500, atol=100)


def test_levels_of_an_example_share_its_noise():
    layer = quantile_head(dueling=False)
    same = np.full((5, 8), 0.3, np.float32)
    features = np.tile(random((1, 4)), (5, 1))
    shared = layer(features, training=True, levels=same).numpy()[..., 0]
    assert_allclose(shared, np.broadcast_to(shared[:1, :, :1], shared.shape), rtol=1e-5)
    grouped = layer(features[:, None], training=True, levels=same[:, None]).numpy()[:, 0, :, :, 0]
    assert_allclose(grouped, np.broadcast_to(grouped[..., :1], grouped.shape), rtol=1e-5)
    assert len(np.unique(grouped[:, 0, 0])) == 5  # each group draws its own


def spectral_conv():
    layer = SpectralConv2D(5, 3, padding="same", kernel_initializer="glorot_uniform")
    layer.build((None, 6, 6, 2))
    layer.kernel.assign(3 * random((3, 3, 2, 5)))
    layer.bias.assign(random(5))
    return layer


def test_spectral_norm_is_one_after_convergence():
    layer, images = spectral_conv(), random((2, 6, 6, 2))
    for _ in range(300):
        layer(images, training=True)
    largest = np.linalg.svd(layer.kernel.numpy().reshape(-1, 5), compute_uv=False)[0]
    plain = keras.ops.conv(images, layer.kernel / largest, padding="same") + layer.bias
    assert_allclose(layer(images), plain, rtol=1e-4, atol=1e-5)


def test_spectral_norm_is_estimated_in_training_only_and_the_kernel_stays():
    layer, images = spectral_conv(), random((2, 6, 6, 2))
    kernel, direction = layer.kernel.numpy(), layer.direction.numpy()
    layer(images)
    assert_array_equal(layer.direction, direction)
    layer(images, training=True)
    assert not np.array_equal(layer.direction, direction)
    assert_array_equal(layer.kernel, kernel)


def test_the_scale_of_a_spectral_kernel_has_no_gradient():
    layer, images = spectral_conv(), random((2, 6, 6, 2))
    for _ in range(300):
        layer(images, training=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(layer(images)))
    gradient = tape.gradient(loss, layer.kernel.value).numpy()
    along = float(np.sum(gradient * layer.kernel.numpy()))
    sizes = np.linalg.norm(gradient) * np.linalg.norm(layer.kernel.numpy())
    assert abs(along) < 1e-3 * sizes  # outputs do not depend on the kernel's scale
