"""Atari 2600 games, preprocessed as in the paper, E lanes stepped together in C++."""

import functools

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from rainbow_tf.config import Config
from rainbow_tf.types import StepOutput, WorldSpec

FRAME_SHAPE = (84, 84)
SCREEN_SHAPE = (210, 160)  # of every game


class AtariWorld:
    """E lanes of one game; in training a lost life may be terminal, but never resets the game."""

    def __init__(
        self,
        *,
        config: Config,
        num_envs: int,
        seed: int,
        training: bool,
        num_threads: int = 0,
        screens: bool = False,
    ) -> None:
        assert config.game is not None
        self._life_loss_is_terminal = training and config.terminal_on_life_loss
        # Spread, because consecutive seeds would give neighbouring runs the same lanes.
        self._seeds = np.random.SeedSequence(seed).generate_state(num_envs).astype(np.int64) >> 1
        make = functools.partial(_make_lanes, config, num_envs, num_threads)
        self._env = make(shape=FRAME_SHAPE, grayscale=True, stack_num=config.stack)
        # Same seeds, same actions: the same games, in colour and as large as the emulator's.
        self._screens = make(shape=SCREEN_SHAPE, grayscale=False, stack_num=1) if screens else None
        self._screen = np.zeros((*SCREEN_SHAPE, 3), np.uint8)
        actions = self._env.ale.get_action_set()
        self.spec = WorldSpec(
            frame_shape=FRAME_SHAPE,
            frame_dtype=np.dtype(np.uint8),
            frame_stack=config.stack,
            num_actions=len(actions),
            action_meanings=tuple(action.name for action in actions),
        )
        self._lives = np.zeros(num_envs, np.int32)
        self._episode_over = np.zeros(num_envs, bool)

    def reset(self) -> StepOutput:
        """Starts every lane anew from the constructor's seed."""
        observation, info = self._env.reset(seed=self._seeds)
        if self._screens is not None:
            self._screen = self._screens.reset(seed=self._seeds)[0][0, -1]
        self._lives = info["lives"]
        num_envs = len(self._lives)
        self._episode_over = np.zeros(num_envs, bool)
        return StepOutput(
            observation=observation,
            reward=np.zeros(num_envs, np.float32),
            terminal=np.zeros(num_envs, bool),
            episode_over=self._episode_over,
            is_first=np.ones(num_envs, bool),
        )

    def step(self, actions: np.ndarray) -> StepOutput:
        """Holds each lane's action for `action_repeat` frames; a lane that was over restarts."""
        actions = actions.astype(np.int64)
        observation, reward, game_over, cut, info = self._env.step(actions)
        if self._screens is not None:
            self._screen = self._screens.step(actions)[0][0, -1]
        is_first, self._episode_over = self._episode_over, game_over | cut
        terminal = game_over
        if self._life_loss_is_terminal:
            # Not across a restart: an episode may be cut with more lives than it began with.
            terminal = game_over | ((info["lives"] < self._lives) & ~is_first)
        self._lives = info["lives"]
        return StepOutput(
            observation=observation,
            reward=reward.astype(np.float32),
            terminal=terminal,
            episode_over=self._episode_over,
            is_first=is_first,
        )

    def screen(self) -> np.ndarray:
        """The first lane's screen [210, 160, 3], the larger of its last two frames."""
        return self._screen

    def close(self) -> None:
        """Ends the lanes."""
        self._env.close()
        if self._screens is not None:
            self._screens.close()


def _make_lanes(
    config: Config,
    num_envs: int,
    num_threads: int,
    *,
    shape: tuple[int, int],
    grayscale: bool,
    stack_num: int,
) -> AtariVectorEnv:
    return AtariVectorEnv(
        str(config.game),
        num_envs,
        num_threads=num_threads,
        max_num_frames_per_episode=config.max_episode_frames,
        repeat_action_probability=config.sticky_action_probability,
        full_action_space=False,
        autoreset_mode=AutoresetMode.NEXT_STEP,
        img_height=shape[0],
        img_width=shape[1],
        grayscale=grayscale,
        stack_num=stack_num,
        frameskip=config.action_repeat,
        maxpool=True,
        noop_max=config.noop_max + 1,  # It draws from 0 to noop_max - 1.
        use_fire_reset=False,
        reward_clipping=False,
        episodic_life=False,
        # Off, so that `terminated` is game over and nothing else; its life loss also misses
        # the step to 0 lives in games that are still played then (Bank Heist, Atlantis).
        life_loss_info=False,
    )
