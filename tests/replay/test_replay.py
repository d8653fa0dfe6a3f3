"""The replay against a simple reference that keeps whole episodes, and literal examples."""

import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rainbow_tf.replay.replay import Replay, replay_bytes
from rainbow_tf.types import Batch, EnvironmentSpec

ATARI = EnvironmentSpec(
    frame_shape=(84, 84),
    frame_dtype=np.dtype(np.uint8),
    frame_stack=4,
    num_actions=18,
    action_meanings=(),
)


def make_replay(
    *,
    length: int,
    num_lanes: int = 1,
    spare: int = 0,
    n_step: int = 1,
    stack: int = 1,
    frame_shape: tuple[int, ...] = (),
    batch_size: int | None = None,
    prioritized: bool = True,
    priority_exponent: float = 0.5,
    seed: int = 0,
) -> Replay:
    slots = num_lanes * length
    return Replay(
        capacity=slots + spare,
        num_lanes=num_lanes,
        spec=EnvironmentSpec(
            frame_shape=frame_shape,
            frame_dtype=np.dtype(np.int32),
            frame_stack=stack,
            num_actions=4,
            action_meanings=("a", "b", "c", "d"),
        ),
        n_step=n_step,
        batch_size=slots if batch_size is None else batch_size,
        prioritized=prioritized,
        priority_exponent=priority_exponent,
        rng=np.random.default_rng(seed),
    )


def sampleable(replay: Replay) -> list[int]:
    """Slots that can be sampled now."""
    slots = np.flatnonzero(replay._tree.leaves()).tolist()
    assert replay.num_sampleable == len(slots)
    return slots


def read(replay: Replay, slots: list[int]) -> Batch:
    """The transitions of these slots, in this order."""
    size = len(replay._strata)
    assert len(slots) <= size
    batch = replay._transitions(np.resize(slots, size), np.ones(size, np.float32))
    return Batch(*(field[: len(slots)] for field in batch))


# --- The reference ---


class Step(NamedTuple):
    """One call of `add` for one lane."""

    frame: np.ndarray
    action: int
    reward: float
    discount: float
    episode_over: bool
    is_first: bool


class Expected(NamedTuple):
    """An expected transition, and the times between which it can be sampled."""

    lane: int
    start: int  # time of the first observation
    oldest: int  # time of its oldest frame
    closes: int  # time of the last observation
    observation_tm1: np.ndarray
    action_tm1: int
    reward_t: float
    discount_t: float
    observation_t: np.ndarray

    def is_sampleable(self, now: int, length: int) -> bool:
        """Whether `now` written frames complete it and a ring of `length` still holds it."""
        return self.closes < now and self.oldest >= now - length

    def slot(self, length: int) -> int:
        return self.lane * length + self.start % length


def reference_transitions(lane: int, steps: list[Step], n_step: int, stack: int) -> list[Expected]:
    """All transitions of a lane, episode by episode."""
    episodes: list[list[Step]] = []
    for step in steps:
        if step.is_first:
            episodes.append([])
        episodes[-1].append(step)

    transitions = []
    episode_start = 0
    for episode in episodes:
        blank = [np.zeros_like(episode[0].frame)] * (stack - 1)
        padded = blank + [step.frame for step in episode]
        for first in range(len(episode)):
            reward, discount = 0.0, 1.0
            closed = False
            last = first
            while not closed and last + 1 < len(episode):
                last += 1
                reward += discount * episode[last].reward
                discount *= episode[last].discount
                is_cut = episode[last].discount == 0 or episode[last].episode_over
                closed = is_cut or last - first == n_step
            if closed:
                transitions.append(
                    Expected(
                        lane=lane,
                        start=episode_start + first,
                        oldest=episode_start + max(0, first - stack + 1),
                        closes=episode_start + last,
                        observation_tm1=np.stack(padded[first : first + stack]),
                        action_tm1=episode[first + 1].action,
                        reward_t=reward,
                        discount_t=discount,
                        observation_t=np.stack(padded[last : last + stack]),
                    )
                )
        episode_start += len(episode)
    return transitions


def assert_equals(batch: Batch, expected: list[Expected]) -> None:
    for name in ("observation_tm1", "action_tm1", "observation_t"):
        np.testing.assert_array_equal(
            getattr(batch, name), [getattr(one, name) for one in expected], err_msg=name
        )
    for name in ("reward_t", "discount_t"):
        values = [getattr(one, name) for one in expected]
        np.testing.assert_allclose(getattr(batch, name), values, rtol=1e-5, atol=1e-5, err_msg=name)
    # A terminal gives a discount of exactly 0.
    np.testing.assert_array_equal(batch.discount_t == 0, [one.discount_t == 0 for one in expected])


# --- Any sequence of steps ---


