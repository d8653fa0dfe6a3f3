"""Tracks when the n-step windows of E lanes close."""

import numpy as np


class Windows:
    """Counts each lane's steps whose window is still open."""

    def __init__(self, *, num_lanes: int, n_step: int):
        self.open = np.zeros(num_lanes, np.int64)
        self.back = np.arange(1, n_step + 1)

    def step(self, is_first: np.ndarray, window_end: np.ndarray) -> np.ndarray:
        """Adds one frame per lane; returns what `close` does."""
        self.open = np.where(is_first, 0, self.open + 1)
        return self.close(window_end)

    def close(self, window_end: np.ndarray) -> np.ndarray:
        """Which windows [E, n], opened 1 to n frames ago, the newest frame closes."""
        is_open = self.back <= self.open[:, None]
        closes = is_open & (window_end[:, None] | (self.back == self.back[-1]))
        self.open -= closes.sum(axis=1)
        return closes


def fold(
    rewards: np.ndarray, discounts: np.ndarray, inside: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Discounted sum of rewards and product of discounts [B] of the steps inside a window [B, n].

    The steps inside come first; those after them do not count.
    """
    discounts = np.cumprod(np.where(inside, discounts, 1), axis=1)
    rewards = np.where(inside, rewards, 0)
    rewards[:, 1:] *= discounts[:, :-1]
    return rewards.sum(axis=1, dtype=np.float32), discounts[:, -1].astype(np.float32)
