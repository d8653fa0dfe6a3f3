"""One Atari game in a plain emulator, which replays recorded actions exactly."""

import hashlib
import zlib
from collections import deque
from pathlib import Path

import numpy as np
from ale_py import Action, ALEInterface, LoggerMode, roms

from rainbow_tf.environments.atari import FRAME_SHAPE
from rainbow_tf.environments.screens import shrink


def rom_path(game: str) -> Path:
    """The game's ROM."""
    path = roms.get_rom_path(game)
    assert path is not None, game
    return Path(path)


def rom_checksum(game: str) -> str:
    """SHA-256 of the game's ROM."""
    return hashlib.sha256(rom_path(game).read_bytes()).hexdigest()


class Emulator:
    """A game after a reset, without sticky actions, and the agent's observation of it.

    Actions are ALE codes, 0 to 17. Observations equal those of AtariEnvironment bit for bit.
    `ale` is for reading only; play with `hold` and `step`.
    """

    def __init__(self, game: str, *, seed: int, action_repeat: int, frame_stack: int):
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.ale = ALEInterface()
        self.ale.setInt("random_seed", seed)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(rom_path(game))
        self.ale.reset_game()
        self.minimal_actions: tuple[Action, ...] = tuple(self.ale.getMinimalActionSet())
        self._repeat = action_repeat
        self._stack = frame_stack
        # The newest grey screens, at first including the one after the reset.
        self._greys = deque([self.ale.getScreenGrayscale()], frame_stack * action_repeat + 1)
        self.look()

    def hold(self, action: int, frames: int) -> float:
        """Repeats an action for `frames` frames or until the game is over; returns the reward."""
        reward = 0.0
        for _ in range(frames):
            reward += self.ale.act(Action(action))
            self._greys.append(self.ale.getScreenGrayscale())
            if self.ale.game_over():
                break
        return reward

    def look(self) -> None:
        """Builds the whole observation, as if an agent step had ended here."""
        frames = [self._frame(age) for age in range(0, self._stack * self._repeat, self._repeat)]
        # [S, 84, 84], newest last; never changed in place.
        self.observation = np.stack(frames[::-1])

    def step(self, action: int) -> float:
        """Plays one agent step; returns its reward."""
        reward = self.hold(action, self._repeat)
        self.observation = np.concatenate([self.observation[1:], self._frame(0)[None]])
        return reward

    def _frame(self, age: int) -> np.ndarray:
        """The agent's frame `age` emulator frames ago; zeros before the reset."""
        if age >= len(self._greys):
            return np.zeros(FRAME_SHAPE, np.uint8)
        newest = self._greys[-1 - age]
        if self._repeat > 1 and age + 1 < len(self._greys):
            newest = np.maximum(newest, self._greys[-2 - age])
        return shrink(newest, FRAME_SHAPE)

    def checksum(self) -> str:
        """CRC-32 of the RAM, in hexadecimal."""
        return f"{zlib.crc32(self.ale.getRAM().tobytes()):08x}"
