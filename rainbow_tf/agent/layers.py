"""Keras layers of the paper: factorised noisy dense layers and the dueling head."""

import functools
import itertools

import keras
import numpy as np
import tensorflow as tf
from keras import ops

_ABOVE_MINUS_ONE = float(np.nextafter(np.float32(-1), np.float32(0)))  # erfinv(-1) is infinite


@keras.saving.register_keras_serializable(package="rainbow_tf")
class NoisyDense(keras.layers.Layer):
    """A dense layer with factorised Gaussian noise on its weights (Fortunato et al. 2018).

    With `training=True` every call draws fresh noise: one draw for inputs [B, in], one per group
    for inputs [G, B, in]. With `training=False` the layer uses its mean weights.
    """

    def __init__(
        self,
        units: int,
        *,
        sigma0: float = 0.5,
        activation: str | None = None,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if units < 1:
            raise ValueError(f"units={units} must be positive.")
        if sigma0 < 0:
            raise ValueError(f"sigma0={sigma0} must not be negative.")
        self.units = units
        self.sigma0 = sigma0
        self.activation = keras.activations.get(activation)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape):
        """Draws means from +-1/sqrt(fan_in) and sets sigmas to sigma0/sqrt(fan_in)."""
        fan_in = input_shape[-1]
        bound = fan_in**-0.5
        mean = keras.initializers.RandomUniform(-bound, bound, seed=self.seed_generator)
        scale = keras.initializers.Constant(self.sigma0 * bound)
        self.kernel = self.add_weight(name="kernel", shape=(fan_in, self.units), initializer=mean)
        self.bias = self.add_weight(name="bias", shape=(self.units,), initializer=mean)
        self.kernel_sigma = self.add_weight(
            name="kernel_sigma", shape=(fan_in, self.units), initializer=scale
        )
        self.bias_sigma = self.add_weight(name="bias_sigma", shape=(self.units,), initializer=scale)

    def call(self, inputs, training=False):
        """Returns b + x W, plus b_sigma * eps_b + x (W_sigma * eps_w) when training."""
        if not training:
            outputs = ops.matmul(inputs, self.kernel) + self.bias
        elif len(inputs.shape) == 2:
            outputs = self._with_shared_noise(inputs)
        else:
            outputs = self._with_noise_per_group(inputs)
        return self.activation(outputs)

    def draw_noise(self, groups):
        """Scaled noise f(eps) for the inputs [G, in] and the outputs [G, units]."""
        fan_in = self.kernel.shape[0]
        seed = tf.cast(self.seed_generator.next(), tf.int32)
        # Not keras.random.normal: TensorFlow's default algorithm is twelve times slower in
        # compiled code on a CPU, and its own normal twice as slow.
        uniform = tf.random.stateless_uniform(
            (groups, fan_in + self.units), seed, _ABOVE_MINUS_ONE, 1.0, alg="philox"
        )
        noise = 2**0.5 * tf.math.erfinv(uniform)
        noise = ops.sign(noise) * ops.sqrt(ops.abs(noise))
        noise = ops.cast(noise, self.compute_dtype)
        return noise[:, :fan_in], noise[:, fan_in:]

    def _with_shared_noise(self, inputs):  # [B, in]
        # Folding the noise into one matrix saves a product, forward and backward.
        noise_in, noise_out = self.draw_noise(1)
        kernel = self.kernel + self.kernel_sigma * (ops.transpose(noise_in) * noise_out)
        return ops.matmul(inputs, kernel) + self.bias + self.bias_sigma * noise_out[0]

    def _with_noise_per_group(self, inputs):  # [G, B, in]
        noise_in, noise_out = self.draw_noise(ops.shape(inputs)[0])
        mean = ops.matmul(inputs, self.kernel) + self.bias
        noisy = ops.matmul(inputs * noise_in[:, None], self.kernel_sigma) + self.bias_sigma
        return mean + noisy * noise_out[:, None]

    def noise_scale(self):
        """Mean absolute sigma of the kernel: how much the layer still explores."""
        return ops.mean(ops.abs(self.kernel_sigma))

    def compute_output_shape(self, input_shape):
        """The shape of the inputs with `units` last."""
        return (*input_shape[:-1], self.units)

    def get_config(self):
        """The arguments that make this layer again."""
        return {
            **super().get_config(),
            "units": self.units,
            "sigma0": self.sigma0,
            "activation": keras.activations.serialize(self.activation),
            "seed": self.seed,
        }


