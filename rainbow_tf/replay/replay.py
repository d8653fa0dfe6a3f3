"""Prioritized n-step replay on a ring of frames.

A slot holds one frame of a lane and the action, reward and discount that led to it; slots are
numbered lane after lane. A slot can be drawn only while its priority is above 0. It enters when
its n-step window closes and leaves when the write cursor reaches its oldest stacked frame, so
every draw is valid.
"""

import sys

import numpy as np

from rainbow_tf.replay.frames import FrameRing, Lz4FrameRing, RawFrameRing
from rainbow_tf.replay.sum_tree import SumTree
from rainbow_tf.types import Batch, WorldSpec

# Keeps a transition of error 0 drawable; far below any error that matters.
_PRIORITY_FLOOR = 1e-6
_LZ4_SHARE = 0.27  # of a frame's bytes, measured on Q*bert
_BYTES_BESIDE_FRAME = 23  # action, reward, discount, end, age and a leaf with its share of tree


def replay_bytes(capacity: int, spec: WorldSpec, *, compressed: bool = False) -> int:
    """Memory that a full replay takes; an estimate when compressed, as games differ."""
    frame = int(np.prod(spec.frame_shape)) * spec.frame_dtype.itemsize
    if compressed:
        frame = int(frame * _LZ4_SHARE) + sys.getsizeof(b"")
    return capacity * (frame + _BYTES_BESIDE_FRAME)