class Case(NamedTuple):
    num_lanes: int
    length: int
    spare: int  # slots that cannot be divided among the lanes
    n_step: int
    stack: int
    endings: list[bytes]  # per lane, one byte per moment
    rarity: int
    seed: int

    def script(self) -> list[list[Step]]:
        """The lanes' steps; every frame, reward and discount is unique."""
        rng = np.random.default_rng(self.seed)
        lanes = []
        for lane, endings in enumerate(self.endings):
            steps: list[Step] = []
            over = True
            for moment, byte in enumerate(endings):
                is_first = over
                life_lost, terminal, truncated = (byte % self.rarity == k for k in (1, 2, 3))
                over = terminal or truncated
                number = 1000 * (lane + 1) + moment
                steps.append(
                    Step(
                        frame=np.array([number, -number], np.int32),
                        action=int(rng.integers(1_000_000)),
                        # Action and reward of a first frame must never be seen.
                        reward=rng.normal() * (1e6 if is_first else 1),
                        discount=0.0 if life_lost or terminal else rng.uniform(0.5, 1),
                        episode_over=over,
                        is_first=is_first,
                    )
                )
            lanes.append(steps)
        return lanes

    def replay(self, **settings) -> Replay:
        return make_replay(
            length=self.length,
            num_lanes=self.num_lanes,
            spare=self.spare,
            n_step=self.n_step,
            stack=self.stack,
            frame_shape=(2,),
            seed=self.seed,
            **settings,
        )

    def play(self, replay: Replay) -> Iterator[dict[int, Expected]]:
        """Adds step by step; yields the transitions to be sampleable after each, by slot."""
        lanes = self.script()
        transitions = [
            one
            for lane, steps in enumerate(lanes)
            for one in reference_transitions(lane, steps, self.n_step, self.stack)
        ]
        for moment, steps in enumerate(zip(*lanes, strict=True)):
            frame, action, reward, discount, over, first = map(np.array, zip(*steps, strict=True))
            replay.add(
                frame=frame,
                action_tm1=action,
                reward_t=reward,
                discount_t=discount,
                episode_over=over,
                is_first=first,
            )
            yield {
                one.slot(self.length): one
                for one in transitions
                if one.is_sampleable(moment + 1, self.length)
            }


