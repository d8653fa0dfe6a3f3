"""The paper's targets and losses: pure functions of tensors.

Names are time-indexed: `_tm1` before the action, `_t` after the n steps that follow it.
At the end of an episode `discount_t` is 0.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

tfd = tfp.distributions

# Vieillard et al. 2020: the weight of the bonus, the temperature, and the bonus's lower bound.
_MUNCHAUSEN_WEIGHT, _TEMPERATURE, _LEAST_BONUS = 0.9, 0.03, -1.0


class SoftPolicy(NamedTuple):
    """The softmax policy of s_t, and the entropy bonus -tau log pi(a) of its actions."""

    probs: tf.Tensor  # [B, A]
    bonus: tf.Tensor  # [B, A]


def q_values(support: tf.Tensor | np.ndarray | None, outputs: tf.Tensor) -> tf.Tensor:
    """Mean return of every action [B, A].

    Outputs [B, A, N] are logits of the support, q(s, a) = z . p(s, a), or values without one.
    Outputs [B, A, N, 2] are quantiles and their levels.
    """
    if outputs.shape.rank == 4:
        return tf.reduce_mean(outputs[..., 0], axis=-1)
    tf.debugging.assert_rank(outputs, 3)  # [B, A, N]
    if support is None:
        return outputs[..., 0]
    return tfd.FiniteDiscrete(support, logits=outputs).mean()  # [B, A]


def return_probs(support: tf.Tensor | np.ndarray | None, outputs: tf.Tensor) -> tf.Tensor | None:
    """Probabilities of the atoms [B, A, N]; quantiles are projected on them. None without atoms."""
    if support is None:
        return None
    if outputs.shape.rank == 3:
        return tf.nn.softmax(outputs)
    _, num_actions, num_levels, _ = outputs.shape
    quantiles = tf.reshape(outputs[..., 0], (-1, num_levels))
    probs = project(tf.constant(support), quantiles, tf.ones_like(quantiles) / num_levels)
    return tf.reshape(probs, (-1, num_actions, len(support)))


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
    action_t: tf.Tensor | SoftPolicy,
) -> tf.Tensor:
    """The projected target: atoms R + gamma z with the chosen action's probabilities.

    Under a soft policy the atoms of all actions are mixed, each raised by its action's bonus.
    """
    tf.debugging.assert_rank(reward_t, 1)
    tf.debugging.assert_rank(discount_t, 1)
    tf.debugging.assert_rank(logits_t, 3)  # [B, A, N]
    if isinstance(action_t, SoftPolicy):
        mixed = (-1, logits_t.shape[1] * logits_t.shape[2])  # [B, A * N]
        probs = tf.reshape(action_t.probs[..., None] * tf.nn.softmax(logits_t), mixed)
        support_t = tf.reshape(support + action_t.bonus[..., None], mixed)
    else:
        probs = tf.nn.softmax(tf.gather(logits_t, action_t, batch_dims=1))  # [B, N]
        support_t = support
    atoms = reward_t[:, None] + discount_t[:, None] * support_t
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


def td_error(
    values_tm1: tf.Tensor,
    action_tm1: tf.Tensor,
    reward_t: tf.Tensor,
    discount_t: tf.Tensor,
    values_t: tf.Tensor,
    action_t: tf.Tensor | SoftPolicy,
) -> tf.Tensor:
    """R + gamma q_target(s_t, a_t) - q(s_tm1, a_tm1), per example."""
    tf.debugging.assert_rank(values_tm1, 2)  # [B, A]
    tf.debugging.assert_rank(values_t, 2)
    for vector in (action_tm1, reward_t, discount_t):
        tf.debugging.assert_rank(vector, 1)  # a column would silently broadcast to [B, B]
    bootstrap = _of_action(values_t, action_t)
    target = tf.stop_gradient(reward_t + discount_t * bootstrap)
    return target - tf.gather(values_tm1, action_tm1, batch_dims=1)


def _of_action(values_t: tf.Tensor, action_t: tf.Tensor | SoftPolicy) -> tf.Tensor:
    """Values [B, A, ...] of the chosen actions, or their mean under a policy with its bonus."""
    if isinstance(action_t, SoftPolicy):
        probs, bonus = action_t
        if values_t.shape.rank == 3:
            probs, bonus = probs[..., None], bonus[..., None]
        return tf.reduce_sum(probs * (values_t + bonus), axis=1)
    tf.debugging.assert_rank(action_t, 1)
    return tf.gather(values_t, action_t, batch_dims=1)


def munchausen(
    values_tm1: tf.Tensor, action_tm1: tf.Tensor, reward_t: tf.Tensor, values_t: tf.Tensor
) -> tuple[tf.Tensor, SoftPolicy]:
    """Rewards and policy of a Munchausen target (Vieillard et al. 2020).

    The reward gets the bonus alpha * clip(tau log pi(a_tm1), l0, 0), where pi(s_tm1) follows from
    the target network's values. The policy of s_t, softmax(q / tau), replaces the greedy action.
    """
    tf.debugging.assert_rank(values_tm1, 2)  # [B, A]
    tf.debugging.assert_rank(values_t, 2)
    tf.debugging.assert_rank(action_tm1, 1)
    log_probs_tm1, log_probs_t = (
        _TEMPERATURE * tf.nn.log_softmax(values / _TEMPERATURE) for values in (values_tm1, values_t)
    )
    bonus = tf.clip_by_value(tf.gather(log_probs_tm1, action_tm1, batch_dims=1), _LEAST_BONUS, 0)
    policy = SoftPolicy(tf.nn.softmax(values_t / _TEMPERATURE), -log_probs_t)
    return reward_t + _MUNCHAUSEN_WEIGHT * bonus, policy


def quantile_td_loss(outputs_tm1: tf.Tensor, action_tm1: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Quantile Huber loss with threshold 1 (Dabney et al. 2018), per example.

    A sum over the predicted levels of means over the target's quantiles [B, M].
    """
    tf.debugging.assert_rank(outputs_tm1, 4)  # [B, A, N, 2]
    tf.debugging.assert_rank(action_tm1, 1)
    tf.debugging.assert_rank(target, 2)
    quantiles, levels = tf.unstack(tf.gather(outputs_tm1, action_tm1, batch_dims=1), axis=-1)
    error = target[:, None, :] - quantiles[:, :, None]  # [B, N, M]
    weight = tf.abs(levels[:, :, None] - tf.cast(error < 0, error.dtype))
    return tf.reduce_sum(tf.reduce_mean(weight * huber(error), axis=2), axis=1)


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
    action_t: tf.Tensor | SoftPolicy,
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
    if outputs_t.shape.rank == 4:
        quantiles_t = _of_action(outputs_t[..., 0], action_t)  # [B, M]
        target = tf.stop_gradient(reward_t[:, None] + discount_t[:, None] * quantiles_t)
        return quantile_td_loss(outputs_tm1, action_tm1, target), tf.abs(error)
    if support is None:
        return huber(error), tf.abs(error)
    target_probs = categorical_target(
        tf.constant(support), reward_t, discount_t, outputs_t, action_t
    )
    divergence = categorical_td_loss(outputs_tm1, action_tm1, target_probs)
    errors = {
        "kl": divergence,
        "ce": divergence + tfd.Categorical(probs=target_probs).entropy(),
        "td": tf.abs(error),
    }
    return divergence, errors[priority]
