"""The sum tree against plain cumulative sums."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rainbow_tf.replay.sum_tree import SumTree

# Sizes at which a node, a level or the whole tree of fan-out 64 is full, and their neighbours.
EDGES = [1, 2, 63, 64, 65, 127, 128, 129, 191, 193, 4032, 4095, 4096, 4097, 4161, 5000]
capacities = st.one_of(st.sampled_from(EDGES), st.integers(1, 5000))
seeds = st.integers(0, 2**32 - 1)


def spread(rng: np.random.Generator, size: int) -> np.ndarray:
    """Priorities between 1e-12 and 1e12, about a third of them 0."""
    return 10 ** rng.uniform(-12, 12, size) * (rng.random(size) > 1 / 3)


def filled(priorities: np.ndarray) -> SumTree:
    tree = SumTree(len(priorities))
    tree.set(np.arange(len(priorities)), priorities)
    return tree


@pytest.mark.parametrize("capacity", [0, -3])
def test_empty_tree_is_rejected(capacity):
    with pytest.raises(ValueError, match=f"capacity={capacity}"):
        SumTree(capacity)


def test_find_by_hand():
    # Running sums 0, 2, 2, 5, 6: leaves 0 and 2 own no mass, a boundary belongs to the next leaf.
    tree = filled(np.array([0.0, 2.0, 0.0, 3.0, 1.0]))
    masses = np.array([0.0, 1.9, 2.0, 4.9, 5.0, 5.9])
    np.testing.assert_array_equal(tree.find(masses), [1, 1, 3, 3, 4, 4])
    assert tree.total == 6.0


@settings(max_examples=150, deadline=None)
@given(
    capacity=capacities,
    calls=st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 4999), st.one_of(st.just(0.0), st.floats(1e-12, 1e12, width=64))
            ),
            min_size=1,
            max_size=12,
        ),
        max_size=8,
    ),
    seed=seeds,
)
def test_any_sequence_of_writes_equals_a_plain_array(capacity, calls, seed):
    rng = np.random.default_rng(seed)
    plain = spread(rng, capacity)
    tree = filled(plain)
    for call in calls:
        leaves = np.array([leaf % capacity for leaf, _ in call])
        tree.set(leaves, np.array([priority for _, priority in call]))
        for leaf, (_, priority) in zip(leaves, call, strict=True):
            plain[leaf] = priority  # in order: the last value of a leaf counts
    np.testing.assert_array_equal(tree.leaves(), plain)
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), plain)
    np.testing.assert_allclose(tree.total, math.fsum(plain), rtol=1e-12)


@pytest.mark.parametrize("capacity", [1, 63, 64, 65, 5_000])
def test_fill_equals_set_bit_for_bit(capacity):
    priorities = spread(np.random.default_rng(1), capacity)
    one_by_one, at_once = SumTree(capacity), SumTree(capacity)
    at_once.fill(np.ones(capacity))
    for leaf, priority in enumerate(priorities):
        one_by_one.set(np.array([leaf]), priority)
    at_once.fill(priorities)
    assert at_once.total == one_by_one.total
    for level, other in zip(at_once._levels, one_by_one._levels, strict=True):
        np.testing.assert_array_equal(level, other)


def test_last_value_of_a_repeated_leaf_counts():
    tree = filled(np.ones(130))
    tree.set(np.array([129, 5, 129, 5, 129]), np.array([7.0, 1.0, 0.0, 2.0, 3.0]))
    assert tree.get(np.array([5, 129])).tolist() == [2.0, 3.0]
    assert tree.total == 128 + 2.0 + 3.0


def test_set_scalar():
    tree = SumTree(100)
    tree.set(np.array([3, 70, 99]), 2.5)
    assert tree.total == 7.5
    tree.set(np.array([], np.int64), 1.0)
    assert tree.total == 7.5
    tree.set(np.array([3, 70]), 0.0)
    assert np.flatnonzero(tree.leaves()).tolist() == [99]


@settings(max_examples=150, deadline=None)
@given(capacity=capacities, seed=seeds, share=st.sampled_from([0.01, 0.3, 1.0]))
def test_find_is_exact_around_every_boundary_of_integers(capacity, seed, share):
    # Sums of integers are exact in float64, so every mass has one right answer.
    rng = np.random.default_rng(seed)
    priorities = rng.integers(1, 1000, capacity) * (rng.random(capacity) < share)
    priorities[rng.integers(capacity)] = 7  # at least one leaf has mass
    tree = filled(priorities.astype(np.float64))
    sums = np.cumsum(priorities).astype(np.float64)
    total = sums[-1]
    assert tree.total == total
    masses = np.concatenate(
        [[0.0], sums, np.nextafter(sums[sums > 0], 0), rng.uniform(0, total, 100)]
    )
    masses = masses[masses < total]
    found = tree.find(masses)
    np.testing.assert_array_equal(found, np.searchsorted(sums, masses, side="right"))
    assert (priorities[found] > 0).all()


@settings(max_examples=150, deadline=None)
@given(capacity=capacities, seed=seeds, only_small=st.booleans())
def test_find_never_returns_an_empty_or_missing_leaf(capacity, seed, only_small):
    rng = np.random.default_rng(seed)
    priorities = spread(rng, capacity) * (1e-12 if only_small else 1)
    priorities[rng.integers(capacity)] = 1e-12
    tree = filled(priorities)
    upper = np.cumsum(priorities.astype(np.longdouble))
    total = tree.total
    inside = np.nextafter(total, 0)
    boundaries = upper.astype(np.float64)
    masses = np.concatenate(
        [
            [0.0, np.nextafter(0, 1), inside, total],  # a rounded product can reach the total
            np.minimum(boundaries, inside),
            np.minimum(np.nextafter(boundaries, 0), inside),
            np.minimum(np.nextafter(boundaries, np.inf), inside),
            rng.uniform(0, total, 200),
        ]
    )
    found = tree.find(masses)
    assert (found >= 0).all()
    assert (found < capacity).all()
    assert (priorities[found] > 0).all()
    # The leaf that contains the mass, up to rounding of the cumulative sum.
    slack = 1e-12 * total
    assert (masses <= upper[found] + slack).all()
    assert (masses >= upper[found] - priorities[found] - slack).all()


@pytest.mark.parametrize("leaf", [0, 63, 64, 4095, 4096, 4999])
@pytest.mark.parametrize("priority", [5e-324, 1e-300, 1.0, 1e300])
def test_single_leaf_contains_every_mass(leaf, priority):
    tree = SumTree(5000)
    tree.set(np.array([leaf]), priority)
    masses = np.array([0.0, priority / 2, np.nextafter(priority, 0), priority])
    np.testing.assert_array_equal(tree.find(masses), leaf)


def test_total_does_not_drift():
    # Large values come and go, small ones remain: a sum updated by differences would keep
    # the rounding errors of the large ones, about 1e-4 of the total here.
    rng = np.random.default_rng(5)
    capacity = 3001
    plain = np.zeros(capacity)
    tree = SumTree(capacity)
    for _ in range(1000):
        leaves = rng.integers(capacity, size=100)
        priorities = 10 ** rng.uniform(-6, 9, 100)
        tree.set(leaves, priorities)
        plain[leaves] = priorities
    np.testing.assert_array_equal(tree.leaves(), plain)
    np.testing.assert_allclose(tree.total, math.fsum(plain), rtol=1e-12)
    order = rng.permutation(capacity)
    for leaves in np.array_split(order, 50):
        plain[leaves] = 10 ** rng.uniform(-6, -3, len(leaves))
        tree.set(leaves, plain[leaves])
    np.testing.assert_allclose(tree.total, math.fsum(plain), rtol=1e-12)


def test_small_priorities_are_not_lost():
    # 1 + 1e-9 is 1 in float32.
    tree = filled(np.array([1.0, 1e-9]))
    assert tree.total == 1.0 + 1e-9
    assert tree.find(np.array([1.0 + 0.5e-9])).tolist() == [1]


def test_samples_are_proportional():
    rng = np.random.default_rng(11)
    capacity = 777
    priorities = rng.uniform(0.2, 3.0, capacity) * (rng.random(capacity) > 0.2)
    tree = filled(priorities)
    num_draws = 100_000
    counts = np.bincount(tree.find(rng.uniform(0, tree.total, num_draws)), minlength=capacity)
    drawable = priorities > 0
    assert counts[~drawable].sum() == 0
    expected = num_draws * priorities[drawable] / priorities.sum()
    chi_square = ((counts[drawable] - expected) ** 2 / expected).sum()
    # Chi-squared with k degrees of freedom: mean k, variance 2k; allow five deviations.
    k = drawable.sum() - 1
    assert abs(chi_square - k) < 5 * np.sqrt(2 * k)


def test_leaves_is_a_read_only_view():
    tree = filled(np.arange(70.0))
    leaves = tree.leaves()
    assert leaves.shape == (70,)
    assert leaves.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        leaves[0] = 1.0
    tree.set(np.array([69]), 1.0)
    assert leaves[69] == 1.0
