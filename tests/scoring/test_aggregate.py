import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rainbow_tf.scoring.aggregate import (
    aggregate,
    area_under_curve,
    bootstrap,
    bootstrap_episodes,
    interquartile_mean,
    moving_average,
)

NAN = float("nan")
MATRICES = hnp.arrays(
    np.float64,
    st.tuples(st.integers(2, 4), st.integers(1, 6)),
    elements=st.floats(-1000, 1000, width=32),
)


def test_aggregates_worked_out_by_hand():
    # Games' means: 2, 4 and 90. All runs in order: 1 3 4 80 100; a quarter of 5 is 1 run.
    found = aggregate(np.array([[1.0, 4.0, 80.0], [3.0, NAN, 100.0]]))
    np.testing.assert_allclose(found, [4, (3 + 4 + 80) / 3, (2 + 4 + 90) / 3])


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([7.0], 7.0),
        ([0.0, 1.0, 2.0, 1000.0], 1.5),
        ([0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0], 35.0),
        ([5.0, NAN, 1.0, 3.0, -900.0], 2.0),
    ],
)
def test_interquartile_mean_by_hand(values, mean):
    assert interquartile_mean(np.array(values)) == pytest.approx(mean)


def test_area_by_hand():
    # Trapezoids: (0 + 4) / 2 * 1 + (4 + 4) / 2 * 3 = 14, over 4 frames.
    assert area_under_curve(np.array([1, 2, 5]), np.array([0.0, 4.0, 4.0])) == pytest.approx(3.5)
    assert area_under_curve(np.array([3]), np.array([8.0])) == 8


def test_moving_average_by_hand():
    values = np.array([[1.0, 2.0, 6.0, 4.0], [0.0, 0.0, 3.0, 0.0]])
    np.testing.assert_allclose(moving_average(values, 3), [[3.0, 4.0], [1.0, 1.0]])
    np.testing.assert_allclose(moving_average(values, 1), values)


def test_one_seed_has_no_interval():
    assert bootstrap(np.array([[1.0, 2.0, 3.0]]), rng=np.random.default_rng(0)) is None


def test_bootstrap_draws_within_games():
    # Seeds of a game agree, games differ: draws across games would spread.
    scores = np.repeat(np.array([[1.0, 50.0, 900.0]]), 4, axis=0)
    for low, high in bootstrap(scores, rng=np.random.default_rng(0)):
        assert low == pytest.approx(high)


def test_bootstrap_has_the_spread_of_the_mean():
    # One game: 95 % of means of n draws lie within 1.96 standard deviations / sqrt(n).
    scores = np.random.default_rng(1).normal(100, 20, size=(400, 1))
    _, _, (low, high) = bootstrap(scores, rng=np.random.default_rng(0), repetitions=4000)
    half = 1.96 * scores.std() / 20
    assert low == pytest.approx(scores.mean() - half, abs=0.25)
    assert high == pytest.approx(scores.mean() + half, abs=0.25)


def test_bootstrap_covers_the_truth():
    # 3 games of 10 seeds: about 95 of 100 intervals hold the true mean; small samples fewer.
    rng = np.random.default_rng(2)
    means = np.array([0.0, 50.0, 100.0])
    hits = 0
    for _ in range(100):
        _, _, (low, high) = bootstrap(rng.normal(means, 20, size=(10, 3)), rng=rng, repetitions=300)
        hits += low <= 50 <= high
    assert 84 <= hits <= 100


def test_bootstrap_leaves_missing_seeds_missing():
    scores = np.array([[10.0, 1.0], [20.0, NAN], [30.0, NAN]])
    median, iqm, (low, high) = bootstrap(scores, rng=np.random.default_rng(0))
    # The second game has one seed, so it is 1 in every draw.
    assert 5.5 <= low <= high <= 15.5
    assert np.isfinite(median).all()
    # The middle two of 1 and three draws of the first game: the 1 is cut off.
    assert iqm[0] >= 10


def test_bootstrap_of_episodes_by_hand():
    # Two games of constant scores, and one whose mean of 400 draws is 5 within 1.96 * 5 / 20.
    episodes = [np.array([7.0]), np.array([0.0, 10.0] * 200), np.array([40.0] * 5)]
    median, _, (low, high) = bootstrap_episodes(episodes, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(median, [7, 7])
    assert low == pytest.approx((47 + 5 - 0.49) / 3, abs=0.03)
    assert high == pytest.approx((47 + 5 + 0.49) / 3, abs=0.03)


def test_same_generator_same_intervals():
    scores = np.arange(12.0).reshape(3, 4)
    first, second = (bootstrap(scores, rng=np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@given(MATRICES)
def test_intervals_stay_within_the_scores(scores):
    for low, high in bootstrap(scores, rng=np.random.default_rng(0), repetitions=50):
        slack = 1e-6 * max(1, np.abs(scores).max())
        assert scores.min() - slack <= low <= high <= scores.max() + slack


@given(MATRICES, st.floats(0.5, 4), st.floats(-50, 50))
def test_aggregates_and_intervals_follow_scale_and_shift(scores, scale, shift):
    def numbers(values):
        intervals = bootstrap(values, rng=np.random.default_rng(3), repetitions=20)
        return np.array([*aggregate(values), *np.ravel(intervals)])

    np.testing.assert_allclose(
        numbers(scores * scale + shift), numbers(scores) * scale + shift, atol=1e-6, rtol=1e-6
    )


@given(MATRICES, st.randoms())
def test_the_order_of_games_and_seeds_does_not_matter(scores, random):
    games = random.sample(range(scores.shape[1]), scores.shape[1])
    seeds = random.sample(range(scores.shape[0]), scores.shape[0])
    np.testing.assert_allclose(aggregate(scores[seeds][:, games]), aggregate(scores), atol=1e-9)