class Replay:
    """The last `capacity` steps of E lanes, drawn as n-step transitions."""

    def __init__(
        self,
        *,
        capacity: int,
        num_lanes: int,
        spec: WorldSpec,
        n_step: int,
        batch_size: int,
        prioritized: bool,
        priority_exponent: float,
        compressed: bool = False,
        rng: np.random.Generator,
    ):
        length = capacity // num_lanes
        stack = spec.frame_stack
        if length < stack + n_step:
            raise ValueError(f"A lane needs {stack + n_step} slots, capacity gives {length}.")
        self._length = length
        self._stack = stack
        self._n_step = n_step
        self._prioritized = prioritized
        self._exponent = priority_exponent
        self._rng = rng

        slots = num_lanes * length
        ring = Lz4FrameRing if compressed else RawFrameRing
        self._frames: FrameRing = ring(
            num_lanes=num_lanes,
            length=length,
            frame_shape=spec.frame_shape,
            frame_dtype=spec.frame_dtype,
            stack=stack,
        )
        self._action = np.zeros(slots, np.int32)
        self._reward = np.zeros(slots, np.float32)
        self._discount = np.zeros(slots, np.float32)
        self._window_end = np.zeros(slots, bool)  # terminal or end of the episode
        self._age = np.zeros(slots, np.uint8)  # earlier frames of the episode, at most stack - 1
        self._tree = SumTree(slots)
        self._max_priority = 1.0  # before the exponent, as errors are

        self._cursor = 0
        self._added = 0
        self._num_sampleable = 0
        self._lane_starts = np.arange(num_lanes) * length
        self._over = np.ones(num_lanes, bool)  # the next frame must start an episode
        self._open = np.zeros(num_lanes, np.int64)  # steps that wait for their window to close
        self._newest_age = np.zeros(num_lanes, np.uint8)
        self._back = np.arange(1, n_step + 1)
        self._ahead = np.arange(stack)
        self._strata = np.arange(batch_size)
        self._observations = np.zeros((2 * batch_size, stack, *spec.frame_shape), spec.frame_dtype)

    @property
    def num_sampleable(self) -> int:
        """Transitions that can be drawn now."""
        return self._num_sampleable

    @property
    def fill(self) -> float:
        """Share of the slots that hold a frame."""
        return min(1.0, self._added / self._length)

    @property
    def max_priority(self) -> float:
        """The largest error seen so far: the priority of a new transition."""
        return self._max_priority

    def add(
        self,
        *,
        frame: np.ndarray,  # [E, *frame]
        action_tm1: np.ndarray,  # [E]
        reward_t: np.ndarray,  # [E]
        discount_t: np.ndarray,  # [E], 0 at a terminal
        episode_over: np.ndarray,  # [E] bool, a first frame follows
        is_first: np.ndarray,  # [E] bool, no step led to this frame
    ) -> None:
        """Writes one step of every lane; of a first frame the action and reward do not count."""
        if not np.array_equal(is_first, self._over):
            raise ValueError("A first frame must follow the end of an episode, and only that.")
        cursor = self._cursor
        if self._added >= self._length:
            self._forget(cursor)
        slots = self._lane_starts + cursor
        self._frames.write(cursor, frame)
        self._action[slots] = action_tm1
        self._reward[slots] = reward_t
        self._discount[slots] = discount_t
        window_end = episode_over | (discount_t == 0)
        self._window_end[slots] = window_end
        older = np.minimum(self._newest_age + 1, self._stack - 1)
        self._newest_age = np.where(is_first, 0, older).astype(np.uint8)
        self._age[slots] = self._newest_age
        self._over = episode_over.copy()
        self._enter_closed(cursor, window_end, is_first)
        self._cursor = (cursor + 1) % self._length
        self._added += 1

    def _forget(self, cursor: int) -> None:
        """Takes out what the write at the cursor breaks: its slot and stacks that reach it."""
        slots = self._lane_starts[:, None] + (cursor + self._ahead) % self._length  # [E, S]
        self._set_priorities(slots[self._age[slots] >= self._ahead], 0.0)

    def _enter_closed(self, cursor: int, window_end: np.ndarray, is_first: np.ndarray) -> None:
        """Lets in the steps whose window closes with the frame at the cursor."""
        self._open = np.where(is_first, 0, self._open + 1)
        is_open = self._back <= self._open[:, None]  # [E, n]
        closes = is_open & (window_end[:, None] | (self._back == self._n_step))
        if not closes.any():
            return
        slots = self._lane_starts[:, None] + (cursor - self._back) % self._length
        self._set_priorities(slots[closes], self._max_priority**self._exponent)
        self._open -= closes.sum(axis=1)

    def _set_priorities(self, slots: np.ndarray, priorities: np.ndarray | float) -> None:
        before = np.count_nonzero(self._tree.get(slots))
        self._tree.set(slots, priorities)
        self._num_sampleable += int(np.count_nonzero(self._tree.get(slots)) - before)

    def sample(self, importance_exponent: float) -> tuple[np.ndarray, Batch]:
        """Draws a batch, one from each of B equal shares of the priority mass.

        Gives the ids for `update_priorities` and the batch, whose observations are
        overwritten by the next call.
        """
        if self._num_sampleable == 0:
            raise ValueError("Nothing to sample: no transition is complete yet.")
        total = self._tree.total
        size = len(self._strata)
        masses = (self._strata + self._rng.random(size)) * (total / size)
        slots = self._tree.find(masses)
        weight = (self._num_sampleable * self._tree.get(slots) / total) ** -importance_exponent
        weight /= weight.max()
        return self._ids(slots), self._transitions(slots, weight.astype(np.float32))

    def _ids(self, slots: np.ndarray) -> np.ndarray:
        """What the slots hold now: counts the ring's laps, so that an id never comes again."""
        laps = (self._added - 1 - slots % self._length) // self._length
        return laps * self._tree.capacity + slots

    def _transitions(self, slots: np.ndarray, weight: np.ndarray) -> Batch:
        size = len(slots)
        positions = slots % self._length
        lane_starts = slots - positions
        window = lane_starts[:, None] + (positions[:, None] + self._back) % self._length  # [B, n]
        ended = np.logical_or.accumulate(self._window_end[window], axis=1)
        inside = np.ones_like(ended)
        inside[:, 1:] = ~ended[:, :-1]
        discounts = np.cumprod(np.where(inside, self._discount[window], 1), axis=1)
        rewards = np.where(inside, self._reward[window], 0)
        rewards[:, 1:] *= discounts[:, :-1]
        steps = inside.sum(axis=1)
        last = window[np.arange(size), steps - 1]

        both = np.concatenate([slots, last])
        self._frames.gather(both, self._age[both], self._observations)
        return Batch(
            observation_tm1=self._observations[:size],
            action_tm1=self._action[window[:, 0]],
            reward_t=rewards.sum(axis=1, dtype=np.float32),
            discount_t=discounts[:, -1].astype(np.float32),
            observation_t=self._observations[size:],
            weight=weight,
        )

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Makes the errors (KL or absolute TD) the priorities of what is still there."""
        if not self._prioritized:
            return
        if not np.isfinite(errors).all():
            raise ValueError("Priorities must be finite: one that is not would spoil every draw.")
        priorities = np.maximum(errors, 0.0).astype(np.float64) + _PRIORITY_FLOOR
        self._max_priority = max(self._max_priority, float(priorities.max()))
        slots = ids % self._tree.capacity
        is_there = (self._ids(slots) == ids) & (self._tree.get(slots) > 0)
        self._tree.set(slots[is_there], priorities[is_there] ** self._exponent)
