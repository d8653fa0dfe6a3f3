"""Prioritized n-step replay on a ring of frames.

A slot holds one frame of a lane and the action, reward and discount that led to it; slots are
numbered lane by lane. Only slots with a positive priority are sampled. A slot gets one when its
n-step window closes and loses it when the write cursor reaches its oldest stacked frame, so every
sample is valid.
"""

import sys

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.replay.frames import FrameRing, Lz4FrameRing
from rainbow_tf.replay.sum_tree import SumTree
from rainbow_tf.replay.windows import Windows, fold
from rainbow_tf.types import Batch, EnvironmentSpec

# Keeps transitions of error 0 sampleable; far below any error that matters.
_PRIORITY_FLOOR = 1e-6
_LZ4_SHARE = 0.27  # of a frame's bytes, measured on Q*bert
_BYTES_BESIDE_FRAME = 23  # action, reward, discount, window end, age, and the sum tree
CHUNK_SLOTS = 4096  # 29 MB of Atari frames


def make_replay(
    config: Config, spec: EnvironmentSpec, *, capacity: int, rng: np.random.Generator
) -> "Replay":
    """The replay of the settings for the lanes of one process."""
    return Replay(
        capacity=capacity,
        num_lanes=config.num_envs,
        spec=spec,
        n_step=config.n_step,
        batch_size=config.batch_size,
        prioritized=config.prioritized,
        priority_exponent=config.priority_exponent,
        compressed=config.compressed_replay,
        rng=rng,
    )


def replay_bytes(capacity: int, spec: EnvironmentSpec, *, compressed: bool = False) -> int:
    """Memory of a full replay; an estimate if compressed, since games differ."""
    frame = int(np.prod(spec.frame_shape)) * spec.frame_dtype.itemsize
    if compressed:
        frame = int(frame * _LZ4_SHARE) + sys.getsizeof(b"")
    return capacity * (frame + _BYTES_BESIDE_FRAME)


