"""Evaluation during training: its lanes, its row and a stop in the middle."""

import numpy as np
import pytest

from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment
from rainbow_tf.evaluation import evaluator as evaluator_module
from rainbow_tf.evaluation.evaluator import Evaluator
from rainbow_tf.types import Decision


class PushRight:
    """A policy that soon drops the pole."""

    def decide(self, observation, epsilon):
        lanes = len(observation)
        return Decision(np.ones(lanes, np.int32), None, np.zeros(lanes), None)


def evaluate(monkeypatch, *, num_envs, is_stopping=False):
    """Evaluates once; returns the lanes, the rows that were written and the result."""
    lanes, rows = [], []

    def make(config, *, num_envs, **kwargs):
        lanes.append(num_envs)
        return make_environment(config, num_envs=num_envs, **kwargs)

    monkeypatch.setattr(evaluator_module, "make_environment", make)
    config = Config(
        environment="CartPole-v1", num_envs=num_envs, eval_period_frames=100, eval_frames=30
    )
    evaluator = Evaluator(
        config=config,
        policy=PushRight(),
        network=None,
        write=lambda *row: rows.append(row),
        is_stopping=lambda: is_stopping,
    )
    return lanes, rows, evaluator.observe(100)


@pytest.mark.parametrize(("num_envs", "lanes"), [(1, 4), (4, 4), (6, 6)])
def test_an_evaluation_has_at_least_four_lanes(monkeypatch, num_envs, lanes):
    used, rows, done = evaluate(monkeypatch, num_envs=num_envs)
    assert (used, done) == ([lanes], True)
    ((frames, summary, _),) = rows
    assert frames == 100
    assert summary["episodes"] >= lanes  # every lane finishes what it began


def test_returns_outside_the_support_are_reported(capsys):
    for v_max, is_wide in ((5.0, False), (20.0, True)):
        config = Config(environment="CartPole-v1", eval_frames=30, v_min=0.0, v_max=v_max)
        Evaluator(
            config=config,
            policy=PushRight(),
            network=None,
            write=lambda *row: None,
            is_stopping=lambda: False,
        )._play(100)
        assert ("--v_max" in capsys.readouterr().err) != is_wide


def test_a_stopped_evaluation_writes_nothing(monkeypatch):
    _, rows, done = evaluate(monkeypatch, num_envs=1, is_stopping=True)
    assert (rows, done) == ([], False)
