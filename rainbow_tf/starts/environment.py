"""Atari games that start at recorded points."""

import itertools
from collections.abc import Generator, Iterable, Sequence

import numpy as np
from ale_py import Action

from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_spec
from rainbow_tf.starts.file import StartFile, StartPoint, replay
from rainbow_tf.types import StepOutput

# The fields of a StepOutput for one lane.
_LaneStep = tuple[np.ndarray, float, bool, bool, bool]


class StartEnvironment:
    """E lanes of plain emulators; lane i plays points i, i + E, ... and then idles.

    The frame cap counts from the start point. A lost life can be terminal, as in AtariEnvironment.
    """

    def __init__(
        self, *, config: Config, starts: StartFile, points: Sequence[StartPoint], num_envs: int
    ):
        self._config = config
        self._starts = starts
        self._points = [points[lane::num_envs] for lane in range(num_envs)]
        self.spec = make_spec(config)
        self._codes = [getattr(Action, name).value for name in self.spec.action_meanings]

    def reset(self) -> StepOutput:
        """Starts every lane at its first point."""
        self._lanes = [self._play(points) for points in self._points]
        return _gather(next(lane) for lane in self._lanes)

    def step(self, actions: np.ndarray) -> StepOutput:
        """Plays one action per lane; a lane whose episode ended goes to its next point."""
        # Sequentially: the emulator holds the GIL.
        return _gather(lane.send(i) for lane, i in zip(self._lanes, actions, strict=True))

    def _play(self, points: Sequence[StartPoint]) -> Generator[_LaneStep, int, None]:
        """One lane: receives actions; after its last point, repeats the last observation."""
        config = self._config
        for point in points:
            emulator = replay(
                self._starts, point, action_repeat=config.action_repeat, frame_stack=config.stack
            )
            action = yield emulator.observation, 0.0, False, False, True
            for frames in itertools.count(config.action_repeat, config.action_repeat):
                lives = emulator.ale.lives()
                reward = emulator.step(self._codes[action])
                game_over = emulator.ale.game_over()
                life_lost = config.terminal_on_life_loss and emulator.ale.lives() < lives
                terminal = game_over or life_lost
                episode_over = game_over or frames >= config.max_episode_frames
                action = yield emulator.observation, reward, terminal, episode_over, False
                if episode_over:
                    break
        while True:
            yield emulator.observation, 0.0, False, False, True

    def screen(self) -> np.ndarray:
        """Not available: nothing shows these games."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to release."""


def _gather(steps: Iterable[_LaneStep]) -> StepOutput:
    output = StepOutput(*map(np.array, zip(*steps, strict=True)))
    return output._replace(reward=output.reward.astype(np.float32))
