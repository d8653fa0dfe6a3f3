"""The frame rings: stacks assembled from single frames."""

import sys

import numpy as np
import pytest

from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment
from rainbow_tf.replay.frames import FrameRing, Lz4FrameRing
from rainbow_tf.replay.replay import replay_bytes
from rainbow_tf.types import EnvironmentSpec


@pytest.fixture(params=[FrameRing, Lz4FrameRing])
def ring_of(request):
    def make(*, num_lanes: int, length: int, stack: int, frame_shape=(), written: int):
        """Lane e holds 100 * (e + 1) + t at time t, in every pixel."""
        ring = request.param(
            slots=num_lanes * length,
            length=length,
            spec=EnvironmentSpec(frame_shape, np.dtype(np.int32), stack, 1, ()),
        )
        starts = np.arange(num_lanes) * length
        lanes = 100 * np.arange(1, num_lanes + 1).reshape(num_lanes, *[1] * len(frame_shape))
        for time in range(written):
            frames = np.broadcast_to(lanes + time, (num_lanes, *frame_shape))
            ring.set(starts + time % length, frames)
        return ring

    return make


def gather(ring: FrameRing, ids: list[int], ages: list[int], *, stack: int, frame_shape=()):
    out = np.full((len(ids), stack, *frame_shape), -1, np.int32)
    ring.gather(np.array(ids), np.array(ages, np.uint8), out)
    return out


def test_newest_frame_is_last(ring_of):
    ring = ring_of(num_lanes=1, length=6, stack=3, written=5)
    assert gather(ring, [4, 3], [2, 2], stack=3).tolist() == [[102, 103, 104], [101, 102, 103]]


def test_frames_before_the_episode_are_zeros(ring_of):
    ring = ring_of(num_lanes=1, length=6, stack=3, written=5)
    stacks = gather(ring, [4, 4, 4], [0, 1, 2], stack=3)
    assert stacks.tolist() == [[0, 0, 104], [0, 103, 104], [102, 103, 104]]


def test_stack_wraps_around_within_its_lane(ring_of):
    # After 8 writes in 5 slots: slots 0, 1, 2 hold times 5, 6, 7 and slots 3, 4 hold 3, 4.
    ring = ring_of(num_lanes=3, length=5, stack=3, written=8)
    stacks = gather(ring, [0, 5, 11, 12], [2, 2, 2, 2], stack=3)
    assert stacks.tolist() == [[103, 104, 105], [203, 204, 205], [304, 305, 306], [305, 306, 307]]


@pytest.mark.parametrize("frame_shape", [(), (4,), (2, 3), (2, 3, 2)])
def test_frames_of_any_shape(ring_of, frame_shape):
    ring = ring_of(num_lanes=2, length=4, stack=2, frame_shape=frame_shape, written=4)
    stacks = gather(ring, [6, 1], [1, 0], stack=2, frame_shape=frame_shape)
    assert stacks.shape == (2, 2, *frame_shape)
    expected = np.array([[201, 202], [0, 101]]).reshape(2, 2, *[1] * len(frame_shape))
    np.testing.assert_array_equal(stacks, np.broadcast_to(expected, stacks.shape))


def test_stack_of_one(ring_of):
    ring = ring_of(num_lanes=2, length=3, stack=1, written=4)
    assert gather(ring, [0, 4], [0, 0], stack=1).tolist() == [[103], [201]]


@pytest.mark.parametrize("frame_shape", [(), (2, 3)])
def test_get_and_set(ring_of, frame_shape):
    ring = ring_of(num_lanes=2, length=4, stack=1, frame_shape=frame_shape, written=4)
    slots = np.array([6, 1])
    frames = ring.get(slots)
    assert frames.shape == (2, *frame_shape)
    assert frames.reshape(2, -1)[:, 0].tolist() == [202, 101]
    other = ring_of(num_lanes=2, length=4, stack=1, frame_shape=frame_shape, written=0)
    other.set(slots, frames)
    np.testing.assert_array_equal(other.get(slots), frames)


def test_gather_does_not_change_the_ring(ring_of):
    ring = ring_of(num_lanes=1, length=4, stack=2, written=4)
    gather(ring, [2], [0], stack=2)
    assert gather(ring, [2], [1], stack=2).tolist() == [[101, 102]]


def test_compressed_frames_need_a_quarter_of_the_memory():
    environment = make_environment(Config(game="qbert"), num_envs=1, seed=1)
    spec = EnvironmentSpec((84, 84), np.dtype(np.uint8), 1, 6, ())
    ring = Lz4FrameRing(slots=400, length=400, spec=spec)
    rng = np.random.default_rng(1)
    environment.reset()
    frames = np.array(
        [environment.step(rng.integers(6, size=1)).observation[:, -1] for _ in range(400)]
    )
    for position, frame in enumerate(frames):
        ring.set(np.array([position]), frame)
    out = np.empty((400, 1, 84, 84), np.uint8)
    ring.gather(np.arange(400), np.zeros(400, np.uint8), out)
    np.testing.assert_array_equal(out, frames)
    held = sum(sys.getsizeof(packed) for packed in ring._frames) / 400
    per_step = replay_bytes(1, environment.spec, compressed=True)
    assert held < per_step < 2_200
