"""Schedules: the paper's beta and epsilon at chosen points of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rainbow_tf.agent.schedules import linear


@pytest.mark.parametrize(
    ("start", "end", "progress", "expected"),
    [
        (0.4, 1.0, 0.0, 0.4),  # beta at the start
        (0.4, 1.0, 0.5, 0.7),
        (0.4, 1.0, 1.0, 1.0),  # beta at the end of the run
        (1.0, 0.01, 0.0, 1.0),  # epsilon decays
        (1.0, 0.01, 0.25, 0.7525),
        (1.0, 0.01, 1.0, 0.01),
        (1.0, 0.01, 3.0, 0.01),  # and stays at its end
        (0.5, 0.5, 0.3, 0.5),
        (0.0, 0.0, 0.3, 0.0),
    ],
)
def test_linear_literal(start, end, progress, expected):
    assert linear(start, end, progress) == pytest.approx(expected, abs=1e-12)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1e6))
def test_linear_stays_between_its_ends(start, end, progress):
    assert min(start, end) - 1e-12 <= linear(start, end, progress) <= max(start, end) + 1e-12
