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
