"""The paper's targets and losses: pure functions of tensors.

Names are time-indexed: `_tm1` before the action, `_t` after the n steps that follow it.
At the end of an episode `discount_t` is 0.
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

tfd = tfp.distributions


def q_values(support: tf.Tensor | np.ndarray | None, outputs: tf.Tensor) -> tf.Tensor:
    """Mean return of every action, q(s, a) = z . p(s, a), or the outputs without a support."""
    tf.debugging.assert_rank(outputs, 3)  # [B, A, N]
    if support is None:
        return outputs[..., 0]
    return tfd.FiniteDiscrete(support, logits=outputs).mean()  # [B, A]


def project(support: tf.Tensor, atoms: tf.Tensor, probs: tf.Tensor) -> tf.Tensor:
    """L2-projects a distribution onto an evenly spaced support (Bellemare et al. 2017).

    Each mass is split between its two neighbours in proportion to nearness; mass beyond the
    support goes to its end. This keeps the total, and inside the support also the mean.
    """
    tf.debugging.assert_rank(support, 1)  # [N]
    tf.debugging.assert_rank(atoms, 2)  # [B, M]
    tf.debugging.assert_rank(probs, 2)  # [B, M]
    spacing = (support[-1] - support[0]) / tf.cast(tf.size(support) - 1, support.dtype)
    clipped = tf.clip_by_value(atoms, support[0], support[-1])
    distance = tf.abs(clipped[:, None, :] - support[None, :, None]) / spacing  # [B, N, M]
    nearness = tf.clip_by_value(1 - distance, 0, 1)
    return tf.reduce_sum(nearness * probs[:, None, :], axis=-1)  # [B, N]


def categorical_target(
    support: tf.Tensor,
    reward_t: tf.Tensor,
    discount_t: tf.Tensor,
    logits_t: tf.Tensor,
    action_t: tf.Tensor,
) -> tf.Tensor:
    """The projected target: atoms R + gamma z with the chosen action's probabilities."""
    tf.debugging.assert_rank(reward_t, 1)
    tf.debugging.assert_rank(discount_t, 1)
    tf.debugging.assert_rank(logits_t, 3)  # [B, A, N]
    probs = tf.nn.softmax(tf.gather(logits_t, action_t, batch_dims=1))  # [B, N]
    atoms = reward_t[:, None] + discount_t[:, None] * support
    return tf.stop_gradient(project(support, atoms, probs))


def categorical_td_loss(
    logits_tm1: tf.Tensor, action_tm1: tf.Tensor, target_probs: tf.Tensor
) -> tf.Tensor:
    """KL(target || prediction) of the action taken, per example."""
    tf.debugging.assert_rank(logits_tm1, 3)  # [B, A, N]
    tf.debugging.assert_rank(action_tm1, 1)
    tf.debugging.assert_rank(target_probs, 2)  # [B, N]
    chosen = tf.gather(logits_tm1, action_tm1, batch_dims=1)  # [B, N]
    return tfd.Categorical(probs=target_probs).kl_divergence(tfd.Categorical(logits=chosen))


def entropy(probs: tf.Tensor) -> tf.Tensor:
    """Entropy of the target: cross-entropy minus KL divergence."""
    tf.debugging.assert_rank(probs, 2)  # [B, N]
    return tfd.Categorical(probs=probs).entropy()  # [B]


def td_error(
    values_tm1: tf.Tensor,
    action_tm1: tf.Tensor,
    reward_t: tf.Tensor,
    discount_t: tf.Tensor,
    values_t: tf.Tensor,
    action_t: tf.Tensor,
) -> tf.Tensor:
    """R + gamma q_target(s_t, a_t) - q(s_tm1, a_tm1), per example."""
    tf.debugging.assert_rank(values_tm1, 2)  # [B, A]
    tf.debugging.assert_rank(values_t, 2)
    for vector in (action_tm1, reward_t, discount_t, action_t):
        tf.debugging.assert_rank(vector, 1)  # a column would silently broadcast to [B, B]
    bootstrap = tf.gather(values_t, action_t, batch_dims=1)
    target = tf.stop_gradient(reward_t + discount_t * bootstrap)
    return target - tf.gather(values_tm1, action_tm1, batch_dims=1)


def huber(error: tf.Tensor) -> tf.Tensor:
    """Huber loss with threshold 1: DQN's clipped error as a loss."""
    size = tf.abs(error)
    return tf.where(size <= 1, 0.5 * tf.square(error), size - 0.5)


def losses_and_errors(
    support: np.ndarray | None,
    priority: str,
    outputs_tm1: tf.Tensor,
    action_tm1: tf.Tensor,
    reward_t: tf.Tensor,
    discount_t: tf.Tensor,
    outputs_t: tf.Tensor,
    action_t: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Loss and error of every example; `priority` selects the error, its new priority."""
    error = td_error(
        q_values(support, outputs_tm1),
        action_tm1,
        reward_t,
        discount_t,
        q_values(support, outputs_t),
        action_t,
    )
    if support is None:
        return huber(error), tf.abs(error)
    target_probs = categorical_target(
        tf.constant(support), reward_t, discount_t, outputs_t, action_t
    )
    divergence = categorical_td_loss(outputs_tm1, action_tm1, target_probs)
    errors = {
        "kl": divergence,
        "ce": divergence + entropy(target_probs),
        "td": tf.abs(error),
    }
    return divergence, errors[priority]
