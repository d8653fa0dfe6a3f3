"""Whole games, added up from steps."""

import numpy as np

from rainbow_tf.types import Episode, StepOutput


class EpisodeTracker:
    """Adds up true scores of E lanes, over lost lives, until the game is over."""

    def __init__(self, num_lanes: int):
        self._scores = np.zeros(num_lanes)
        self._lengths = np.zeros(num_lanes, np.int64)

    def observe(self, output: StepOutput) -> list[Episode]:
        """Takes a step in; gives the episodes that it finished."""
        self._scores += output.reward
        self._lengths += ~output.is_first
        lanes = np.flatnonzero(output.episode_over)
        finished = [Episode(float(self._scores[i]), int(self._lengths[i])) for i in lanes]
        self._scores[lanes] = 0
        self._lengths[lanes] = 0
        return finished
