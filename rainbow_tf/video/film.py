"""Plays a policy's episodes scene by scene."""

from collections.abc import Iterator

from rainbow_tf.config import Config
from rainbow_tf.environments.base import Environment
from rainbow_tf.types import Policy
from rainbow_tf.video.panel import Scene


def play(
    policy: Policy, environment: Environment, *, config: Config, episodes: int
) -> Iterator[Scene]:
    """Scenes of whole episodes in the first lane; the last scene of each shows its end."""
    output = environment.reset()
    for episode in range(episodes):
        score, step, is_last = 0.0, 0, False
        while not is_last:
            is_last = bool(output.episode_over[0])
            if not is_last:
                decision = policy.decide(output.observation, config.eval_epsilon)
            frame = step * config.frames_per_step
            yield Scene(environment.screen(), decision, episode, step, frame, score, is_last)
            # After the end this restarts, and the action is ignored.
            output = environment.step(decision.actions)
            score += float(output.reward[0])
            step += 1
