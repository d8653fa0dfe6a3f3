"""Rings of single frames, one per lane; observations are stacked when they are read."""

from typing import Any

import lz4.block
import numpy as np

from rainbow_tf.types import EnvironmentSpec


class FrameRing:
    """Every frame is stored once, in `slots` of which each lane has `length`."""

    def __init__(self, *, slots: int, length: int, spec: EnvironmentSpec):
        self._length = length
        self._frame_shape = spec.frame_shape
        self._dtype = spec.frame_dtype
        self._back = np.arange(spec.frame_stack - 1, -1, -1)  # newest frame last
        self._frames = self._empty(slots)

    def _empty(self, slots: int) -> Any:
        # Allocated lazily: memory use grows as the ring fills.
        return np.zeros((slots, *self._frame_shape), self._dtype)

    def gather(self, slots: np.ndarray, ages: np.ndarray, out: np.ndarray) -> None:
        """Fills out [M, S, *frame] with the stacks that end at `slots`.

        `ages` are the numbers of earlier frames in the episode; frames before it are zeros.
        """
        # With the default mode NumPy gathers into a second buffer first.
        np.take(self._frames, self._stacked(slots), axis=0, out=out, mode="clip")
        out[self._back > ages[:, None]] = 0

    def get(self, slots: np.ndarray) -> np.ndarray:
        """The frames [M, *frame] of the slots."""
        return self._frames[slots]

    def set(self, slots: np.ndarray, frames: np.ndarray) -> None:
        """Writes frames into the slots."""
        self._frames[slots] = frames

    def _stacked(self, slots: np.ndarray) -> np.ndarray:
        """The slots [M, S] of the stacks that end at `slots`; wraps within each lane's ring."""
        positions = slots % self._length
        return (slots - positions)[:, None] + (positions[:, None] - self._back) % self._length


class Lz4FrameRing(FrameRing):
    """Frames compressed one by one: a quarter of the memory, but a slower gather."""

    def _empty(self, slots: int) -> list[bytes]:
        self._frame_bytes = int(np.prod(self._frame_shape)) * self._dtype.itemsize
        return [b""] * slots

    def gather(self, slots: np.ndarray, ages: np.ndarray, out: np.ndarray) -> None:
        """Fills out with the stacks that end at `slots`."""
        wanted = self._stacked(slots)
        rows = out.reshape(wanted.size, -1).view(np.uint8)
        is_there = self._back <= ages[:, None]
        for row, slot, there in zip(rows, wanted.flat, is_there.flat, strict=True):
            row[:] = self._unpacked(slot) if there else 0

    def get(self, slots: np.ndarray) -> np.ndarray:
        """The frames of the slots."""
        frames = np.stack([self._unpacked(slot) for slot in slots])
        return frames.view(self._dtype).reshape(len(slots), *self._frame_shape)

    def set(self, slots: np.ndarray, frames: np.ndarray) -> None:
        """Writes frames into the slots."""
        for slot, frame in zip(slots, frames, strict=True):
            raw = np.ascontiguousarray(frame, self._dtype)
            self._frames[slot] = lz4.block.compress(raw, store_size=False)

    def _unpacked(self, slot: int) -> np.ndarray:
        packed = self._frames[slot]
        frame = lz4.block.decompress(packed, uncompressed_size=self._frame_bytes)
        return np.frombuffer(frame, np.uint8)