class Replay:
    """The last `capacity` steps of E lanes, sampled as n-step transitions."""

    def __init__(
        self,
        *,
        capacity: int,
        num_lanes: int,
        spec: EnvironmentSpec,
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
        self._prioritized = prioritized
        self._exponent = priority_exponent
        self.rng = rng

        slots = num_lanes * length
        ring = Lz4FrameRing if compressed else FrameRing
        self._frames = ring(slots=slots, length=length, spec=spec)
        self._action = np.zeros(slots, np.int32)
        self._reward = np.zeros(slots, np.float32)
        self._discount = np.zeros(slots, np.float32)
        self._window_end = np.zeros(slots, bool)  # terminal or last frame of the episode
        self._age = np.zeros(slots, np.uint8)  # earlier frames of the episode, at most stack - 1
        self._columns = {
            "action": self._action,
            "reward": self._reward,
            "discount": self._discount,
            "window_end": self._window_end,
            "age": self._age,
        }
        self._tree = SumTree(slots)
        self.max_priority = 1.0  # the largest error so far; new transitions get it

        self._cursor = 0
        self._added = 0
        self.num_sampleable = 0  # transitions that can be sampled now
        self._lane_starts = np.arange(num_lanes) * length
        self._over = np.ones(num_lanes, bool)  # the next frame must start an episode
        self._windows = Windows(num_lanes=num_lanes, n_step=n_step)
        self._newest_age = np.zeros(num_lanes, np.uint8)
        self._chunk_length = max(1, CHUNK_SLOTS // num_lanes)
        self._changed = np.zeros(-(-length // self._chunk_length), bool)
        self._ahead = np.arange(stack)
        self._strata = np.arange(batch_size)
        self._observations = np.zeros((2 * batch_size, stack, *spec.frame_shape), spec.frame_dtype)

    @property
    def fill(self) -> float:
        """Share of the slots that hold a frame."""
        return min(1.0, self._added / self._length)

    @property
    def total_priority(self) -> float:
        """Sum of all priorities, after the exponent."""
        return self._tree.total

    def add(
        self,
        *,
        frame: np.ndarray,  # [E, *frame]
        action_tm1: np.ndarray,  # [E]
        reward_t: np.ndarray,  # [E]
        discount_t: np.ndarray,  # [E], 0 at a terminal
        episode_over: np.ndarray,  # [E] bool, the next frame is a first one
        is_first: np.ndarray,  # [E] bool, no step led to this frame
        errors: np.ndarray | None = None,  # [E, n], of the steps begun 1 to n frames ago
    ) -> None:
        """Writes one step of every lane; action and reward of a first frame are ignored.

        When its window closes, a step gets its error as priority, or the largest one seen so far.
        """
        if not np.array_equal(is_first, self._over):
            raise ValueError("A first frame must follow the end of an episode, and only that.")
        cursor = self._cursor
        if self._added >= self._length:
            self._forget(cursor)
        slots = self._lane_starts + cursor
        self._frames.set(slots, frame)
        self._action[slots] = action_tm1
        self._reward[slots] = reward_t
        self._discount[slots] = discount_t
        window_end = episode_over | (discount_t == 0)
        self._window_end[slots] = window_end
        older = np.minimum(self._newest_age + 1, self._stack - 1)
        self._newest_age = np.where(is_first, 0, older).astype(np.uint8)
        self._age[slots] = self._newest_age
        self._over = episode_over.copy()
        self._enter(cursor, self._windows.step(is_first, window_end), errors)
        self._changed[cursor // self._chunk_length] = True
        self._cursor = (cursor + 1) % self._length
        self._added += 1

    def _forget(self, cursor: int) -> None:
        """Removes the slots whose stacks include the frame about to be overwritten."""
        slots = self._lane_starts[:, None] + (cursor + self._ahead) % self._length  # [E, S]
        self._set_priorities(slots[self._age[slots] >= self._ahead], 0.0)

    def cut_episodes(self) -> None:
        """Truncates every lane's episode at its newest frame, as a frame cap would."""
        newest = (self._cursor - 1) % self._length
        self._window_end[self._lane_starts + newest] = True
        self._over[:] = True
        self._enter(newest, self._windows.close(self._over), None)
        self._changed[newest // self._chunk_length] = True

    def _enter(self, cursor: int, closes: np.ndarray, errors: np.ndarray | None) -> None:
        """Makes the steps sampleable whose window closes with the frame at the cursor."""
        if not closes.any():
            return
        slots = self._lane_starts[:, None] + (cursor - self._windows.back) % self._length
        if errors is None or not self._prioritized:
            priorities: np.ndarray | float = self.max_priority**self._exponent
        else:
            priorities = self._priorities_of(errors[closes])
        self._set_priorities(slots[closes], priorities)

    def _set_priorities(self, slots: np.ndarray, priorities: np.ndarray | float) -> None:
        before = np.count_nonzero(self._tree.get(slots))
        self._tree.set(slots, priorities)
        self.num_sampleable += int(np.count_nonzero(self._tree.get(slots)) - before)

    def sample(
        self, importance_exponent: float, size: int | None = None
    ) -> tuple[np.ndarray, Batch]:
        """Samples `size` transitions (by default a batch), stratified by priority mass.

        Returns the ids for `update_priorities` and the batch, whose observations are
        overwritten by the next call.
        """
        if self.num_sampleable == 0:
            raise ValueError("Nothing to sample: no transition is complete yet.")
        total = self._tree.total
        size = len(self._strata) if size is None else size
        masses = (self._strata[:size] + self.rng.random(size)) * (total / size)
        slots = self._tree.find(masses)
        weight = (self.num_sampleable * self._tree.get(slots) / total) ** -importance_exponent
        weight /= weight.max()
        return self._ids(slots), self._transitions(slots, weight.astype(np.float32))

    def _ids(self, slots: np.ndarray) -> np.ndarray:
        """Ids of the slots' present content; they include the lap and are never reused."""
        laps = (self._added - 1 - slots % self._length) // self._length
        return laps * self._tree.capacity + slots

    def _transitions(self, slots: np.ndarray, weight: np.ndarray) -> Batch:
        size = len(slots)
        positions = slots % self._length
        lane_starts = slots - positions
        window = (
            lane_starts[:, None] + (positions[:, None] + self._windows.back) % self._length
        )  # [B, n]
        ended = np.logical_or.accumulate(self._window_end[window], axis=1)
        inside = np.ones_like(ended)
        inside[:, 1:] = ~ended[:, :-1]
        reward_t, discount_t = fold(self._reward[window], self._discount[window], inside)
        steps = inside.sum(axis=1)
        last = window[np.arange(size), steps - 1]

        both = np.concatenate([slots, last])
        observations = self._observations[: 2 * size]
        self._frames.gather(both, self._age[both], observations)
        return Batch(
            observation_tm1=observations[:size],
            action_tm1=self._action[window[:, 0]],
            reward_t=reward_t,
            discount_t=discount_t,
            observation_t=observations[size:],
            weight=weight,
        )

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Sets the priorities of transitions still stored from their errors (KL or |TD|)."""
        if not self._prioritized:
            return
        priorities = self._priorities_of(errors)
        slots = ids % self._tree.capacity
        is_there = (self._ids(slots) == ids) & (self._tree.get(slots) > 0)
        self._tree.set(slots[is_there], priorities[is_there])

    def _priorities_of(self, errors: np.ndarray) -> np.ndarray:
        """Priorities for these errors, after the exponent; updates the largest one."""
        if not np.isfinite(errors).all():
            raise ValueError("Priorities must be finite: one that is not would spoil every draw.")
        priorities = np.maximum(errors, 0.0).astype(np.float64) + _PRIORITY_FLOOR
        self.max_priority = max(self.max_priority, float(priorities.max()))
        return priorities**self._exponent

    def priorities(self, ids: np.ndarray) -> np.ndarray:
        """Priorities of sampled transitions, after the exponent."""
        return self._tree.get(ids % self._tree.capacity)

    def state(self) -> dict[str, np.ndarray]:
        """Priorities and counters for a checkpoint; the steps are in the chunks."""
        return {
            "priorities": self._tree.leaves(),
            "max_priority": np.array(self.max_priority),
            "cursor": np.array(self._cursor),
            "added": np.array(self._added),
            "over": self._over,
            "open": self._windows.open,
            "newest_age": self._newest_age,
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restores what `state` returned; the chunks come separately."""
        self._tree.fill(state["priorities"])
        self.num_sampleable = int(np.count_nonzero(self._tree.leaves()))
        self.max_priority = float(state["max_priority"])
        self._cursor = int(state["cursor"])
        self._added = int(state["added"])
        self._over[:] = state["over"]
        self._windows.open[:] = state["open"]
        self._newest_age[:] = state["newest_age"]

    def written_chunks(self) -> range:
        """Numbers of the chunks that hold steps; a chunk is a section of every lane's ring."""
        return range(-(-min(self._added, self._length) // self._chunk_length))

    def changed_chunks(self) -> list[int]:
        """Numbers of the chunks written to since `forget_changes`."""
        return np.flatnonzero(self._changed).tolist()

    def forget_changes(self) -> None:
        """Marks all chunks as saved."""
        self._changed[:] = False

    def chunk(self, number: int) -> dict[str, np.ndarray]:
        """The steps of a chunk."""
        slots = self._chunk_slots(number)
        columns = {name: column[slots] for name, column in self._columns.items()}
        return {"frame": self._frames.get(slots), **columns}

    def restore_chunk(self, number: int, steps: dict[str, np.ndarray]) -> None:
        """Restores what `chunk` returned; call `restore` first."""
        self._changed[number] = True
        slots = self._chunk_slots(number)
        self._frames.set(slots, steps["frame"])
        for name, column in self._columns.items():
            column[slots] = steps[name]

    def _chunk_slots(self, number: int) -> np.ndarray:
        """The written slots of a chunk, lane by lane."""
        start = number * self._chunk_length
        stop = min(start + self._chunk_length, self._length, self._added)
        return (self._lane_starts[:, None] + np.arange(start, stop)).ravel()
