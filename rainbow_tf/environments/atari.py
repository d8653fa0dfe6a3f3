"""Atari 2600 games, preprocessed as in the paper, E lanes stepped together in C++."""

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from rainbow_tf.config import Config
from rainbow_tf.types import EnvironmentSpec, StepOutput

FRAME_SHAPE = (84, 84)
SCREEN_SHAPE = (210, 160)  # the same for every game


class AtariEnvironment:
    """E lanes of one game. A lost life can be terminal; it never resets the game."""

    def __init__(self, *, config: Config, num_envs: int, seed: int, screens: bool = False) -> None:
        # In evaluation too: values predict returns that end at a lost life.
        self._life_loss_is_terminal = config.terminal_on_life_loss
        # Hashed: with consecutive lane seeds, runs 1 and 2 would share most of their lanes.
        self._seeds = np.random.SeedSequence(seed).generate_state(num_envs).astype(np.int64) >> 1
        self._env = _make_lanes(
            config, num_envs, FRAME_SHAPE, grayscale=True, stack_num=config.stack
        )
        self._screens = None
        if screens:  # the same games (same seeds, same actions) in colour at full resolution
            self._screens = _make_lanes(
                config, num_envs, SCREEN_SHAPE, grayscale=False, stack_num=1
            )
        self._screen = np.zeros((*SCREEN_SHAPE, 3), np.uint8)
        actions = self._env.ale.get_action_set()
        self.spec = EnvironmentSpec(
            frame_shape=FRAME_SHAPE,
            frame_dtype=np.dtype(np.uint8),
            frame_stack=config.stack,
            num_actions=len(actions),
            action_meanings=tuple(action.name for action in actions),
        )
        self._lives = np.zeros(num_envs, np.int32)
        self._episode_over = np.zeros(num_envs, bool)

    def reset(self) -> StepOutput:
        """Restarts every lane from the constructor's seed."""
        observation, info = self._env.reset(seed=self._seeds)
        if self._screens is not None:
            self._screen = self._screens.reset(seed=self._seeds)[0][0, -1]
        self._lives = info["lives"]
        output = StepOutput.first(observation)
        self._episode_over = output.episode_over
        return output

    def step(self, actions: np.ndarray) -> StepOutput:
        """Repeats each action for `action_repeat` frames; a lane whose episode ended restarts."""
        actions = actions.astype(np.int64)
        observation, reward, game_over, cut, info = self._env.step(actions)
        if self._screens is not None:
            self._screen = self._screens.step(actions)[0][0, -1]
        is_first, self._episode_over = self._episode_over, game_over | cut
        terminal = game_over
        if self._life_loss_is_terminal:
            # Not at a restart: a truncated episode can have more lives than a new one.
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
        """The first lane's screen [210, 160, 3], the maximum of its last two frames."""
        return self._screen

    def close(self) -> None:
        """Closes the emulators."""
        self._env.close()
        if self._screens is not None:
            self._screens.close()


def _make_lanes(
    config: Config, num_envs: int, shape: tuple[int, int], *, grayscale: bool, stack_num: int
) -> AtariVectorEnv:
    return AtariVectorEnv(
        str(config.game),
        num_envs,
        num_threads=0,  # as many as there are cores
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
        noop_max=config.noop_max + 1,  # exclusive in ale-py
        use_fire_reset=False,
        reward_clipping=False,
        episodic_life=False,
        # Off: `terminated` then means game over only. ale-py's life loss also misses the last
        # life in games that continue with 0 lives (Bank Heist, Atlantis).
        life_loss_info=False,
    )
