"""The compiled update of the online network, and the target network."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rainbow_tf.agent import losses
from rainbow_tf.agent.networks import Network
from rainbow_tf.config import Config
from rainbow_tf.types import Batch, UpdateResult


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
    ):
        self.online = online
        self.target = target
        self._support = support
        self._double = double
        self._priority = priority
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
        # Own noise per pass: a selector that shares the target's noise is biased.
        outputs_t = self.target(batch.observation_t, training=True)
        selector = self.online(batch.observation_t, training=True) if self._double else outputs_t
        action_t = tf.argmax(self._values(selector), axis=1, output_type=tf.int32)
        with tf.GradientTape() as tape:
            outputs_tm1 = self.online(batch.observation_tm1, training=True)
            error_loss, errors = losses.losses_and_errors(
                self._support,
                self._priority,
                outputs_tm1,
                batch.action_tm1,
                batch.reward_t,
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
