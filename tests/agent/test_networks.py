"""Networks: shapes of the paper, layout of observations, and noise."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal

from rainbow_tf.agent.layers import NoisyDense, PatchConv2D, SpectralConv2D
from rainbow_tf.agent.networks import make_network, make_support
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.types import EnvironmentSpec


def environment(frame_shape, dtype=np.uint8, frame_stack=1, num_actions=6):
    meanings = tuple(f"ACTION_{action}" for action in range(num_actions))
    return EnvironmentSpec(frame_shape, np.dtype(dtype), frame_stack, num_actions, meanings)


ATARI = environment((84, 84), frame_stack=4)
SMALL_ATARI = environment((36, 44), frame_stack=4)  # not square, to tell rows from columns
MINATAR = environment((10, 10, 4), bool, num_actions=3)
CARTPOLE = environment((4,), np.float32, num_actions=2)


def settings(**kwargs):
    return Config(environment="CartPole-v1", **kwargs)


def network_for(spec, seed=1, **kwargs):
    return make_network(settings(**kwargs), spec, seed=seed, name="online")


def observations(spec, batch=2, seed=0):
    shape = (batch, spec.frame_stack, *spec.frame_shape)
    rng = np.random.default_rng(seed)
    if spec.frame_dtype.kind == "u":
        return rng.integers(256, size=shape, dtype=np.uint8)
    if spec.frame_dtype.kind == "b":
        return rng.random(shape) < 0.5
    return rng.normal(size=shape).astype(spec.frame_dtype)


def linear_layers(network):
    head = network.head
    value = [head.value_hidden, head.value] if head.dueling else []
    return [*network.hidden, head.advantage_hidden, head.advantage, *value]


def parameters(network):
    return sum(int(np.prod(variable.shape)) for variable in network.trainable_variables)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(np.uint8, 255.0), (np.float32, 1.0)], ids=["bytes", "floats"]
)
def test_patch_conv_equals_a_convolution(dtype, scale):
    # 14 is two patches of 5 and a remainder of 4; 11 is two and a remainder of 1.
    images = (scale * np.random.default_rng(1).random((3, 14, 11, 4))).astype(dtype)
    patches = PatchConv2D(6, 5, 5, activation="relu", bias_initializer="normal")
    outputs = patches(images)
    plain = keras.layers.Conv2D(6, 5, 5, activation="relu")
    plain.build(images.shape)
    plain.set_weights(patches.get_weights())
    assert [v.name for v in patches.weights] == [v.name for v in plain.weights]
    assert_allclose(outputs, plain(np.float32(images / scale)), atol=5e-7)
    assert outputs.shape == patches.compute_output_shape(images.shape) == (3, 2, 2, 6)
    again = PatchConv2D.from_config(patches.get_config())
    again.build(images.shape)
    again.set_weights(patches.get_weights())
    assert_array_equal(again(images), outputs)


def test_patch_conv_needs_strides_equal_to_the_kernel_size():
    with pytest.raises(ValueError, match="strides=kernel_size"):
        PatchConv2D(6, 5, 4)


def test_nature_shapes():
    # (84 - 8) / 4 + 1 = 20, (20 - 4) / 2 + 1 = 9, (9 - 3) / 1 + 1 = 7; 7 * 7 * 64 = 3136.
    network = network_for(ATARI)
    shapes, outputs = [], tf.zeros((1, 84, 84, 4))
    for layer in network.torso.convolutions:
        outputs = layer(outputs)
        shapes.append(tuple(outputs.shape[1:]))
    assert shapes == [(20, 20, 32), (9, 9, 64), (7, 7, 64)]
    assert network.head.value_hidden.kernel.shape == (3136, 512)
    assert network.head.advantage_hidden.kernel.shape == (3136, 512)
    assert network.head.value.kernel.shape == (512, 51)
    assert network.head.advantage.kernel.shape == (512, 6 * 51)
    assert network(observations(ATARI)).shape == (2, 6, 51)


def test_impala_shapes_and_parameters():
    # Images are halved to 42, 21 and 11, then pooled to 6; 6 * 6 * 64 = 2304. First convolutions:
    # (9 * 4 + 1) * 32, (9 * 32 + 1) * 64, (9 * 64 + 1) * 64; four residual ones per stack:
    # 4 * (9 * 32 + 1) * 32, and twice 4 * (9 * 64 + 1) * 64.
    first = 37 * 32 + 289 * 64 + 577 * 64
    network = network_for(ATARI, network="impala")
    assert parameters(network.torso) == first + 4 * 289 * 32 + 2 * 4 * 577 * 64
    assert network.head.value_hidden.kernel.shape == (2304, 512)
    narrow = network_for(ATARI, network="impala", network_width=1, spectral_norm=False)
    assert narrow.head.value_hidden.kernel.shape == (1152, 512)
    spectral = [layer for layer in network.torso.convolutions if isinstance(layer, SpectralConv2D)]
    assert len(spectral) == 12
    assert not any(isinstance(layer, SpectralConv2D) for layer in narrow.torso.convolutions)


def test_residual_blocks_add_to_what_they_get():
    spec = environment((48, 48))
    torso = network_for(spec, network="impala", network_width=1, spectral_norm=False).torso
    for number, layer in enumerate(torso.convolutions):
        if number % 5 in (2, 4):  # the second convolution of a block
            layer.kernel.assign(tf.zeros_like(layer.kernel))
            layer.bias.assign(tf.zeros_like(layer.bias))
    images = tf.constant(observations(spec)[:, 0][..., None])
    features = tf.cast(images, tf.float32) / 255
    for layer in torso.convolutions[::5]:
        features = tf.nn.max_pool2d(layer(features), 3, 2, "SAME")
    expected = tf.reshape(tf.nn.relu(features), (2, -1))  # 6 x 6 already
    assert_allclose(torso(images), expected, rtol=1e-5, atol=1e-6)


def test_acting_leaves_the_kernels_of_a_spectral_network():
    spec = environment((48, 48))
    network = network_for(spec, network="impala", network_width=1)
    before = [variable.numpy() for variable in network.trainable_variables]
    direction = network.torso.convolutions[1].direction.numpy()
    network(observations(spec), training=True)
    for variable, value in zip(network.trainable_variables, before, strict=True):
        assert_array_equal(variable, value)
    assert not np.array_equal(network.torso.convolutions[1].direction, direction)


def test_nature_parameters_of_full_rainbow():
    # Convolutions: 8*8*4*32 + 32 = 8224, 4*4*32*64 + 64 = 32832, 3*3*64*64 + 64 = 36928.
    # Dense layers have a mean and a sigma for each weight and bias:
    # hidden, for value and advantage each: 2 * (3136*512 + 512) = 3212288,
    # value: 2 * (512*51 + 51) = 52326, advantage: 2 * (512*306 + 306) = 313956.
    expected = 8224 + 32832 + 36928 + 2 * 3212288 + 52326 + 313956
    assert expected == 6_868_842
    assert parameters(network_for(ATARI)) == expected


def test_nature_parameters_of_dqn():
    # The network of Mnih et al. 2015: 77984 + (3136*512 + 512) + (512*6 + 6) = 1687206.
    dqn = network_for(ATARI, dueling=False, distributional=False, noisy=False)
    assert parameters(dqn) == 77_984 + 1_606_144 + 3_078 == 1_687_206
    assert dqn(observations(ATARI)).shape == (2, 6, 1)


def test_data_efficient_shapes():
    # (84 - 5) // 5 + 1 = 16, (16 - 5) // 5 + 1 = 3; 3 * 3 * 64 = 576, and 256 hidden units.
    network = network_for(ATARI, network="data_efficient")
    assert [layer.filters for layer in network.torso.convolutions] == [32, 64]
    assert network.head.value_hidden.kernel.shape == (576, 256)
    assert network.head.advantage_hidden.kernel.shape == (576, 256)
    assert network(observations(ATARI)).shape == (2, 6, 51)


def test_minatar_shapes():
    # One convolution: 10 - 3 + 1 = 8; 8 * 8 * 16 = 1024 features, 128 hidden units.
    network = network_for(MINATAR)
    assert [layer.filters for layer in network.torso.convolutions] == [16]
    assert network.torso.convolutions[0].kernel.shape == (3, 3, 4, 16)
    assert network.head.value_hidden.kernel.shape == (1024, 128)
    assert network.head.advantage_hidden.kernel.shape == (1024, 128)
    assert network(observations(MINATAR)).shape == (2, 3, 51)


def test_mlp_shapes():
    network = network_for(CARTPOLE)
    assert network.torso.convolutions == []
    assert [layer.kernel.shape for layer in network.hidden] == [(4, 128)]
    assert network.head.value_hidden.kernel.shape == (128, 128)
    assert network.head.advantage_hidden.kernel.shape == (128, 128)
    assert network(observations(CARTPOLE)).shape == (2, 2, 51)


def test_convolutions_have_relus_and_bounded_initial_weights():
    network = network_for(ATARI)
    for layer, fan_in in zip(
        network.torso.convolutions, (8 * 8 * 4, 4 * 4 * 32, 9 * 64), strict=True
    ):
        assert layer.activation is keras.activations.relu
        assert_allclose(np.abs(layer.kernel).max(), fan_in**-0.5, rtol=0.02)


@pytest.mark.parametrize(
    ("spec", "filters"),
    [
        (ATARI, [32, 64, 64]),
        (environment((36, 36)), [32, 64, 64]),  # the smallest image for nature's kernels
        (environment((35, 84)), [16]),
        (environment((60, 48, 3)), [32, 64, 64]),
        (MINATAR, [16]),
        (environment((3, 3)), [16]),
        (CARTPOLE, []),
        (environment((2, 2, 2, 2)), []),
    ],
)
def test_auto_chooses_by_the_observation(spec, filters):
    network = network_for(spec)
    assert [layer.filters for layer in network.torso.convolutions] == filters
    assert len(network.hidden) == (0 if filters else 1)
    assert network(observations(spec)).shape == (2, spec.num_actions, 51)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("nature", environment((35, 84))),
        ("nature", environment((84, 35))),
        ("data_efficient", environment((24, 84))),
        ("minatar", environment((2, 10, 4))),
        ("nature", CARTPOLE),
        ("data_efficient", CARTPOLE),
        ("minatar", CARTPOLE),
        ("impala", CARTPOLE),
        ("impala", environment((40, 84))),  # a row of 40 is halved to 20, 10 and 5, below 6
    ],
)
def test_too_small_images_are_rejected(name, spec):
    with pytest.raises(ConfigError, match=f"--network={name}"):
        network_for(spec, network=name)


@pytest.mark.parametrize("shape", [(2, 2), (1, 10, 4)])
def test_auto_accepts_images_too_small_for_convolutions(shape):
    spec = environment(shape)
    assert network_for(spec)(observations(spec)).shape == (2, 6, 51)


@pytest.mark.parametrize("name", ["nature", "data_efficient"])
def test_smallest_images_are_accepted(name):
    spec = environment((36, 36) if name == "nature" else (25, 25))
    assert network_for(spec, network=name)(observations(spec)).shape == (2, 6, 51)


def test_bytes_are_scaled_to_one():
    network = network_for(SMALL_ATARI)
    frames = observations(SMALL_ATARI)
    assert_allclose(network(frames), network(np.float32(frames) / 255), atol=1e-6)
    assert np.abs(network(frames) - network(np.float32(frames))).max() > 0.1


@pytest.mark.parametrize("spec", [MINATAR, CARTPOLE])
def test_booleans_and_floats_are_not_scaled(spec):
    # The first layer computed here: any scaling would show.
    network = network_for(spec)
    inputs = observations(spec)
    first = [*network.torso.convolutions, *network.hidden][0]
    features = first(np.float32(inputs[:, 0]))
    features = tf.reshape(features, (2, -1))
    assert_allclose(network(inputs), network.head(features), atol=1e-5)


@pytest.mark.parametrize(
    "spec",
    [SMALL_ATARI, environment((10, 12, 3), np.float32, frame_stack=2)],
    ids=["grey_frames", "frames_with_channels"],
)
def test_stacked_frames_become_channels(spec):
    network = network_for(spec)
    inputs = observations(spec)
    frames = np.float32(inputs) / (255 if spec.frame_dtype == np.uint8 else 1)
    frames = frames.reshape(*frames.shape[:4], -1)  # [B, S, H, W, C]
    outputs = np.concatenate([frames[:, s] for s in range(spec.frame_stack)], axis=-1)
    for layer in network.torso.convolutions:
        outputs = layer(outputs)
    assert_allclose(network(inputs), network.head(tf.reshape(outputs, (2, -1))), atol=1e-5)


def test_permuted_frames_are_permuted_channels():
    network = network_for(SMALL_ATARI)
    inputs, order = observations(SMALL_ATARI), [2, 0, 3, 1]
    before = network(inputs).numpy()
    assert np.abs(network(inputs[:, order]) - before).max() > 1e-4
    kernel = network.torso.convolutions[0].kernel
    kernel.assign(kernel.numpy()[:, :, order])
    assert_allclose(network(inputs[:, order]), before, atol=1e-5)


def test_corner_of_a_frame_is_the_corner_of_the_image():
    # The bottom right pixel of the newest frame is only in the last window. With 44 x 36 pixels,
    # swapped rows and columns, or frames and rows, would put it elsewhere.
    network = network_for(SMALL_ATARI)
    seen = []
    dark = np.zeros((1, 4, 36, 44), np.uint8)
    bright = dark.copy()
    bright[0, 3, 35, 43] = 255
    first = network.torso.convolutions[0]
    call = first.call
    first.call = lambda inputs: seen.append(call(inputs)) or seen[-1]
    network(dark)
    network(bright)
    changed = np.abs(seen[1] - seen[0]).sum(axis=-1)[0]
    assert changed.shape == (8, 10)
    assert np.argwhere(changed > 0).tolist() == [[7, 9]]


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("spec", [SMALL_ATARI, CARTPOLE], ids=["nature", "mlp"])
def test_all_dense_layers_are_noisy_or_none(spec, dueling, noisy):
    network = network_for(spec, noisy=noisy, dueling=dueling, noisy_sigma=0.25)
    assert all(isinstance(layer, NoisyDense) is noisy for layer in linear_layers(network))
    names = [variable.name for variable in network.trainable_variables]
    linear_kernels = names.count("kernel") - len(network.torso.convolutions)
    assert linear_kernels == len(linear_layers(network))
    assert names.count("kernel_sigma") == (linear_kernels if noisy else 0)
    assert len(network.noise_scales()) == (linear_kernels if noisy else 0)
    if noisy:
        for layer in linear_layers(network):
            sigma = 0.25 / np.sqrt(layer.kernel.shape[0])
            assert_allclose(layer.kernel_sigma, np.full(layer.kernel.shape, sigma), rtol=1e-6)


@pytest.mark.parametrize("spec", [MINATAR, CARTPOLE], ids=["minatar", "mlp"])
def test_noise_per_example_or_shared(spec):
    network = network_for(spec)
    inputs = observations(spec, batch=1).repeat(4, axis=0)
    own = network(inputs, training=True, noise_per_example=True).numpy()
    for one, other in itertools.combinations(own, 2):
        assert np.abs(one - other).max() > 1e-3
    shared = network(inputs, training=True).numpy()
    assert_allclose(shared, shared[:1].repeat(4, axis=0), atol=1e-6)
    assert np.abs(shared[0] - own[0]).max() > 1e-3


def test_noise_is_fresh_in_every_call_and_off_by_default():
    network = network_for(CARTPOLE)
    inputs = observations(CARTPOLE)
    first, second = network(inputs, training=True), network(inputs, training=True)
    assert np.abs(first - second).max() > 1e-3
    assert_array_equal(network(inputs), network(inputs, training=False))
    assert_array_equal(network(inputs), network(inputs))
    assert_allclose(network(inputs, noise_per_example=True), network(inputs), atol=1e-6)


def test_layers_and_networks_do_not_share_noise():
    # Equal widths everywhere, so that a shared seed would show as shared numbers.
    layers = [layer for seed in (1, 2) for layer in linear_layers(network_for(CARTPOLE, seed=seed))]
    drawn = [np.concatenate([np.ravel(noise) for noise in x.draw_noise(1)]) for x in layers]
    assert len(drawn) == 10
    for one, other in itertools.combinations(drawn, 2):
        assert np.intersect1d(one, other).size <= 2  # floats can match by chance


def test_seeds_determine_the_weights():
    inputs = observations(CARTPOLE)
    first = network_for(CARTPOLE, seed=1)(inputs, training=True)
    assert_array_equal(network_for(CARTPOLE, seed=1)(inputs, training=True), first)
    assert np.abs(network_for(CARTPOLE, seed=2)(inputs) - first).max() > 1e-3


def test_noise_scales_are_the_initial_sigmas():
    # sigma0 / sqrt(fan_in): 0.5 / sqrt(4), then 0.5 / sqrt(128) four times.
    scales = network_for(CARTPOLE).noise_scales()
    assert_allclose(sorted(scales.values()), [0.0441942] * 4 + [0.25], rtol=1e-5)


def test_support_literal():
    # z_i = v_min + (i - 1) (v_max - v_min) / (N - 1): 20 / 50 = 0.4 apart.
    support = make_support(settings())
    assert support.shape == (51,)
    assert support.dtype == np.float32
    assert_allclose(support[[0, 1, 25, 50]], [-10, -9.6, 0, 10], atol=1e-6)


def test_support_can_start_at_zero():
    assert_allclose(make_support(settings(v_min=0.0, v_max=4.0, num_atoms=5)), [0, 1, 2, 3, 4])


def test_no_support_without_distributions():
    assert make_support(settings(distributional=False)) is None


@pytest.mark.parametrize(
    ("spec", "kwargs"),
    [(SMALL_ATARI, {}), (MINATAR, {"dueling": False}), (CARTPOLE, {"algorithm": "a3c"})],
    ids=["atari", "minatar", "a3c"],
)
def test_a_network_saves_to_keras_and_loads_again(spec, kwargs, tmp_path):
    network = network_for(spec, **kwargs)
    network.save(tmp_path / "network.keras")
    loaded = keras.saving.load_model(tmp_path / "network.keras")
    inputs = observations(spec)
    for one, other in zip(
        tf.nest.flatten(network(inputs)), tf.nest.flatten(loaded(inputs)), strict=True
    ):
        assert_array_equal(one, other)


def test_biases_are_drawn_in_a_fixed_order():
    """Another order would change the results of every seed of agents without noise."""
    network = network_for(CARTPOLE, seed=3, noisy=False)
    head, rng = network.head, np.random.default_rng(3)
    order = (head.value, head.value_hidden, head.advantage, head.advantage_hidden)
    for layer in (*network.hidden, *order):
        bound = layer.kernel.shape[0] ** -0.5
        expected = rng.uniform(-bound, bound, layer.bias.shape)
        assert_array_equal(layer.bias, expected.astype(np.float32))
