"""Networks: observations -> return logits (or values) of every action.

For A3C: observations -> policy logits and state values.
"""

import functools
import math
import random
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from rainbow_tf.agent.layers import (
    PatchConv2D,
    PolicyHead,
    QuantileHead,
    ReturnHead,
    SpectralConv2D,
    dense,
    fan_in_uniform,
    scaled,
)
from rainbow_tf.config import TORSO, Config, ConfigError
from rainbow_tf.files import open_zip
from rainbow_tf.process import named_object, one_line
from rainbow_tf.types import EnvironmentSpec

# (filters, kernel, stride) per convolution, units of the dense torso, units of the head.
_ARCHITECTURES: dict[str, tuple[tuple[tuple[int, int, int], ...], tuple[int, ...], int]] = {
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), (), 512),
    "dqn2013": (((16, 8, 4), (32, 4, 2)), (), 256),
    "data_efficient": (((32, 5, 5), (64, 5, 5)), (), 256),
    "minatar": (((16, 3, 1),), (), 128),
    "mlp": ((), (128,), 128),
    "impala": ((), (), 512),  # its convolutions are in ImpalaTorso
}
_IMPALA_FILTERS = (16, 32, 32)  # per stack, times the width
_IMPALA_POOLED = 6  # pixels per side
_LEVELS = 8  # of quantiles, in predictions, targets and acting (Clark et al. 2025)


@keras.saving.register_keras_serializable(package="rainbow_tf")
class Torso(keras.layers.Layer):
    """Images or vectors -> features [B, F]: convolutions with ReLUs, if any, then flattened."""

    def __init__(
        self, convolutions: Sequence[Sequence[int]], *, seeds: Sequence[int | None], **kwargs
    ):
        super().__init__(**kwargs)
        self.convolutions = [
            (PatchConv2D if kernel == stride else keras.layers.Conv2D)(
                filters,
                kernel,
                stride,
                padding="valid",
                activation="relu",
                kernel_initializer=fan_in_uniform(seed),
            )
            for (filters, kernel, stride), seed in zip(convolutions, seeds, strict=True)
        ]

    def build(self, input_shape):
        """Builds the convolutions for these images."""
        for layer in self.convolutions:
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def call(self, inputs):
        """[B, H, W, C] or [B, ...] -> [B, F]; bytes are scaled to [0, 1]."""
        for layer in self.convolutions:
            inputs = layer(inputs if isinstance(layer, PatchConv2D) else scaled(inputs))
        inputs = scaled(inputs)
        return ops.reshape(inputs, (-1, math.prod(inputs.shape[1:])))


