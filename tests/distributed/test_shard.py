"""The replays of a shard sampled as one: literal numbers, and equality with a single replay."""

import numpy as np
import pytest

from rainbow_tf.config import Config
from rainbow_tf.distributed.apex.shard import ReplayShard
from rainbow_tf.replay.replay import Replay
from rainbow_tf.types import EnvironmentSpec

SPEC = EnvironmentSpec((), np.dtype(np.int32), 1, 4, ())


def make_replay(errors, *, batch_size=8, first_frame=0, seed=0, prioritized=True):
    """A replay of one-step transitions with these errors and numbered frames."""
    replay = Replay(
        capacity=len(errors) + 2,
        num_lanes=1,
        spec=SPEC,
        n_step=1,
        batch_size=batch_size,
        prioritized=prioritized,
        priority_exponent=1.0,
        rng=np.random.default_rng(seed),
    )
    for t in range(len(errors) + 1):
        replay.add(
            frame=np.array([first_frame + t]),
            action_tm1=np.array([t]),
            reward_t=np.array([0.0]),
            discount_t=np.array([1.0]),
            episode_over=np.array([False]),
            is_first=np.array([t == 0]),
            errors=np.array([[errors[t - 1] if t > 0 else np.nan]]),
        )
    return replay


def make_shard(*replays, batch_size=8, seed=0):
    config = Config(environment="x", actors=len(replays), batch_size=batch_size)
    shard = ReplayShard(config=config, spec=SPEC, actors=list(range(len(replays))), seed=seed)
    shard._replays = dict(enumerate(replays))
    shard._rng = np.random.default_rng(seed)
    return shard


def test_shard_of_one_replay_samples_like_it():
    errors = [1.0, 2.0, 3.0, 4.0]
    shard = make_shard(make_replay(errors, seed=3))
    ids, batch = shard.sample(0.5)
    own_ids, own = make_replay(errors, seed=3).sample(0.5)
    np.testing.assert_array_equal(ids, own_ids)
    for field, expected in own._asdict().items():
        np.testing.assert_allclose(getattr(batch, field), expected, rtol=1e-6)


def test_samples_are_proportional_over_all_replays():
    shard = make_shard(
        make_replay([1.0, 3.0]), make_replay([8.0, 4.0, 16.0], first_frame=100), batch_size=8
    )
    counts: dict[int, int] = {}
    for _ in range(4_000):
        _, batch = shard.sample(0.4)
        for frame in batch.observation_tm1[:, 0].tolist():
            counts[frame] = counts.get(frame, 0) + 1
    shares = {0: 1, 1: 3, 100: 8, 101: 4, 102: 16}
    for frame, mass in shares.items():
        assert counts[frame] / (4_000 * 8) == pytest.approx(mass / 32, rel=0.05)


def test_importance_weights_are_over_all_replays():
    shard = make_shard(
        make_replay([1.0], batch_size=16),
        make_replay([4.0], batch_size=16, first_frame=100),
        batch_size=16,
    )
    _, batch = shard.sample(0.5)
    # (p / smallest p) ** -0.5: 1 and 4 ** -0.5; each replay alone would give 1.
    by_frame = dict(zip(batch.observation_tm1[:, 0].tolist(), batch.weight.tolist(), strict=True))
    assert by_frame == {0: pytest.approx(1.0, rel=1e-5), 100: pytest.approx(0.5, rel=1e-5)}
    # A fifth of the mass gets a fifth of the 16 strata.
    assert np.count_nonzero(batch.observation_tm1[:, 0] == 0) in (3, 4)


def test_ids_identify_transitions():
    first, second = make_replay([1.0, 1.0]), make_replay([1.0, 1.0], first_frame=100)
    shard = make_shard(first, second, batch_size=8)
    ids, batch = shard.sample(0.4)
    frames = batch.observation_tm1[:, 0]
    shard.update_priorities(ids, frames.astype(float) + 2)
    np.testing.assert_allclose(shard.priorities(ids), frames + 2, rtol=1e-5)
    assert first.total_priority == pytest.approx(2 + 3, rel=1e-5)
    assert second.total_priority == pytest.approx(102 + 103, rel=1e-5)
    assert shard.status().total_priority == pytest.approx(210, rel=1e-5)
    assert shard.status().num_sampleable == 4


def test_empty_replay_is_never_sampled():
    shard = make_shard(make_replay([]), make_replay([1.0], first_frame=100), make_replay([]))
    for _ in range(50):
        _, batch = shard.sample(0.4)
        assert set(batch.observation_tm1[:, 0].tolist()) == {100}


def test_new_transition_gets_the_error_of_its_window():
    replay = Replay(
        capacity=8,
        num_lanes=1,
        spec=SPEC,
        n_step=2,
        batch_size=1,
        prioritized=True,
        priority_exponent=0.5,
        rng=np.random.default_rng(0),
    )
    # Columns: the step begun one frame before, and the one begun two frames before.
    errors = [[np.nan, np.nan], [np.nan, np.nan], [np.nan, 4.0], [9.0, 16.0]]
    for t, error in enumerate(errors):
        replay.add(
            frame=np.array([t]),
            action_tm1=np.array([0]),
            reward_t=np.array([0.0]),
            discount_t=np.array([0.0 if t == 3 else 1.0]),
            episode_over=np.array([t == 3]),
            is_first=np.array([t == 0]),
            errors=np.array([error]),
        )
    # The window of slot 0 closes at 2; the end at 3 closes that of 1 (two steps) and 2 (one).
    np.testing.assert_allclose(replay._tree.leaves()[:4], [2.0, 4.0, 3.0, 0.0], rtol=1e-6)
    assert replay.max_priority == pytest.approx(16)


def test_errors_are_ignored_without_prioritization():
    replay = make_replay([5.0, 7.0], prioritized=False)
    np.testing.assert_array_equal(replay._tree.leaves(), [1.0, 1.0, 0.0, 0.0])
