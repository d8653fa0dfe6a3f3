"""Networks: observations -> return logits (or values) of every action.

For A3C: observations -> policy logits and state values.
"""

import functools
import math
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from rainbow_tf.agent.layers import (
    PatchConv2D,
    PolicyHead,
    ReturnHead,
    dense,
    fan_in_uniform,
    scaled,
)
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.types import EnvironmentSpec

# (filters, kernel, stride) per convolution, units of the dense torso, units of the head.
_ARCHITECTURES: dict[str, tuple[tuple[tuple[int, int, int], ...], tuple[int, ...], int]] = {
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), (), 512),
    "dqn2013": (((16, 8, 4), (32, 4, 2)), (), 256),
    "data_efficient": (((32, 5, 5), (64, 5, 5)), (), 256),
    "minatar": (((16, 3, 1),), (), 128),
    "mlp": ((), (128,), 128),
}


class Network(keras.Model):
    """Observations [B, S, *frame] -> outputs of the head.

    A `ReturnHead` returns [B, A, N]: logits of N atoms, or values with N = 1. A `PolicyHead`
    returns logits [B, A] and values [B].
    """

    def __init__(
        self,
        *,
        architecture: str,
        make_head: Callable[..., keras.layers.Layer],
        noisy: bool,
        sigma0: float,
        seed: int,
        **kwargs,
    ):
        super().__init__(**kwargs)
        convolutions, torso_units, head_units = _ARCHITECTURES[architecture]
        seeds = iter(np.random.SeedSequence(seed).generate_state(8).astype(int) // 2)
        self.convolutions = [
            (PatchConv2D if kernel == stride else keras.layers.Conv2D)(
                filters,
                kernel,
                stride,
                padding="valid",
                activation="relu",
                kernel_initializer=fan_in_uniform(int(next(seeds))),
            )
            for filters, kernel, stride in convolutions
        ]
        self.torso = [
            dense(units, noisy=noisy, sigma0=sigma0, activation="relu", seed=int(next(seeds)))
            for units in torso_units
        ]
        self.head = make_head(hidden_units=head_units, seed=int(next(seeds)))

    def call(self, observations, training=False, noise_per_example=False):
        """Adds noise if `training`: one draw for the batch, or one per example."""
        features = self._features(observations)
        if noise_per_example:
            features = features[:, None]  # groups of one: noisy layers draw noise per group
        for layer in self.torso:
            features = layer(features, training=training)
        outputs = self.head(features, training=training)
        return outputs[:, 0] if noise_per_example else outputs

    def _features(self, observations):  # [B, S, *frame] -> [B, F]
        inputs = observations
        if self.convolutions:
            if len(inputs.shape) == 4:
                inputs = inputs[..., None]  # grey frames have one channel
            inputs = ops.transpose(inputs, (0, 2, 3, 1, 4))  # [B, H, W, S, C]
            # Static except for the batch: Keras convolves unknown channels only with XLA.
            _, height, width, stack, channels = inputs.shape
            inputs = ops.reshape(inputs, (-1, height, width, stack * channels))
        for layer in self.convolutions:
            inputs = layer(inputs if isinstance(layer, PatchConv2D) else scaled(inputs))
        inputs = scaled(inputs)
        return ops.reshape(inputs, (-1, math.prod(inputs.shape[1:])))

    def noise_scales(self) -> dict[str, float]:
        """Mean absolute sigma of every noisy layer, by layer path."""
        layers = [layer for layer in self._flatten_layers() if hasattr(layer, "noise_scale")]
        return {layer.path: float(layer.noise_scale()) for layer in layers}


def make_network(config: Config, spec: EnvironmentSpec, *, seed: int, name: str) -> Network:
    """The network of the settings, built for the environment."""
    make_head: Callable[..., keras.layers.Layer]
    if config.algorithm == "a3c":
        make_head = functools.partial(PolicyHead, num_actions=spec.num_actions)
    else:
        make_head = functools.partial(
            ReturnHead,
            num_actions=spec.num_actions,
            num_atoms=config.num_atoms if config.distributional else 1,
            dueling=config.dueling,
            noisy=config.noisy,
            sigma0=config.noisy_sigma,
        )
    network = Network(
        architecture=_architecture(config, spec),
        make_head=make_head,
        noisy=config.noisy,
        sigma0=config.noisy_sigma,
        seed=seed,
        name=name,
    )
    network(np.zeros((1, spec.frame_stack, *spec.frame_shape), spec.frame_dtype))
    _spread_biases(network, np.random.default_rng(seed))
    return network


def _spread_biases(network: Network, rng: np.random.Generator) -> None:
    """Draws biases from +-1/sqrt(fan_in), as in DQN and NoisyDense.

    With zero biases, a network with small inputs is slow to learn a constant.
    """
    for layer in network._flatten_layers():
        if isinstance(layer, (keras.layers.Dense, keras.layers.Conv2D)):
            bound = np.prod(layer.kernel.shape[:-1]) ** -0.5
            layer.bias.assign(rng.uniform(-bound, bound, layer.bias.shape))


def make_support(config: Config) -> np.ndarray | None:
    """The atoms z of the return distribution, or None for agents without one."""
    if not config.distributional:
        return None
    return np.linspace(config.v_min, config.v_max, config.num_atoms, dtype=np.float32)


def _architecture(config: Config, spec: EnvironmentSpec) -> str:
    name = config.network
    is_image = len(spec.frame_shape) in (2, 3)
    size = min(spec.frame_shape[:2]) if is_image else 0
    if name == "auto":  # the largest whose kernels fit
        large = "dqn2013" if config.algorithm == "a3c" else "nature"
        return large if size >= 36 else "minatar" if size >= 3 else "mlp"
    convolutions, _, _ = _ARCHITECTURES[name]
    for _, kernel, stride in convolutions:
        size = (size - kernel) // stride + 1
    if convolutions and size < 1:
        raise ConfigError(
            f"--network={name} needs larger images than frames of shape {spec.frame_shape}; "
            "omit --network to choose one automatically."
        )
    return name
