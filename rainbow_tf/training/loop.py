"""The training loop: act, store, learn. A generator, so that logging stays outside."""

from collections.abc import Iterator

import numpy as np

from rainbow_tf.agent.learner import DivergedError, Learner
from rainbow_tf.agent.schedules import has_passed, linear
from rainbow_tf.config import Config
from rainbow_tf.environments.base import EpisodeTracker
from rainbow_tf.training.build import Parts
from rainbow_tf.types import BEGINNING, Counters, ReplayLike, StepOutput, Tick, UpdateResult


def train(config: Config, parts: Parts, start: Counters = BEGINNING) -> Iterator[Tick]:
    """Trains to the configured number of frames; nothing changes between two ticks.

    One tick per step of all lanes, with the updates that follow it. Every lane starts with a new
    episode, also in a resumed run.
    """
    total_steps = config.steps(config.frames)
    history_steps = config.steps(config.min_history_frames)
    target_steps = config.steps(config.target_period_frames)
    steps, updates = start
    tracker = EpisodeTracker(config.num_envs)

    parts.replay.cut_episodes()
    output = parts.environment.reset()
    parts.replay.add(**replay_step(config, np.zeros(config.num_envs, np.int32), output))
    while steps < total_steps:
        epsilon = exploration(config, steps)
        beta = linear(config.importance_exponent, 1.0, steps / total_steps)
        actions = parts.actor.act(output.observation, epsilon)
        output = parts.environment.step(actions)
        parts.replay.add(**replay_step(config, actions, output))
        before = steps
        steps += int(np.count_nonzero(~output.is_first))

        due = int((steps - history_steps) * config.updates_per_step) - updates
        if parts.replay.num_sampleable == 0:
            due = 0
        results = [learn(parts.replay, parts.learner, beta) for _ in range(due)]
        updates += len(results)
        if has_passed(target_steps, before, steps):
            parts.learner.update_target()
        frames = steps * config.frames_per_step
        episodes = tracker.observe(output)
        yield Tick(frames, Counters(steps, updates), episodes, results, epsilon, beta)


def exploration(config: Config, steps: int) -> float:
    """Epsilon of the schedule; with noisy layers, 0 after --noisy_epsilon_frames.

    It decays from the first update on, as in DQN's own code, DQN Zoo and Dopamine.
    """
    if config.noisy and steps >= config.steps(config.noisy_epsilon_frames):
        return 0.0
    learning_steps = max(0, steps - config.steps(config.min_history_frames))
    progress = learning_steps / max(1, config.steps(config.epsilon_decay_frames))
    return linear(config.epsilon_start, config.epsilon_end, progress)


def replay_step(config: Config, actions: np.ndarray, output: StepOutput) -> dict[str, np.ndarray]:
    """A step as the replay stores it: newest frame, clipped reward, endings in the discount."""
    reward = np.clip(output.reward, -1, 1) if config.clip_rewards else output.reward
    return {
        "frame": output.observation[:, -1],
        "action_tm1": actions,
        "reward_t": reward,
        "discount_t": np.where(output.terminal, 0.0, config.discount),
        "episode_over": output.episode_over,
        "is_first": output.is_first,
    }


def learn(replay: ReplayLike, learner: Learner, beta: float) -> UpdateResult:
    """One update on a sampled batch, whose errors become its priorities."""
    ids, batch = replay.sample(beta)
    result = learner.update(batch)
    if not np.isfinite(result.loss):
        details = {
            "batch": {
                "ids": ids.tolist(),
                "priorities": replay.priorities(ids).tolist(),
                "errors": result.errors.tolist(),
                "weights": batch.weight.tolist(),
                "actions": batch.action_tm1.tolist(),
                "rewards": batch.reward_t.tolist(),
                "discounts": batch.discount_t.tolist(),
            },
            "max_priority": replay.max_priority,
        }
        raise DivergedError(result, details)
    replay.update_priorities(ids, result.errors)
    return result
