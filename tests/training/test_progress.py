"""What is shown of a run must not change it."""

import numpy as np
import pytest

from rainbow_tf.config import Config
from rainbow_tf.console import duration, size
from rainbow_tf.training.build import build_parts
from rainbow_tf.training.progress import _forecast, measure_speed


@pytest.mark.usefixtures("uncompiled")
def test_the_speed_trial_changes_nothing():
    parts = build_parts(Config(environment="CartPole-v1", replay_capacity=1_000))
    learner = parts.learner
    variables = [
        *learner.online.variables,
        *learner.target.variables,
        *learner.optimizer.variables,
    ]
    before = [variable.numpy() for variable in variables]
    first = parts.environment.reset().observation
    measure_speed(Config(environment="CartPole-v1", replay_capacity=1_000), parts)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)
    np.testing.assert_array_equal(parts.environment.reset().observation, first)
    assert parts.replay.num_sampleable == 0


def test_forecast_by_hand():
    config = Config(game="qbert", frames=80_000 + 400_000, eval_period_frames=240_000)
    # 20K steps of 1 ms, then 100K of 1 ms and a quarter of an update of 40 ms, and two
    # evaluations of 125K steps: 20 + 100 * 11 + 250 seconds.
    frames_per_second, seconds = _forecast(config, 0, 0.001, 0.011)
    assert frames_per_second == pytest.approx(4 / 0.011)
    assert seconds == pytest.approx(20 + 1_100 + 250)
    # A run that is resumed at 240K frames has 60K learning steps and one evaluation left.
    assert _forecast(config, 240_000, 0.001, 0.011)[1] == pytest.approx(660 + 125)
    # One that is resumed at 40K has half of the history left.
    assert _forecast(config, 40_000, 0.001, 0.011)[1] == pytest.approx(10 + 1_100 + 125)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(40, "40 s"), (125, "2 min 5 s"), (7_500, "2 h 5 min"), (788_400, "9 d 3 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_sizes():
    assert size(7_079_000_000) == "7.08 GB"
    assert size(2_000_000) == "2.0 MB"
