"""Atari games that start at recorded points."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.environments.atari import FRAME_SHAPE
from rainbow_tf.starts.emulator import Emulator
from rainbow_tf.starts.file import StartFile, StartPoint, replay
from rainbow_tf.types import EnvironmentSpec, StepOutput


class StartEnvironment:
    """E lanes of plain emulators; lane i plays points i, i + E, ... and then idles.

    The frame cap counts from the start point. A lost life is terminal, as in training.
    """

    def __init__(
        self, *, config: Config, starts: StartFile, points: Sequence[StartPoint], num_envs: int
    ):
        self._points = [points[lane::num_envs] for lane in range(num_envs)]
        self._lanes = [_Lane(config, starts) for _ in range(num_envs)]
        actions = Emulator(
            starts.settings.game, seed=0, action_repeat=1, frame_stack=1
        ).minimal_actions
        self._codes = np.array([action.value for action in actions])
        self.spec = EnvironmentSpec(
            frame_shape=FRAME_SHAPE,
            frame_dtype=np.dtype(np.uint8),
            frame_stack=config.stack,
            num_actions=len(actions),
            action_meanings=tuple(action.name for action in actions),
        )

    def reset(self) -> StepOutput:
        """Starts every lane at its first point."""
        for lane, points in zip(self._lanes, self._points, strict=True):
            lane.points = iter(points)
        return _gather(lane.start() for lane in self._lanes)

    def step(self, actions: np.ndarray) -> StepOutput:
        """Plays one action per lane; a lane whose episode ended goes to its next point."""
        # Sequentially: the emulator holds the GIL.
        codes = self._codes[actions]
        return _gather(lane.step(code) for lane, code in zip(self._lanes, codes, strict=True))

    def screen(self) -> np.ndarray:
        """The first lane's screen, [210, 160, 3]."""
        emulator = self._lanes[0].emulator
        assert emulator is not None
        return emulator.screen()

    def close(self) -> None:
        """Nothing to release."""


class _Lane:
    """One emulator and its remaining start points."""

    def __init__(self, config: Config, starts: StartFile):
        self._config = config
        self._starts = starts
        self.points: Iterator[StartPoint] = iter(())
        self.emulator: Emulator | None = None
        self._frames = 0  # since the point
        self._is_over = False

    def start(self) -> StepOutput:
        """Goes to the next point; after the last one, repeats the last observation."""
        config = self._config
        self._is_over = False
        point = next(self.points, None)
        if point is None:
            assert self.emulator is not None
            observation, self.emulator = self.emulator.observation, None
            self._rest = _output(observation, is_first=True)
            return self._rest
        self.emulator = replay(
            self._starts, point, action_repeat=config.action_repeat, frame_stack=config.stack
        )
        self._frames = 0
        return _output(self.emulator.observation, is_first=True)

    def step(self, action: int) -> StepOutput:
        if self.emulator is None:
            return self._rest
        if self._is_over:
            return self.start()
        lives = self.emulator.lives
        reward = self.emulator.step(int(action))
        self._frames += self._config.action_repeat
        game_over = self.emulator.is_over
        life_lost = self._config.terminal_on_life_loss and self.emulator.lives < lives
        is_cut = self._frames >= self._config.max_episode_frames
        self._is_over = game_over or is_cut
        return _output(
            self.emulator.observation,
            reward=reward,
            terminal=game_over or life_lost,
            episode_over=self._is_over,
        )


def _gather(outputs: Iterable[StepOutput]) -> StepOutput:
    return StepOutput(*map(np.stack, zip(*outputs, strict=True)))


def _output(
    observation: np.ndarray,
    *,
    reward: float = 0.0,
    terminal: bool = False,
    episode_over: bool = False,
    is_first: bool = False,
) -> StepOutput:
    """The step of one lane, without the lane axis."""
    return StepOutput(
        observation=observation,
        reward=np.asarray(reward, np.float32),
        terminal=np.asarray(terminal),
        episode_over=np.asarray(episode_over),
        is_first=np.asarray(is_first),
    )