@keras.saving.register_keras_serializable(package="rainbow_tf")
class ImpalaTorso(keras.layers.Layer):
    """Images -> features [B, F]: the residual network of IMPALA (Espeholt et al. 2018).

    As in Clark et al. 2025, its filters are multiplied by `width`, the residual convolutions can
    have a spectral norm of 1, and the last images are max-pooled to 6 x 6.
    """

    def __init__(self, width: int, *, spectral_norm: bool, seed: int, **kwargs):
        super().__init__(**kwargs)
        residual = SpectralConv2D if spectral_norm else keras.layers.Conv2D
        seeds = iter((np.random.SeedSequence(seed).generate_state(15) // 2).tolist())
        # Five per stack: the first one, and two residual blocks of two.
        self.convolutions = [
            make(width * filters, 3, padding="same", kernel_initializer=fan_in_uniform(next(seeds)))
            for filters in _IMPALA_FILTERS
            for make in (keras.layers.Conv2D, *[residual] * 4)
        ]

    def build(self, input_shape):
        """Builds the convolutions for these images."""
        for layer in self.convolutions:
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def call(self, inputs, training=False):
        """[B, H, W, C] -> [B, F]; bytes are scaled to [0, 1]."""
        features = scaled(inputs)
        for first in range(0, len(self.convolutions), 5):
            enter, *residual = self.convolutions[first : first + 5]
            features = ops.max_pool(enter(features), 3, 2, "same")
            for one, other in (residual[:2], residual[2:]):
                hidden = one(ops.relu(features), training=training)
                features += other(ops.relu(hidden), training=training)
        features = ops.relu(ops.adaptive_max_pool(features, (_IMPALA_POOLED, _IMPALA_POOLED)))
        return ops.reshape(features, (-1, math.prod(features.shape[1:])))


@keras.saving.register_keras_serializable(package="rainbow_tf")
class Network(keras.Model):
    """Observations [B, S, *frame] -> outputs of the head.

    A `ReturnHead` returns [B, A, N]: logits of N atoms, or values with N = 1. A `QuantileHead`
    returns quantiles and levels [B, A, N, 2], a `PolicyHead` logits [B, A] and values [B].
    """

    def __init__(
        self,
        *,
        torso: keras.layers.Layer,
        hidden: Sequence[keras.layers.Layer],
        head: keras.layers.Layer,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.torso = torso
        self.hidden = list(hidden)
        self.head = head

    def call(self, observations, training=False, noise_per_example=False, levels=None):
        """Adds noise if `training`: one draw for the batch, or one per example.

        `levels` [B, N] are those of a `QuantileHead`.
        """
        features = self.torso(channels_last(observations))
        given = {} if levels is None else {"levels": levels}
        if noise_per_example:
            features = features[:, None]  # groups of one: noisy layers draw noise per group
            given = {name: value[:, None] for name, value in given.items()}
        for layer in self.hidden:
            features = layer(features, training=training)
        outputs = self.head(features, training=training, **given)
        return outputs[:, 0] if noise_per_example else outputs

    def noise_scales(self) -> dict[str, float]:
        """Mean absolute sigma of every noisy layer, by layer path."""
        layers = [layer for layer in self._flatten_layers() if hasattr(layer, "noise_scale")]
        return {layer.path: float(layer.noise_scale()) for layer in layers}

    def get_config(self):
        """The layers, as Keras stores them."""
        return {
            **super().get_config(),
            "torso": keras.saving.serialize_keras_object(self.torso),
            "hidden": [keras.saving.serialize_keras_object(layer) for layer in self.hidden],
            "head": keras.saving.serialize_keras_object(self.head),
        }

    @classmethod
    def from_config(cls, config):
        """The network of these layers."""
        return cls(**keras.saving.deserialize_keras_object(config))


def channels_last(observations):
    """[B, S, *frame] -> images [B, H, W, S * C], vectors [B, D] if S is 1, others as they are."""
    rank = len(observations.shape) - 2
    if rank not in (2, 3):
        return observations[:, 0] if observations.shape[1] == 1 else observations
    if rank == 2:
        observations = observations[..., None]  # grey frames have one channel
    inputs = ops.transpose(observations, (0, 2, 3, 1, 4))  # [B, H, W, S, C]
    # Static except for the batch: Keras convolves unknown channels only with XLA.
    _, height, width, stack, channels = inputs.shape
    return ops.reshape(inputs, (-1, height, width, stack * channels))


def make_network(config: Config, spec: EnvironmentSpec, *, seed: int, name: str) -> Network:
    """The network of the settings, built for the environment."""
    convolutions, units, head_units = _architecture(config, spec)
    seeds = (np.random.SeedSequence(seed).generate_state(8).astype(int) // 2).tolist()
    seeds, torso_seeds = seeds[len(convolutions) :], seeds[: len(convolutions)]
    make_dense = functools.partial(dense, noisy=config.noisy, sigma0=config.noisy_sigma)
    hidden = [make_dense(count, activation="relu", seed=seeds.pop(0)) for count in units]
    head: keras.layers.Layer
    if config.algorithm == "a3c":
        head = PolicyHead(spec.num_actions, hidden_units=head_units, seed=seeds.pop(0))
    else:
        make_head: type[ReturnHead] = QuantileHead if config.has_quantiles else ReturnHead
        atoms = config.num_atoms if config.distributional else 1
        head = make_head(
            spec.num_actions,
            _LEVELS if config.has_quantiles else atoms,
            hidden_units=head_units,
            dueling=config.dueling,
            noisy=config.noisy,
            sigma0=config.noisy_sigma,
            layer_norm=config.layer_norm,
            seed=seeds.pop(0),
        )
    torso: keras.layers.Layer = Torso(convolutions, seeds=torso_seeds)
    if config.network == "impala":
        torso = ImpalaTorso(
            config.network_width, spectral_norm=config.spectral_norm, seed=seeds.pop(0)
        )
    elif is_own(config):
        torso = _own_torso(config, spec, seed)
    network = Network(torso=torso, hidden=hidden, head=head, name=name)
    network(np.zeros((1, spec.frame_stack, *spec.frame_shape), spec.frame_dtype))
    _spread_biases(network, np.random.default_rng(seed))
    return network


def is_own(config: Config) -> bool:
    """Whether the torso is the user's."""
    return ":" in config.network


def store_torso(config: Config, network: Network) -> None:
    """Stores a torso of one's own in the run folder, which needs its function no more."""
    path = config.folder / TORSO
    if is_own(config) and not path.exists():
        aside = path.with_name(f".part_{path.name}")
        aside.unlink(missing_ok=True)
        network.torso.save(aside)
        aside.replace(path)


def _own_torso(config: Config, spec: EnvironmentSpec, seed: int) -> keras.Model:
    """The run folder's torso, or one that the user's function makes."""
    stored = config.folder / TORSO
    if stored.exists() and not config.restart:
        with open_zip(stored):
            return keras.saving.load_model(stored, compile=False)
    module, _, name = config.network.partition(":")
    make = named_object("network", config.network)
    if make is None:
        raise ConfigError(f"--network={config.network}: {module} has no function {name}.")
    state = random.getstate()
    random.seed(seed)  # Keras seeds its initializers from Python's generator
    try:
        torso = make(spec)
        features = torso(np.zeros((2, *spec.observation_shape), spec.frame_dtype))
        shape = tuple(features.shape)
        copy = keras.saving.serialize_keras_object(torso)
        keras.saving.deserialize_keras_object(copy, safe_mode=True)
    except Exception as error:  # the user's function can raise anything
        raise ConfigError(
            f"--network={config.network} failed ({one_line(error)}); it must return a Keras model "
            f"without Lambda layers that takes batches of {spec.observation_shape} "
            f"{spec.frame_dtype}."
        ) from error
    finally:
        random.setstate(state)
    if len(shape) != 2 or shape[0] != 2:
        raise ConfigError(
            f"--network={config.network} maps a batch of 2 observations to {shape}; features must "
            "be [2, F]. End it with keras.layers.Flatten()."
        )
    return torso


def _spread_biases(network: Network, rng: np.random.Generator) -> None:
    """Draws biases from +-1/sqrt(fan_in), as in DQN and NoisyDense.

    With zero biases, a network with small inputs is slow to learn a constant.
    """
    convolutions = getattr(network.torso, "convolutions", [])  # a torso of one's own keeps its own
    # The last layer of the head first: the order decides which layer gets which random numbers,
    # and with it the results of every seed.
    for layer in (*convolutions, *network.hidden, *reversed(network.head._layers)):
        if isinstance(layer, (keras.layers.Dense, keras.layers.Conv2D)):
            bound = np.prod(layer.kernel.shape[:-1]) ** -0.5
            layer.bias.assign(rng.uniform(-bound, bound, layer.bias.shape))


def make_support(config: Config) -> np.ndarray | None:
    """The atoms z of the return distribution, or None for agents without one.

    Quantiles need none; they are shown on these.
    """
    if not config.distributional:
        return None
    return np.linspace(config.v_min, config.v_max, config.num_atoms, dtype=np.float32)


def _architecture(config: Config, spec: EnvironmentSpec) -> tuple:
    name = config.network
    is_image = len(spec.frame_shape) in (2, 3)
    size = min(spec.frame_shape[:2]) if is_image else 0
    if name == "auto" or is_own(config):  # the largest whose kernels fit
        large = "dqn2013" if config.algorithm == "a3c" else "nature"
        found = _ARCHITECTURES[large if size >= 36 else "minatar" if size >= 3 else "mlp"]
        return found if name == "auto" else ((), (), found[-1])
    convolutions, _, _ = _ARCHITECTURES[name]
    least = 1 if convolutions else 0
    if name == "impala":
        least, size = _IMPALA_POOLED, -(-size // 2 ** len(_IMPALA_FILTERS))
    for _, kernel, stride in convolutions:
        size = (size - kernel) // stride + 1
    if size < least:
        raise ConfigError(
            f"--network={name} needs larger images than frames of shape {spec.frame_shape}; "
            "omit --network to choose one automatically."
        )
    return _ARCHITECTURES[name]
