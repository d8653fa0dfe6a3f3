"""Chooses actions for E lanes."""

import numpy as np
import tensorflow as tf

from rainbow_tf.agent.losses import q_values, return_probs
from rainbow_tf.agent.networks import Network
from rainbow_tf.types import Decision


class Actor:
    """Greedy in the mean return; explores by fresh noise per lane, or by epsilon."""

    def __init__(
        self,
        *,
        network: Network,
        support: np.ndarray | None,
        noise: bool,
        rng: np.random.Generator,
    ):
        self._network = network
        self._support = support
        self._noise = noise
        self.rng = rng
        self._decide = tf.function(self._forward, jit_compile=True, autograph=False)

    def act(self, observation: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        """Actions [E] for observations [E, S, *frame]; each is random with probability epsilon."""
        actions, _, values, _ = self._decide(tf.convert_to_tensor(observation))
        return self._explore(actions, values, epsilon)

    def act_and_outputs(
        self, observation: np.ndarray, epsilon: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The actions of `act`, and the network outputs [E, A, ...] behind them."""
        actions, outputs, values, _ = self._decide(tf.convert_to_tensor(observation))
        return self._explore(actions, values, epsilon), outputs.numpy()

    def decide(self, observation: np.ndarray, epsilon: float = 0.0) -> Decision:
        """The actions of `act`, and the estimates behind them."""
        actions, _, values, probs = self._decide(tf.convert_to_tensor(observation))
        return Decision(
            self._explore(actions, values, epsilon),
            values.numpy(),
            values.numpy().max(axis=1),
            None if probs is None else probs.numpy(),
        )

    def _explore(self, greedy: tf.Tensor, values: tf.Tensor, epsilon: float) -> np.ndarray:
        if epsilon == 0:
            return greedy.numpy()
        lanes, num_actions = values.shape
        explores = self.rng.random(lanes) < epsilon
        random = self.rng.integers(num_actions, size=lanes, dtype=np.int32)
        return np.where(explores, random, greedy.numpy())

    def _forward(self, observation: tf.Tensor) -> tuple:
        """Greedy actions [E], outputs [E, A, ...], values [E, A], probabilities of returns."""
        outputs = self._network(observation, training=self._noise, noise_per_example=self._noise)
        values = q_values(self._support, outputs)
        actions = tf.argmax(values, axis=1, output_type=tf.int32)
        return actions, outputs, values, return_probs(self._support, outputs)
