"""Agents that must learn: the product is a curve that rises."""

import pytest

from rainbow_tf.config import Config
from rainbow_tf.training.loop import train
from rainbow_tf.training.parts import build_parts

ALL_SIX = ()
NONE = (
    "--nodouble",
    "--noprioritized",
    "--nodueling",
    "--nodistributional",
    "--nonoisy",
    "--n_step=1",
)


def frames_to_reach(config: Config, mean_return: float, *, episodes: int) -> int | None:
    """Frames after which that many training episodes in a row first have the mean return."""
    parts = build_parts(config)
    scores: list[float] = []
    for tick in train(config, parts):
        scores += [episode.score for episode in tick.episodes]
        recent = scores[-episodes:]
        if tick.episodes and len(recent) == episodes and sum(recent) / episodes >= mean_return:
            return tick.frames
    return None


@pytest.mark.learning
@pytest.mark.parametrize("parts", [ALL_SIX, NONE], ids=["rainbow", "dqn"])
def test_cartpole_soon_gets_better(preset, parts):
    # A random player lasts about 22 steps.
    config = preset("cartpole.cfg", "--frames=15000", *parts)
    assert frames_to_reach(config, 100, episodes=20) is not None


@pytest.mark.learning
def test_minatar_breakout_soon_gets_better(preset):
    # A random player scores about 0.5.
    config = preset("minatar.cfg", "--frames=30000")
    assert frames_to_reach(config, 2.5, episodes=100) is not None


@pytest.mark.learning
@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("parts", [ALL_SIX, NONE], ids=["rainbow", "dqn"])
def test_cartpole_is_solved(preset, parts, seed):
    config = preset("cartpole.cfg", f"--seed={seed}", *parts)
    assert config.frames == 100_000
    assert frames_to_reach(config, 450, episodes=20) is not None


@pytest.mark.learning
@pytest.mark.long
def test_minatar_breakout_is_learned(preset):
    config = preset("minatar.cfg")
    assert config.frames == 250_000
    assert frames_to_reach(config, 8, episodes=100) is not None
