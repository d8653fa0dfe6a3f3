"""Frames of E lanes in one ring each; an observation is put together when it is read."""

import numpy as np


class FrameRing:
    """`length` frames per lane, written in lockstep; every frame is held once."""

    def __init__(
        self,
        *,
        num_lanes: int,
        length: int,
        frame_shape: tuple[int, ...],
        frame_dtype: np.dtype,
        stack: int,
    ):
        self._length = length
        # Untouched pages cost nothing: memory is taken as the ring fills.
        self._frames = np.zeros((num_lanes * length, *frame_shape), frame_dtype)
        self._lane_starts = np.arange(num_lanes) * length
        self._back = np.arange(stack - 1, -1, -1)  # newest frame last

    def write(self, position: int, frames: np.ndarray) -> None:
        """Puts one new frame of every lane into its ring."""
        self._frames[self._lane_starts + position] = frames

    def gather(self, slots: np.ndarray, ages: np.ndarray, out: np.ndarray) -> None:
        """Fills out [M, S, *frame] with the stacks that end at `slots`.

        `ages` counts the frames of the same episode before each slot's; older ones are zeros.
        """
        positions = slots % self._length
        lane_starts = (slots - positions)[:, None]
        wanted = lane_starts + (positions[:, None] - self._back) % self._length  # [M, S]
        # Without mode="clip" NumPy gathers into a second buffer first.
        np.take(self._frames, wanted, axis=0, out=out, mode="clip")
        out[self._back > ages[:, None]] = 0
