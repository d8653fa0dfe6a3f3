"""Records a policy: the screen, and beside it a panel with the policy's estimates."""

from collections.abc import Iterator

import numpy as np

from rainbow_tf.agent.networks import make_support
from rainbow_tf.config import Config
from rainbow_tf.environments.base import Environment
from rainbow_tf.types import Decision, EnvironmentSpec, Policy
from rainbow_tf.video.encoder import enlarged
from rainbow_tf.video.panel import BACKGROUND, Panel, Scene, Thought

_WIDEST_SCREEN = 1.25  # times the height


def play(
    policy: Policy, environment: Environment, *, config: Config, episodes: int
) -> Iterator[Scene]:
    """Scenes of whole episodes in the first lane; the last scene of each shows its end."""
    output = environment.reset()
    for episode in range(episodes):
        score, step, is_over = 0.0, 0, False
        while not is_over:
            thought = _thought(policy.decide(output.observation, config.eval_epsilon))
            frame = step * config.frames_per_step
            yield Scene(environment.screen(), thought, episode, step, frame, score, is_last=False)
            output = environment.step(np.array([thought.action]))
            score += float(output.reward[0])
            step += 1
            is_over = bool(output.episode_over[0])
        frame = step * config.frames_per_step
        yield Scene(environment.screen(), thought, episode, step, frame, score, is_last=True)
        output = environment.step(np.zeros(1, np.int32))  # restarts; the action is ignored


def _thought(decision: Decision) -> Thought:
    return Thought(
        action=int(decision.actions[0]),
        scores=decision.values[0],
        value=float(decision.state_values[0]),
        probs=None if decision.probs is None else decision.probs[0],
    )


class Film:
    """Draws scenes as pictures of one shape; the policy was trained for `frames` frames."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, frames: int, height: int):
        self._panel = Panel(
            title=config.game or str(config.environment),
            subtitle=f"{config.agent} after {frames:,} frames",
            actions=spec.action_meanings,
            symbol="p" if config.algorithm == "a3c" else "Q",
            support=make_support(config),
            height=height,
        )

    def picture(self, scene: Scene) -> np.ndarray:
        """The screen at the largest fitting size and the panel: [H, W, 3], H and W even."""
        height = self._panel.height
        screen = enlarged(scene.screen, height=height, width=int(_WIDEST_SCREEN * height))
        tall, wide, _ = screen.shape
        picture = np.empty((height, wide + wide % 2 + self._panel.width, 3), np.uint8)
        picture[:] = BACKGROUND
        top = (height - tall) // 2
        picture[top : top + tall, :wide] = screen
        picture[:, -self._panel.width :] = self._panel.draw(scene)
        return picture
