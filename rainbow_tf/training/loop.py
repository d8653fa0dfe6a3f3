"""The run: act, remember, learn. A generator, so that who logs or stops it stays outside."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rainbow_tf.agent.learner import UpdateResult
from rainbow_tf.agent.schedules import linear
from rainbow_tf.config import Config
from rainbow_tf.training.parts import Parts
from rainbow_tf.types import StepOutput


class TrainingError(RuntimeError):
    """Training cannot go on; its message says why."""


class Tick(NamedTuple):
    """What one vector step, and the updates after it, did."""

    frames: int  # since the start of the run
    updates: int  # since the start of the run
    output: StepOutput
    results: list[UpdateResult]  # of the updates after this step
    epsilon: float
    beta: float


def train(config: Config, parts: Parts) -> Iterator[Tick]:
    """Plays and learns until the frames of the settings are reached."""
    total_steps = config.steps(config.frames)
    history_steps = config.steps(config.min_history_frames)
    target_steps = config.steps(config.target_period_frames)
    steps = updates = 0

    def learn_what_is_due(beta: float) -> list[UpdateResult]:
        due = int((steps - history_steps) * config.updates_per_step) - updates
        is_ready = due > 0 and parts.replay.num_sampleable > 0
        return [learn(parts, beta) for _ in range(due)] if is_ready else []

    output = parts.world.reset()
    remember(config, parts, np.zeros(config.num_envs, np.int32), output)
    while steps < total_steps:
        epsilon = exploration(config, steps)
        beta = linear(config.importance_exponent, 1.0, steps / total_steps)
        actions = parts.actor.act(output.observation, epsilon)
        parts.world.send(actions)
        results = learn_what_is_due(beta) if config.pipeline else []
        updates += len(results)
        output = parts.world.receive()
        remember(config, parts, actions, output)
        before = steps
        steps += int(np.count_nonzero(~output.is_first))

        if not config.pipeline:
            results = learn_what_is_due(beta)
            updates += len(results)
        if steps // target_steps > before // target_steps:
            parts.learner.update_target()
        yield Tick(steps * config.frames_per_step, updates, output, results, epsilon, beta)


def exploration(config: Config, steps: int) -> float:
    """Share of random actions: none with noisy layers, which explore by themselves."""
    if config.noisy:
        return 0.0
    progress = steps / max(1, config.steps(config.epsilon_decay_frames))
    return linear(config.epsilon_start, config.epsilon_end, progress)


def remember(config: Config, parts: Parts, actions: np.ndarray, output: StepOutput) -> None:
    """Writes a step to the replay: rewards clipped, endings in the discount."""
    reward = np.clip(output.reward, -1, 1) if config.clip_rewards else output.reward
    parts.replay.add(
        frame=output.observation[:, -1],
        action_tm1=actions,
        reward_t=reward,
        discount_t=np.where(output.terminal, 0.0, config.discount),
        episode_over=output.episode_over,
        is_first=output.is_first,
    )


def learn(parts: Parts, beta: float) -> UpdateResult:
    """One update with a drawn batch, whose errors become its priorities."""
    ids, batch = parts.replay.sample(beta)
    result = parts.learner.update(batch)
    if not np.isfinite(result.loss):
        raise TrainingError(
            f"The loss became {result.loss}: training diverged. A smaller --learning_rate or "
            "--clip_rewards may help."
        )
    parts.replay.update_priorities(ids, result.errors)
    return result