@st.composite
def cases(draw) -> Case:
    num_lanes = draw(st.integers(1, 3))
    n_step = draw(st.integers(1, 5))
    stack = draw(st.integers(1, 4))
    length = stack + n_step + draw(st.integers(0, 6))
    num_moments = draw(st.sampled_from([1, 2, 3, 5])) * length - draw(st.integers(0, length - 1))
    endings = st.one_of(
        st.binary(min_size=num_moments, max_size=num_moments),  # shrinks well
        st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).bytes(num_moments)),
    )
    return Case(
        num_lanes=num_lanes,
        length=length,
        spare=draw(st.integers(0, num_lanes - 1)),
        n_step=n_step,
        stack=stack,
        endings=[draw(endings) for _ in range(num_lanes)],
        # From endings at three of four steps to episodes longer than the ring.
        rarity=draw(st.sampled_from([4, 7, 15, 60])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_transitions_equal_the_reference(case):
    replay = case.replay()
    for expected in case.play(replay):
        assert sampleable(replay) == sorted(expected)
        if expected:
            assert_equals(read(replay, list(expected)), list(expected.values()))


@settings(max_examples=100, deadline=None)
@given(
    case=cases(),
    priority_exponent=st.sampled_from([0.0, 0.5, 0.7, 1.0]),
    beta=st.sampled_from([0.0, 0.4, 1.0]),
    delay=st.integers(0, 25),
)
def test_priorities_and_weights_equal_the_reference(case, priority_exponent, beta, delay):
    replay = case.replay(batch_size=5, priority_exponent=priority_exponent)
    rng = np.random.default_rng(case.seed)
    largest = 1.0
    error_of: dict[tuple[int, int], float] = {}  # by lane and start
    waiting = []  # samples whose errors come `delay` steps later
    for expected in case.play(replay):
        alive = {slot: (one.lane, one.start) for slot, one in expected.items()}
        for key in alive.values():
            error_of.setdefault(key, largest)
        if len(waiting) > delay:
            ids, keys = waiting.pop(0)
            # One error per transition, even if the batch has it several times.
            new_error_of = {key: rng.uniform(0.1, 10) for key in keys}
            errors = np.array([new_error_of[key] for key in keys], np.float32)
            replay.update_priorities(ids, errors)
            largest = max(largest, *new_error_of.values())
            error_of.update((key, new_error_of[key]) for key in keys if key in alive.values())

        # Tolerates the priority floor, which is added to every error.
        priorities = {slot: error_of[key] ** priority_exponent for slot, key in alive.items()}
        slots = sampleable(replay)
        np.testing.assert_allclose(
            replay._tree.leaves()[slots], [priorities[slot] for slot in slots], rtol=1e-4
        )
        np.testing.assert_allclose(replay.max_priority, largest, rtol=1e-4)

        if expected:
            ids, batch = replay.sample(beta)
            slots = (ids % (case.num_lanes * case.length)).tolist()
            assert_equals(batch, [expected[slot] for slot in slots])
            share = np.array([priorities[slot] for slot in slots]) / sum(priorities.values())
            weight = (len(alive) * share) ** -beta
            np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=1e-3)
            waiting.append((ids, [alive[slot] for slot in slots]))


# --- Literal examples: one lane, gamma 0.9, frame t is the number 10 + t ---

GAMMA = 0.9


def tell(
    replay: Replay,
    frame: float,
    reward: float = 0.0,
    *,
    action: int = 0,
    discount: float = GAMMA,
    over: bool = False,
    first: bool = False,
) -> None:
    replay.add(
        frame=np.array([frame]),
        action_tm1=np.array([action]),
        reward_t=np.array([reward], np.float32),
        discount_t=np.array([discount], np.float32),
        episode_over=np.array([over]),
        is_first=np.array([first]),
    )


def test_three_step_return():
    replay = make_replay(length=8, n_step=3)
    tell(replay, 10, reward=99, action=7, first=True)
    tell(replay, 11, 1, action=3)
    tell(replay, 12, 2, action=4)
    assert sampleable(replay) == []  # the window is still open
    tell(replay, 13, 3, action=5)
    assert sampleable(replay) == [0]
    batch = read(replay, [0])
    # 1 + 0.9 * 2 + 0.81 * 3 = 1 + 1.8 + 2.43
    np.testing.assert_allclose(batch.reward_t, [5.23], rtol=1e-6)
    np.testing.assert_allclose(batch.discount_t, [0.729], rtol=1e-6)
    assert batch.observation_tm1.tolist() == [[10]]
    assert batch.observation_t.tolist() == [[13]]
    assert batch.action_tm1.tolist() == [3]  # the action taken at 10, which led to 11
    assert [field.dtype.name for field in batch[1:4]] == ["int32", "float32", "float32"]


def test_terminal_in_the_middle_of_the_window():
    replay = make_replay(length=8, n_step=3)
    tell(replay, 10, first=True)
    tell(replay, 11, 1)
    tell(replay, 12, 2, discount=0, over=True)
    tell(replay, 13, 50, first=True)
    tell(replay, 14, 100)
    # Slot 2 is the last observation; slot 3 waits for two more steps.
    assert sampleable(replay) == [0, 1]
    batch = read(replay, [0, 1])
    # 1 + 0.9 * 2 and 2: without the 50 and 100 of the next episode
    np.testing.assert_allclose(batch.reward_t, [2.8, 2.0], rtol=1e-6)
    assert batch.discount_t.tolist() == [0, 0]
    assert batch.observation_t.tolist() == [[12], [12]]


def test_tails_of_three_two_and_one_steps_before_a_terminal():
    replay = make_replay(length=8, n_step=3)
    tell(replay, 10, first=True)
    tell(replay, 11, 1)
    tell(replay, 12, 2)
    tell(replay, 13, 3, discount=0, over=True)
    assert sampleable(replay) == [0, 1, 2]
    batch = read(replay, [0, 1, 2])
    # 1 + 1.8 + 2.43, 2 + 0.9 * 3, 3
    np.testing.assert_allclose(batch.reward_t, [5.23, 4.7, 3.0], rtol=1e-6)
    assert batch.discount_t.tolist() == [0, 0, 0]
    assert batch.observation_t.tolist() == [[13], [13], [13]]


def test_truncation_bootstraps_the_tails_from_the_last_observation():
    replay = make_replay(length=8, n_step=3)
    tell(replay, 10, first=True)
    tell(replay, 11, 1)
    tell(replay, 12, 2)
    tell(replay, 13, 3)
    tell(replay, 14, 4, over=True)  # truncated: the discount stays
    tell(replay, 15, 50, first=True)
    tell(replay, 16, 100)
    assert sampleable(replay) == [0, 1, 2, 3]
    batch = read(replay, [0, 1, 2, 3])
    # 1 + 1.8 + 2.43, 2 + 0.9 * 3 + 0.81 * 4, 3 + 0.9 * 4, 4
    np.testing.assert_allclose(batch.reward_t, [5.23, 7.94, 6.6, 4.0], rtol=1e-6)
    # 0.9 ** 3 twice, then tails of two steps and of one
    np.testing.assert_allclose(batch.discount_t, [0.729, 0.729, 0.81, 0.9], rtol=1e-6)
    assert batch.observation_t.tolist() == [[13], [14], [14], [14]]


def test_life_loss_only_cuts_the_return():
    replay = make_replay(length=8, n_step=3, stack=2)
    tell(replay, 10, first=True)
    tell(replay, 11, 1)
    tell(replay, 12, 2, discount=0)  # a life is lost, the game continues
    tell(replay, 13, 3)
    tell(replay, 14, 4)
    tell(replay, 15, 5)
    assert sampleable(replay) == [0, 1, 2]
    batch = read(replay, [0, 1, 2])
    # 1 + 0.9 * 2, 2, 3 + 0.9 * 4 + 0.81 * 5
    np.testing.assert_allclose(batch.reward_t, [2.8, 2.0, 10.65], rtol=1e-6)
    np.testing.assert_allclose(batch.discount_t, [0, 0, 0.729], rtol=1e-6)
    # The observation at the loss starts a transition of its own, with the frame before the loss.
    assert batch.observation_tm1.tolist() == [[0, 10], [10, 11], [11, 12]]
    assert batch.observation_t.tolist() == [[11, 12], [11, 12], [14, 15]]


def test_episode_of_one_step():
    replay = make_replay(length=8, n_step=3, stack=3)
    tell(replay, 10, first=True)
    tell(replay, 11, 1, over=True)
    tell(replay, 12, first=True)
    tell(replay, 13, 2, discount=0, over=True)
    assert sampleable(replay) == [0, 2]
    batch = read(replay, [0, 2])
    assert batch.reward_t.tolist() == [1, 2]
    np.testing.assert_allclose(batch.discount_t, [0.9, 0], rtol=1e-6)
    assert batch.observation_tm1.tolist() == [[0, 0, 10], [0, 0, 12]]
    assert batch.observation_t.tolist() == [[0, 10, 11], [0, 12, 13]]


def test_first_observations_of_an_episode_have_zero_frames():
    replay = make_replay(length=8, stack=4)
    tell(replay, 10, first=True)
    tell(replay, 11, over=True)
    tell(replay, 12, first=True)
    for frame in (13, 14, 15, 16):
        tell(replay, frame)
    assert read(replay, [2, 3, 4, 5]).observation_tm1.tolist() == [
        [0, 0, 0, 12],
        [0, 0, 12, 13],
        [0, 12, 13, 14],
        [12, 13, 14, 15],
    ]


def test_stack_with_an_overwritten_frame_is_not_sampled():
    # Six slots, three stacked frames, one step. Time t is in slot t % 6.
    replay = make_replay(length=6, stack=3)
    tell(replay, 10, first=True)
    for time_ in range(1, 6):
        tell(replay, 10 + time_)
    assert sampleable(replay) == [0, 1, 2, 3, 4]
    tell(replay, 16)
    # Time 6 overwrote time 0, which the stacks of times 0, 1 and 2 need.
    assert sampleable(replay) == [3, 4, 5]
    tell(replay, 17)
    # Times 4, 5 and 6.
    assert sampleable(replay) == [0, 4, 5]
    assert read(replay, [4, 5, 0]).observation_tm1.tolist() == [
        [12, 13, 14],
        [13, 14, 15],
        [14, 15, 16],
    ]


def test_stack_that_starts_after_the_overwritten_frame_is_sampled():
    # As above, but an episode starts at time 3: its stacks need nothing older.
    replay = make_replay(length=6, stack=3)
    tell(replay, 10, first=True)
    tell(replay, 11)
    tell(replay, 12, over=True)
    tell(replay, 13, first=True)
    for time_ in range(4, 9):
        tell(replay, 10 + time_)
    # Times 6, 7 and 8 overwrote the first episode: times 3 to 7 are left.
    assert sampleable(replay) == [0, 1, 3, 4, 5]
    assert read(replay, [3, 4]).observation_tm1.tolist() == [[0, 0, 13], [0, 13, 14]]
    tell(replay, 19)
    # Time 9 overwrote time 3, which times 3, 4 and 5 need.
    assert sampleable(replay) == [0, 1, 2]


def test_smallest_ring_holds_one_transition():
    # 2 stacked frames and 3 steps in 5 slots: times t - 1 to t + 3.
    replay = make_replay(length=5, stack=2, n_step=3)
    tell(replay, 10, first=True)
    for time_ in range(1, 600):  # an episode longer than a byte can count
        tell(replay, 10 + time_, reward=time_)
        if time_ >= 5:
            start = time_ - 3
            assert sampleable(replay) == [start % 5]
            batch = read(replay, [start % 5])
            assert batch.observation_tm1.tolist() == [[10 + start - 1, 10 + start]]
            assert batch.observation_t.tolist() == [[10 + time_ - 1, 10 + time_]]
            rewards = 1 * (time_ - 2) + 0.9 * (time_ - 1) + 0.81 * time_
            np.testing.assert_allclose(batch.reward_t, [rewards], rtol=1e-6)
    with pytest.raises(ValueError, match="needs 5 slots, capacity gives 4"):
        make_replay(length=4, stack=2, n_step=3)


def test_capacity_that_lanes_do_not_divide():
    replay = make_replay(length=5, num_lanes=2, spare=1)
    for time_ in range(12):
        replay.add(
            frame=np.array([100 + time_, 200 + time_]),
            action_tm1=np.zeros(2, np.int32),
            reward_t=np.zeros(2),
            discount_t=np.full(2, 0.9),
            episode_over=np.zeros(2, bool),
            is_first=np.full(2, time_ == 0),
        )
        assert replay.fill == min(1, (time_ + 1) / 5)
    # Times 7 to 10 of both lanes: time 11 has no successor.
    assert sampleable(replay) == [0, 2, 3, 4, 5, 7, 8, 9]
    frames = read(replay, [2, 0, 7, 5]).observation_tm1[:, 0]
    assert frames.tolist() == [107, 110, 207, 210]


# --- Priorities ---


def with_steps(num_steps: int, **settings) -> Replay:
    """One long episode; slots 0 to num_steps - 1 can be sampled."""
    replay = make_replay(**{"length": 50, **settings})
    tell(replay, 10, first=True)
    for time_ in range(1, num_steps + 1):
        tell(replay, 10 + time_, reward=time_)
    return replay


def leaves(replay: Replay) -> np.ndarray:
    return replay._tree.leaves()[: replay.num_sampleable].copy()


def test_new_transitions_get_the_largest_priority():
    replay = with_steps(2)
    np.testing.assert_allclose(leaves(replay), [1, 1])  # initially 1
    replay.update_priorities(np.array([0]), np.array([16.0]))
    tell(replay, 13)
    # 16 ** 0.5 = 4; if 4 were stored instead of 16, the new one would have 2.
    np.testing.assert_allclose(leaves(replay), [4, 1, 4], rtol=1e-4)
    tell(replay, 14)
    tell(replay, 15)
    np.testing.assert_allclose(leaves(replay), [4, 1, 4, 4, 4], rtol=1e-4)
    np.testing.assert_allclose(replay.max_priority, 16, rtol=1e-4)


def test_largest_priority_only_grows():
    replay = with_steps(1)
    for error, largest in [(0.25, 1), (9, 9), (0.25, 9), (4, 9), (25, 25), (0, 25)]:
        replay.update_priorities(np.array([0]), np.array([error], np.float32))
        np.testing.assert_allclose(leaves(replay)[0], error**0.5, rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(replay.max_priority, largest, rtol=1e-4)
        tell(replay, 0)
        np.testing.assert_allclose(leaves(replay)[-1], largest**0.5, rtol=1e-4)


@pytest.mark.parametrize("error", [0.0, -1e-7, -1e-3])
def test_error_of_zero_stays_sampleable(error):
    # The KL divergence of nearly equal distributions can round to below 0.
    replay = with_steps(3, batch_size=4)
    replay.update_priorities(np.arange(3), np.full(3, error, np.float32))
    assert sampleable(replay) == [0, 1, 2]
    drawn = {int(one) for _ in range(20) for one in replay.sample(0.4)[0]}
    assert drawn == {0, 1, 2}
    replay.update_priorities(np.array([1]), np.array([1.0]))
    # Sampleable, but rarely next to an error of 1: 2 * sqrt(1e-6) of the mass.
    assert leaves(replay)[0] < 0.01


def test_last_error_of_a_repeated_transition_counts():
    replay = with_steps(3)
    replay.update_priorities(np.array([1, 2, 1]), np.array([81.0, 4.0, 25.0]))
    np.testing.assert_allclose(leaves(replay), [1, 5, 2], rtol=1e-4)
    assert replay.num_sampleable == 3


def test_update_of_an_overwritten_transition_is_ignored():
    replay = with_steps(7, length=8, batch_size=32)
    ids, _ = replay.sample(0.4)
    assert set(ids.tolist()) == set(range(7))
    tell(replay, 18)  # time 8 overwrites slot 0; slot 7 becomes sampleable
    assert sampleable(replay) == [1, 2, 3, 4, 5, 6, 7]
    replay.update_priorities(ids, np.full(32, 4.0))
    assert sampleable(replay) == [1, 2, 3, 4, 5, 6, 7]
    np.testing.assert_allclose(replay._tree.leaves(), [0, 2, 2, 2, 2, 2, 2, 1], rtol=1e-4)


def test_update_of_a_transition_with_an_overwritten_frame_is_ignored():
    replay = with_steps(7, length=8, stack=3, batch_size=32)
    ids, _ = replay.sample(0.4)
    tell(replay, 18)
    # Slots 1 and 2 are not overwritten, but a frame of their stacks is.
    assert sampleable(replay) == [3, 4, 5, 6, 7]
    replay.update_priorities(ids, np.full(32, 4.0))
    np.testing.assert_allclose(replay._tree.leaves(), [0, 0, 0, 2, 2, 2, 2, 1], rtol=1e-4)
    assert sampleable(replay) == [3, 4, 5, 6, 7]


def test_update_does_not_affect_the_new_content_of_a_slot():
    replay = with_steps(7, length=8, batch_size=32)
    ids, _ = replay.sample(0.4)
    for time_ in range(8, 12):
        tell(replay, 10 + time_)
    # Slots 0 to 2 now hold times 8 to 10, and time 11 has no successor yet.
    assert sampleable(replay) == [0, 1, 2, 4, 5, 6, 7]
    replay.update_priorities(ids, np.full(32, 4.0))
    np.testing.assert_allclose(replay._tree.leaves(), [1, 1, 1, 0, 2, 2, 2, 1], rtol=1e-4)
    # A lap later nothing of that sample is left.
    for time_ in range(12, 30):
        tell(replay, 10 + time_)
    before = replay._tree.leaves().copy()
    replay.update_priorities(ids, np.full(32, 3.0))
    np.testing.assert_array_equal(replay._tree.leaves(), before)


def with_errors_of_squares(**settings) -> Replay:
    """Errors 1, 4, 9, 16 with exponent 0.5: priorities 1, 2, 3, 4 of 10."""
    replay = with_steps(4, **settings)
    replay.update_priorities(np.arange(4), np.array([1.0, 4.0, 9.0, 16.0]))
    return replay


def test_sampling_is_stratified():
    # Ten strata of mass 1: the first belongs to slot 0, the next two to slot 1, and so on.
    replay = with_errors_of_squares(batch_size=10)
    for _ in range(50):
        ids, batch = replay.sample(0.4)
        assert ids.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
        assert batch.reward_t.tolist() == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]


@pytest.mark.parametrize("batch_size", [1, 7])
def test_samples_are_proportional_to_priorities(batch_size):
    replay = with_errors_of_squares(batch_size=batch_size, seed=3)
    ids = np.concatenate([replay.sample(0.4)[0] for _ in range(7000 // batch_size)])
    # The standard deviation of a share is below sqrt(0.25 / 7000) = 0.006.
    shares = np.bincount(ids, minlength=4) / len(ids)
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.3, 0.4], atol=0.02)


@pytest.mark.parametrize(
    ("beta", "weights"),
    [
        # N = 4 and p = 0.1, 0.2, 0.3, 0.4: N p = 0.4, 0.8, 1.2, 1.6.
        # 1 / (N p) = 2.5, 1.25, 0.8333, 0.625; over the largest, 2.5:
        (1.0, [1, 0.5, 1 / 3, 0.25]),
        # Their square roots.
        (0.5, [1, 0.70710678, 0.57735027, 0.5]),
        (0.0, [1, 1, 1, 1]),
    ],
)
def test_importance_weights(beta, weights):
    replay = with_errors_of_squares(batch_size=10)
    ids, batch = replay.sample(beta)
    assert batch.weight.dtype == np.float32
    np.testing.assert_allclose(batch.weight, np.array(weights)[ids], rtol=1e-5)
    assert batch.weight.max() == 1.0


def test_full_correction_is_unbiased():
    # With beta = 1, E[w * x] over samples is proportional to the mean of x over the replay.
    # Rewards 1, 2, 3, 4, weights relative to the largest in the batch: weighted mean 2.5.
    replay = with_errors_of_squares(batch_size=10)
    _, batch = replay.sample(1.0)
    np.testing.assert_allclose(np.average(batch.reward_t, weights=batch.weight), 2.5, rtol=1e-5)


def test_uniform_replay_has_no_priorities():
    replay = with_steps(4, length=5, batch_size=8, prioritized=False, seed=5)
    before = leaves(replay)
    assert len(set(before.tolist())) == 1
    counts = np.zeros(4)
    for _ in range(500):
        ids, batch = replay.sample(0.7)
        np.testing.assert_array_equal(batch.weight, np.ones(8, np.float32))
        replay.update_priorities(ids, np.arange(8.0) + 10)
        counts += np.bincount(ids, minlength=4)
    np.testing.assert_array_equal(leaves(replay), before)
    # Eight strata over four equal priorities: each twice in every batch.
    np.testing.assert_array_equal(counts, [1000, 1000, 1000, 1000])
    assert replay.max_priority == 1.0
    tell(replay, 15)
    assert set(replay._tree.leaves().tolist()) == {0.0, before[0]}


def test_uniform_samples_are_uniform():
    replay = with_steps(7, batch_size=3, prioritized=False, seed=6)
    ids = np.concatenate([replay.sample(0.4)[0] for _ in range(3000)])
    # Standard deviation of a share: sqrt(1/7 * 6/7 / 9000) = 0.004
    np.testing.assert_allclose(np.bincount(ids, minlength=7) / 9000, 1 / 7, atol=0.016)


# --- The interface ---


def test_same_seed_same_batches():
    def draws(seed: int) -> list[np.ndarray]:
        replay = with_steps(40, n_step=3, stack=2, batch_size=6, seed=seed)
        fields = []
        for draw in range(10):
            ids, batch = replay.sample(0.5)
            fields += [ids, *(field.copy() for field in batch)]
            replay.update_priorities(ids, batch.reward_t + draw)
            tell(replay, 500 + draw, reward=draw)
        return fields

    one, same, other = draws(1), draws(1), draws(2)
    for field, same_field in zip(one, same, strict=True):
        np.testing.assert_array_equal(field, same_field)
    assert any((field != other_field).any() for field, other_field in zip(one, other, strict=True))


def test_batch_is_valid_until_the_next_sample():
    replay = with_steps(20, length=21, n_step=3, stack=2, batch_size=6)
    ids, batch = replay.sample(0.5)
    before = [field.copy() for field in batch]
    for time_ in range(60):
        tell(replay, 1000 + time_, reward=7, action=2)
    replay.update_priorities(ids, np.ones(6))
    for field, field_before in zip(batch, before, strict=True):
        np.testing.assert_array_equal(field, field_before)


def test_arguments_are_copied():
    replay = make_replay(length=8)
    arrays = {
        "frame": np.array([10]),
        "action_tm1": np.array([1]),
        "reward_t": np.array([1.0]),
        "discount_t": np.array([0.9]),
        "episode_over": np.array([False]),
        "is_first": np.array([True]),
    }
    replay.add(**arrays)
    arrays["is_first"][:] = False
    replay.add(**arrays)
    for name, array in arrays.items():
        array[:] = 0 if name != "episode_over" else True
    tell(replay, 12)
    batch = read(replay, [0])
    assert batch.observation_tm1.tolist() == [[10]]
    assert (batch.action_tm1[0], batch.reward_t[0]) == (1, 1.0)


def test_first_frame_must_follow_the_end_of_an_episode():
    message = "first frame must follow the end"
    replay = make_replay(length=8)
    with pytest.raises(ValueError, match=message):
        tell(replay, 10)
    tell(replay, 10, first=True)
    tell(replay, 11, 1)
    with pytest.raises(ValueError, match=message):
        tell(replay, 12, first=True)
    tell(replay, 12, 2, discount=0)  # a lost life does not end the episode
    with pytest.raises(ValueError, match=message):
        tell(replay, 13, first=True)
    tell(replay, 13, 3, over=True)
    with pytest.raises(ValueError, match=message):
        tell(replay, 14)
    # Rejected steps had no effect.
    assert sampleable(replay) == [0, 1, 2]
    assert read(replay, [0, 1, 2]).observation_t.tolist() == [[11], [12], [13]]
    tell(replay, 14, first=True)


def test_one_wrong_lane_is_rejected():
    replay = make_replay(length=8, num_lanes=2)
    with pytest.raises(ValueError, match="first frame"):
        replay.add(
            frame=np.zeros(2),
            action_tm1=np.zeros(2, np.int32),
            reward_t=np.zeros(2),
            discount_t=np.ones(2),
            episode_over=np.zeros(2, bool),
            is_first=np.array([True, False]),
        )


def test_nothing_to_sample():
    replay = make_replay(length=8, n_step=3)
    with pytest.raises(ValueError, match="Nothing to sample"):
        replay.sample(0.4)
    tell(replay, 10, first=True)
    tell(replay, 11)
    tell(replay, 12)
    with pytest.raises(ValueError, match="Nothing to sample"):
        replay.sample(0.4)
    tell(replay, 13)
    assert replay.sample(0.4)[0].tolist() == [0] * 8


# --- Checkpoints ---


def copied(replay: Replay, into: Replay, chunks: list[int] | None = None) -> Replay:
    """Copies the state and the chunks into another replay."""
    into.restore(replay.state())
    for number in replay.written_chunks() if chunks is None else chunks:
        into.restore_chunk(number, replay.chunk(number))
    return into


@settings(max_examples=150, deadline=None)
@given(case=cases(), chunk_slots=st.sampled_from([1, 3, 8, 4096]), stop=st.floats(0, 1))
def test_restored_replay_continues_identically(case, chunk_slots, stop):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", chunk_slots)
        replay, other = case.replay(batch_size=4), case.replay(batch_size=4)
    copy_at = int(stop * len(case.endings[0]))
    lives = zip(case.play(replay), case.play(other), strict=True)
    for moment, _ in enumerate(lives):
        for one in (replay, other):
            if one.num_sampleable:
                ids, batch = one.sample(0.5)
                one.update_priorities(ids, batch.reward_t**2)
        if moment == copy_at:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", chunk_slots)
                fresh = case.replay(batch_size=4)
            restored = copied(other, fresh)
            restored.rng.bit_generator.state = other.rng.bit_generator.state
            # `play` continues with the restored replay.
            other.__dict__.update(restored.__dict__)
    assert_alike(replay, other)


def assert_alike(replay: Replay, other: Replay) -> None:
    for name, value in replay.state().items():
        np.testing.assert_array_equal(value, other.state()[name], err_msg=name)
    assert replay.num_sampleable == other.num_sampleable
    assert replay._tree.total == other._tree.total
    assert replay.written_chunks() == other.written_chunks()
    for number in replay.written_chunks():
        for name, column in replay.chunk(number).items():
            np.testing.assert_array_equal(column, other.chunk(number)[name], err_msg=name)
    if replay.num_sampleable:
        (ids, batch), (other_ids, other_batch) = replay.sample(0.7), other.sample(0.7)
        np.testing.assert_array_equal(ids, other_ids)
        for name, column, other_column in zip(batch._fields, batch, other_batch, strict=True):
            np.testing.assert_array_equal(column, other_column, err_msg=name)


@settings(max_examples=100, deadline=None)
@given(case=cases(), chunk_slots=st.sampled_from([1, 3, 8]), every=st.integers(1, 9))
def test_changed_chunks_are_complete(case, chunk_slots, every):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", chunk_slots)
        replay, saved = case.replay(), case.replay()
    for moment, _ in enumerate(case.play(replay)):
        if moment % every == 0:
            changed = replay.changed_chunks()
            # One more at each end: chunks are not aligned with the steps or the end of the ring.
            assert len(changed) <= -(-every // max(1, chunk_slots // case.num_lanes)) + 2
            copied(replay, saved, changed)
            replay.forget_changes()
            assert replay.changed_chunks() == []
    copied(replay, saved, replay.changed_chunks())
    assert_alike(replay, saved)


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_cut_episodes_equals_truncation_at_the_newest_step(case):
    capped, cut = case.replay(), case.replay()
    for _ in case.play(cut):
        pass
    cut.cut_episodes()
    lanes = [[*steps[:-1], steps[-1]._replace(episode_over=True)] for steps in case.script()]
    script = case._replace(endings=case.endings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Case, "script", lambda self: lanes)
        for _ in script.play(capped):
            pass
    assert_alike(capped, cut)


def test_cut_episodes_literal():
    replay = make_replay(length=8, n_step=3)
    tell(replay, 10, first=True)
    tell(replay, 11, 1)
    tell(replay, 12, 2)
    replay.forget_changes()
    replay.cut_episodes()
    assert replay.changed_chunks() == [0]
    assert sampleable(replay) == [0, 1]
    batch = read(replay, [0, 1])
    np.testing.assert_allclose(batch.reward_t, [2.8, 2.0], rtol=1e-6)
    np.testing.assert_allclose(batch.discount_t, [0.81, 0.9], rtol=1e-6)  # still bootstraps
    assert batch.observation_t.tolist() == [[12], [12]]
    tell(replay, 13, 50, first=True)  # a new episode must follow
    assert sampleable(replay) == [0, 1]


# --- Memory and time ---


def owned_bytes(thing: object) -> dict[int, int]:
    """Bytes of every array in an object, by owner, so that views are not counted twice."""
    if isinstance(thing, np.ndarray):
        owner = thing if thing.base is None else thing.base
        return {id(owner): owner.nbytes}
    if isinstance(thing, list):
        parts = thing
    elif type(thing).__module__.startswith("rainbow_tf"):
        parts = list(vars(thing).values())
    else:
        parts = []
    return {key: size for part in parts for key, size in owned_bytes(part).items()}


def test_memory_is_one_frame_per_step():
    # 84 * 84 = 7056 bytes per frame; two stacks per step would take eight times that.
    assert 7.06e9 < replay_bytes(1_000_000, ATARI) < 7.2e9
    capacity = 4096
    replay = Replay(
        capacity=capacity,
        num_lanes=4,
        spec=ATARI,
        n_step=3,
        batch_size=1,  # the batch buffer does not grow with the capacity
        prioritized=True,
        priority_exponent=0.5,
        rng=np.random.default_rng(0),
    )
    held = sum(owned_bytes(replay).values())
    assert held > capacity * 7056
    assert held == pytest.approx(replay_bytes(capacity, ATARI), rel=0.01)


@pytest.mark.slow
def test_sampling_time_hardly_grows_with_the_capacity():
    num_lanes = 500

    def filled(capacity: int) -> Replay:
        replay = make_replay(
            length=capacity // num_lanes, num_lanes=num_lanes, n_step=3, stack=4, batch_size=32
        )
        for moment in range(capacity // num_lanes + 5):
            replay.add(
                frame=np.full(num_lanes, moment),
                action_tm1=np.zeros(num_lanes, np.int32),
                reward_t=np.zeros(num_lanes),
                discount_t=np.full(num_lanes, 0.99),
                episode_over=np.zeros(num_lanes, bool),
                is_first=np.full(num_lanes, moment == 0),
            )
        return replay

    errors = np.random.default_rng(0).uniform(0.1, 5, (400, 32))
    replays = {"small": filled(10_000), "large": filled(1_000_000)}
    seconds: dict[str, list[float]] = {"small": [], "large": []}
    for error in errors:
        for name, replay in replays.items():  # alternately: the same load for both
            start = time.perf_counter()
            ids, _ = replay.sample(0.4)
            replay.update_priorities(ids, error)
            seconds[name].append(time.perf_counter() - start)
    ratio = statistics.median(seconds["large"]) / statistics.median(seconds["small"])
    assert ratio < 2, f"A hundred times the capacity takes {ratio:.2f} times as long."