@keras.saving.register_keras_serializable(package="rainbow_tf")
class ReturnHead(keras.layers.Layer):
    """Maps features to [..., actions, atoms]: logits of the returns, or values with one atom.

    Dueling adds a value stream to the advantages minus their mean over actions, per atom and
    before any softmax. Each stream has its own hidden layer.
    """

    def __init__(
        self,
        num_actions: int,
        num_atoms: int,
        *,
        hidden_units: int = 512,
        dueling: bool = True,
        noisy: bool = True,
        sigma0: float = 0.5,
        layer_norm: bool = False,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_actions = num_actions
        self.num_atoms = num_atoms
        self.hidden_units = hidden_units
        self.dueling = dueling
        make = functools.partial(dense, noisy=noisy, sigma0=sigma0)
        activation = None if layer_norm else "relu"
        seeds = itertools.repeat(None) if seed is None else itertools.count(seed)
        self.advantage_hidden = make(
            hidden_units, activation=activation, seed=next(seeds), name="advantage_hidden"
        )
        self.advantage = make(num_actions * num_atoms, seed=next(seeds), name="advantage")
        if dueling:
            self.value_hidden = make(
                hidden_units, activation=activation, seed=next(seeds), name="value_hidden"
            )
            self.value = make(num_atoms, seed=next(seeds), name="value")
        # Between a hidden layer and its ReLU, as in Clark et al. 2025.
        streams = 1 + dueling if layer_norm else 0
        self.norms = [keras.layers.LayerNormalization(epsilon=1e-5) for _ in range(streams)]

    def build(self, input_shape):
        """Builds the dense layers for these features."""
        hidden_shape = (*input_shape[:-1], self.hidden_units)
        self.advantage_hidden.build(input_shape)
        self.advantage.build(hidden_shape)
        if self.dueling:
            self.value_hidden.build(input_shape)
            self.value.build(hidden_shape)
        for norm in self.norms:
            norm.build(hidden_shape)

    def call(self, features, training=False):
        """[..., in] -> [..., A, N]."""
        hidden = self.advantage_hidden(features, training=training)
        if self.norms:
            hidden = ops.relu(self.norms[0](hidden))
        advantage = self.advantage(hidden, training=training)
        lead = ops.shape(features)[:-1]
        advantage = ops.reshape(advantage, (*lead, self.num_actions, self.num_atoms))
        if not self.dueling:
            return advantage
        hidden = self.value_hidden(features, training=training)
        if self.norms:
            hidden = ops.relu(self.norms[1](hidden))
        value = self.value(hidden, training=training)[..., None, :]  # [..., 1, N]
        return value + advantage - ops.mean(advantage, axis=-2, keepdims=True)

    def compute_output_shape(self, input_shape):
        """The leading axes of the features, then actions and atoms."""
        return (*input_shape[:-1], self.num_actions, self.num_atoms)


@keras.saving.register_keras_serializable(package="rainbow_tf")
class QuantileHead(ReturnHead):
    """Maps features to [..., actions, N, 2]: quantiles of the returns, and their N levels.

    Implicit quantiles (Dabney et al. 2018): cosines of the levels modulate the features. With
    `training=True` every example draws its own levels; otherwise they are evenly spaced.
    """

    def __init__(
        self,
        num_actions: int,
        num_levels: int,
        *,
        num_cosines: int = 64,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(num_actions, 1, seed=seed, **kwargs)
        self.num_levels = num_levels
        self.num_cosines = num_cosines
        # After those of the dense layers.
        self.embedding_seed = None if seed is None else seed + 4
        self.seed_generator = keras.random.SeedGenerator(None if seed is None else seed + 5)

    def build(self, input_shape):
        """Builds the embedding and the dense layers for these features."""
        self.embedding = dense(
            input_shape[-1], noisy=False, activation="relu", seed=self.embedding_seed
        )
        self.embedding.build((*input_shape[:-1], self.num_levels, self.num_cosines))
        super().build(input_shape)

    def call(self, features, training=False, levels=None):
        """[..., in] -> [..., A, N, 2]; `levels` [..., N] can be given."""
        *lead, width = ops.shape(features)
        if levels is None:
            levels = self._draw_levels(lead) if training else spaced_levels(self.num_levels)
        levels = ops.broadcast_to(levels, (*lead, self.num_levels))
        cosines = ops.cos(np.pi * ops.arange(self.num_cosines, dtype="float32") * levels[..., None])
        rows = features[..., None, :] * self.embedding(cosines)  # [..., N, in]
        # The levels of an example share its noise.
        rows = ops.reshape(rows, (-1, width) if len(lead) == 1 else (lead[0], -1, width))
        quantiles = super().call(rows, training=training)
        quantiles = ops.reshape(quantiles, (*lead, self.num_levels, self.num_actions))
        quantiles = ops.swapaxes(quantiles, -1, -2)
        levels = ops.broadcast_to(levels[..., None, :], ops.shape(quantiles))
        return ops.stack([quantiles, levels], axis=-1)

    def _draw_levels(self, lead):
        seed = tf.cast(self.seed_generator.next(), tf.int32)
        return tf.random.stateless_uniform((*lead, self.num_levels), seed, alg="philox")

    def compute_output_shape(self, input_shape):
        """The leading axes of the features, then actions, levels, and the pair of each."""
        return (*input_shape[:-1], self.num_actions, self.num_levels, 2)


def spaced_levels(count: int) -> np.ndarray:
    """The middles of `count` equal parts of [0, 1]."""
    return (np.arange(count, dtype=np.float32) + 0.5) / count


@keras.saving.register_keras_serializable(package="rainbow_tf")
class PolicyHead(keras.layers.Layer):
    """Maps features to policy logits [..., A] and state values [...].

    Both share one hidden layer (Mnih et al. 2016).
    """

    def __init__(
        self, num_actions: int, *, hidden_units: int = 256, seed: int | None = None, **kwargs
    ):
        super().__init__(**kwargs)
        self.num_actions = num_actions
        self.hidden_units = hidden_units
        make = functools.partial(dense, noisy=False)
        seeds = itertools.repeat(None) if seed is None else itertools.count(seed)
        self.hidden = make(hidden_units, activation="relu", seed=next(seeds), name="hidden")
        self.policy = make(num_actions, seed=next(seeds), name="policy")
        self.value = make(1, seed=next(seeds), name="value")

    def build(self, input_shape):
        """Builds the dense layers for these features."""
        self.hidden.build(input_shape)
        self.policy.build((*input_shape[:-1], self.hidden_units))
        self.value.build((*input_shape[:-1], self.hidden_units))

    def call(self, features, training=False):
        """[..., in] -> [..., A] and [...]."""
        hidden = self.hidden(features)
        return self.policy(hidden), self.value(hidden)[..., 0]


@keras.saving.register_keras_serializable(package="rainbow_tf")
class PatchConv2D(keras.layers.Conv2D):
    """A valid convolution with strides equal to the kernel size, as one matrix product.

    Patches do not overlap, so a reshape and a product suffice. With XLA on a CPU the gradients
    are two to four times faster than those of a strided convolution.
    """

    def __init__(self, filters, kernel_size, strides, **kwargs):
        super().__init__(filters, kernel_size, strides, **kwargs)
        if self.strides != self.kernel_size or self.padding != "valid":
            raise ValueError("PatchConv2D needs strides=kernel_size and padding='valid'.")

    def call(self, inputs):
        """[B, H, W, C] -> [B, H // k, W // k, filters]; also accepts bytes."""
        size, _ = self.kernel_size
        _, height, width, channels = inputs.shape
        rows, columns = height // size, width // size
        patches = inputs[:, : rows * size, : columns * size]
        patches = ops.reshape(patches, (-1, rows, size, columns, size, channels))
        patches = ops.transpose(patches, (0, 1, 3, 2, 4, 5))  # [B, H / k, W / k, k, k, C]
        patches = ops.reshape(patches, (-1, rows, columns, size * size * channels))
        # Cast after the transpose: floats are four times as large as bytes.
        outputs = ops.matmul(scaled(patches), ops.reshape(self.kernel, (-1, self.filters)))
        return self.activation(outputs + self.bias)


@keras.saving.register_keras_serializable(package="rainbow_tf")
class SpectralConv2D(keras.layers.Conv2D):
    """A convolution whose kernel is divided by its largest singular value (Miyato et al. 2018).

    Each call with `training=True` improves the estimate of that value by one power iteration. Not
    keras.layers.SpectralNormalization: it overwrites the kernel, also where the agent only acts.
    """

    def build(self, input_shape):
        """Adds the estimate of the right singular vector."""
        super().build(input_shape)
        seed = getattr(self.kernel_initializer, "seed", None)
        self.direction = self.add_weight(
            name="direction",
            shape=(self.filters,),
            initializer=keras.initializers.RandomNormal(stddev=1.0, seed=seed),
            trainable=False,
        )

    def call(self, inputs, training=False):
        """The convolution with the normalised kernel."""
        matrix = ops.reshape(self.kernel, (-1, self.filters))
        fixed = ops.stop_gradient(matrix)
        left = _unit(ops.matmul(fixed, self.direction))
        right = _unit(ops.matmul(left, fixed))
        if training:
            self.direction.assign(right)
        scale = ops.sum(left * ops.matmul(matrix, right))
        outputs = self.convolution_op(inputs, self.kernel / scale) + self.bias
        return self.activation(outputs)


def _unit(vector):
    return vector / (ops.sqrt(ops.sum(ops.square(vector))) + 1e-12)


def scaled(observations):
    """Casts to float32; bytes are scaled to [0, 1]."""
    scale = 255.0 if observations.dtype == "uint8" else 1.0
    return ops.cast(observations, "float32") / scale


def fan_in_uniform(seed):
    """Uniform in +-1/sqrt(fan_in), as in DQN and the noisy layers."""
    return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", seed=seed)


def dense(units, *, noisy, sigma0=0.5, activation=None, seed=None, name=None):
    """A noisy or a plain dense layer."""
    if noisy:
        return NoisyDense(units, sigma0=sigma0, activation=activation, seed=seed, name=name)
    return keras.layers.Dense(
        units, activation=activation, kernel_initializer=fan_in_uniform(seed), name=name
    )
