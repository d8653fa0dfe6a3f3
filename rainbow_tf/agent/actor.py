"""Chooses actions for E lanes."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rainbow_tf.agent.losses import q_values
from rainbow_tf.agent.networks import Network


class Judgement(NamedTuple):
    """What an actor makes of E observations; exploring changes its actions alone."""

    actions: np.ndarray  # [E] int32
    values: np.ndarray  # [E, A] that it chooses by: mean returns, or probabilities
    state_values: np.ndarray  # [E]
    probs: np.ndarray | None  # [E, A, N] of the returns; None for agents without a support


class Actor:
    """Greedy in the mean return, with fresh noise per lane if `noise`, or with epsilon."""

    def __init__(
        self,
        *,
        network: Network,
        support: np.ndarray | None,
        num_actions: int,
        noise: bool,
        rng: np.random.Generator,
    ):
        self._network = network
        self._support = support
        self._num_actions = num_actions
        self._noise = noise
        self.rng = rng
        self._greedy = tf.function(self._greedy_actions, jit_compile=True, autograph=False)
        self._judge = tf.function(self._judgement, jit_compile=True, autograph=False)
        self._greedy_by = tf.function(self._greedy_and_outputs, jit_compile=True, autograph=False)

    def act(self, observation: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        """Actions [E] for observations [E, S, *frame]; each is random with chance epsilon."""
        actions = self._greedy(tf.convert_to_tensor(observation)).numpy()
        return self._explore(actions, epsilon)

    def act_and_outputs(
        self, observation: np.ndarray, epsilon: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions as of `act`, and the network's outputs [E, A, N] that they were chosen by."""
        actions, outputs = self._greedy_by(tf.convert_to_tensor(observation))
        return self._explore(actions.numpy(), epsilon), outputs.numpy()

    def act_and_value(
        self, observation: np.ndarray, epsilon: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions as of `act`, and the largest mean return [E] that each observation promises."""
        judgement = self.judge(observation, epsilon)
        return judgement.actions, judgement.state_values

    def judge(self, observation: np.ndarray, epsilon: float = 0.0) -> Judgement:
        """Actions as of `act`, with all that they were chosen by."""
        actions, values, probs = self._judge(tf.convert_to_tensor(observation))
        values = values.numpy()
        return Judgement(
            self._explore(actions.numpy(), epsilon),
            values,
            values.max(axis=1),
            None if probs is None else probs.numpy(),
        )

    def _explore(self, actions: np.ndarray, epsilon: float) -> np.ndarray:
        if epsilon > 0:
            explores = self.rng.random(len(actions)) < epsilon
            random = self.rng.integers(self._num_actions, size=len(actions), dtype=np.int32)
            actions = np.where(explores, random, actions)
        return actions

    def _greedy_actions(self, observation: tf.Tensor) -> tf.Tensor:
        actions, _ = self._greedy_and_outputs(observation)
        return actions

    def _greedy_and_outputs(self, observation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = self._outputs(observation)  # [E, A, N]
        values = q_values(self._support, outputs)  # [E, A]
        return tf.argmax(values, axis=1, output_type=tf.int32), outputs

    def _judgement(self, observation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        actions, outputs = self._greedy_and_outputs(observation)
        values = q_values(self._support, outputs)
        return actions, values, None if self._support is None else tf.nn.softmax(outputs)

    def _outputs(self, observation: tf.Tensor) -> tf.Tensor:
        return self._network(observation, training=self._noise, noise_per_example=self._noise)
