"""The compiled update of the online network, and the target network."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rainbow_tf.agent import losses
from rainbow_tf.agent.networks import Network
from rainbow_tf.config import Config
from rainbow_tf.types import Batch, UpdateResult

_SHIFT = 4  # pixels


class DivergedError(RuntimeError):
    """The loss is not finite; carries the result and details of that update."""

    def __init__(self, result: UpdateResult, details: dict[str, Any]):
        super().__init__(f"The loss became {result.loss}: training diverged.")
        self.result = result
        self.details = details


class Learner:
    """Minimises the weighted KL (or Huber) loss of the paper."""

    def __init__(
        self,
        *,
        online: Network,
        target: Network,
        support: np.ndarray | None,
        double: bool,
        priority: str,
        optimizer: keras.optimizers.Optimizer,
        munchausen: bool = False,
        shift_seed: int | None = None,  # of the augmentation; None: no augmentation
    ):
        self.online = online
        self.target = target
        self._support = support
        self._double = double
        self._priority = priority
        self._munchausen = munchausen
        self._shifts = None if shift_seed is None else keras.random.SeedGenerator(shift_seed)
        self.optimizer = optimizer
        self.optimizer.build(online.trainable_variables)
        self._compiled_update = tf.function(self._update, jit_compile=True, autograph=False)
        self.update_target()

    @property
    def variables(self) -> dict[str, list]:
        """Everything that learning changes, by owner; includes the state of the noise."""
        return {
            "online": self.online.variables,
            "target": self.target.variables,
            "optimizer": self.optimizer.variables,
            **({} if self._shifts is None else {"shifts": [self._shifts.state]}),
        }

    def update_target(self) -> None:
        """Copies the weights of the online network to the target network."""
        pairs = zip(self.target.trainable_variables, self.online.trainable_variables, strict=True)
        for target, online in pairs:
            target.assign(online)

    def update(self, batch: Batch) -> UpdateResult:
        """Takes one gradient step on the batch."""
        packed = self._compiled_update(*map(tf.convert_to_tensor, batch)).numpy()
        return UpdateResult(packed[:-2], float(packed[-2]), float(packed[-1]))

    def _update(self, *tensors: tf.Tensor) -> tf.Tensor:
        """Errors [B], loss and mean value in one vector, for a single copy to the host."""
        batch = Batch(*tensors)
        if self._shifts is not None:
            batch = batch._replace(
                observation_tm1=random_shift(batch.observation_tm1, self._shifts.next()),
                observation_t=random_shift(batch.observation_t, self._shifts.next()),
            )
        # Own noise per pass: a selector that shares the target's noise is biased.
        outputs_t = self.target(batch.observation_t, training=True)
        selector = self.online(batch.observation_t, training=True) if self._double else outputs_t
        values_t, reward_t = self._values(selector), batch.reward_t
        action_t = tf.argmax(values_t, axis=1, output_type=tf.int32)
        if self._munchausen:
            values_tm1 = self._values(self.target(batch.observation_tm1, training=True))
            reward_t, action_t = losses.munchausen(values_tm1, batch.action_tm1, reward_t, values_t)
        with tf.GradientTape() as tape:
            outputs_tm1 = self.online(batch.observation_tm1, training=True)
            error_loss, errors = losses.losses_and_errors(
                self._support,
                self._priority,
                outputs_tm1,
                batch.action_tm1,
                reward_t,
                batch.discount_t,
                outputs_t,
                action_t,
            )
            loss = tf.reduce_mean(batch.weight * error_loss)
        self.optimizer.apply(tape.gradient(loss, self.online.trainable_variables))
        q_mean = tf.reduce_mean(tf.reduce_max(self._values(outputs_tm1), axis=1))
        return tf.concat([errors, [loss, q_mean]], axis=0)

    def _values(self, outputs: tf.Tensor) -> tf.Tensor:
        return losses.q_values(self._support, outputs)


def random_shift(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Shifts each example of [B, S, H, W, ...] by up to 4 pixels, repeating the edge.

    As in DrQ (Kostrikov et al. 2021); all frames of a stack move together.
    """
    batch, _, height, width = images.shape[:4]
    shape, seed = (2, batch, 1), tf.cast(seed, tf.int32)
    # For the algorithm, see NoisyDense.
    shifts = tf.random.stateless_uniform(shape, seed, -_SHIFT, _SHIFT + 1, tf.int32, alg="philox")
    rows = tf.clip_by_value(tf.range(height) + shifts[0], 0, height - 1)  # [B, H]
    columns = tf.clip_by_value(tf.range(width) + shifts[1], 0, width - 1)  # [B, W]
    images = tf.gather(images, rows, axis=2, batch_dims=1)
    return tf.gather(images, columns, axis=3, batch_dims=1)


def make_optimizer(config: Config) -> keras.optimizers.Optimizer:
    """The optimizer of the settings."""
    clip = {"global_clipnorm": config.max_grad_norm}
    if config.optimizer == "adam":
        return keras.optimizers.Adam(config.learning_rate, epsilon=config.adam_epsilon, **clip)
    return keras.optimizers.RMSprop(
        config.learning_rate,
        rho=config.rmsprop_decay,
        epsilon=config.rmsprop_epsilon,
        centered=config.rmsprop_centered,
        **clip,
    )
