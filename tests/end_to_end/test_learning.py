"""Agents that must learn: the product is a curve that rises."""

import pytest

import rainbow_tf.flags as presets
from rainbow_tf.api import build
from rainbow_tf.config import Config
from rainbow_tf.types import BEGINNING

# Presets of agents that differ from full Rainbow by flags alone.
AGENTS = [name for name in presets.names("*/*") if name not in ("baselines/a3c", "baselines/dqn")]
# What does not fit CartPole: the network for screens.
OTHERS = {"atari100k": ("--network=auto",)}
# A norm of 40 would clip mostly the gradients at CartPole's ends, where returns are near 100; an
# epsilon of 0.1 is for Atari's larger gradients.
A3C_CARTPOLE = (
    *("baselines/a3c", "--preset=cartpole"),
    *("--max_grad_norm=10000", "--rmsprop_epsilon=0.00001"),
)
A3C_MINATAR = (
    *("baselines/a3c", "--preset=minatar"),
    *("--learning_rate=0.002", "--rmsprop_epsilon=0.01"),
)


def frames_to_reach(config: Config, mean_return: float, *, episodes: int) -> int | None:
    """Frames after which that many training episodes in a row first have the mean return."""
    parts, ticks = build(config, BEGINNING)
    scores: list[float] = []
    try:
        for tick in ticks:
            scores += [episode.score for episode in tick.episodes]
            recent = scores[-episodes:]
            if tick.episodes and len(recent) == episodes and sum(recent) / episodes >= mean_return:
                return tick.frames
        return None
    finally:
        parts.close()


@pytest.mark.learning
@pytest.mark.parametrize(
    "agent",
    [
        "rainbow",
        pytest.param("baselines/dqn", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.long) for name in [*AGENTS, *OTHERS]),
    ],
)
def test_cartpole_soon_gets_better(preset, agent):
    # A random player lasts about 22 steps.
    config = preset(agent, "--preset=cartpole", "--frames=25000", *OTHERS.get(agent, ()))
    assert frames_to_reach(config, 100, episodes=20) is not None


@pytest.mark.learning
@pytest.mark.slow
def test_minatar_breakout_soon_gets_better(preset):
    # A random player scores about 0.5.
    config = preset("minatar", "--frames=30000")
    assert frames_to_reach(config, 2.5, episodes=100) is not None


@pytest.mark.learning
@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("agent", ["rainbow", "baselines/dqn"])
def test_cartpole_is_solved(preset, agent, seed):
    # Training returns include exploration: with its own epsilon of 0.1, DQN reached 450 with one of
    # these three seeds.
    config = preset(agent, "--preset=cartpole", f"--seed={seed}", "--epsilon_end=0.01")
    assert config.frames == 100_000
    assert frames_to_reach(config, 450, episodes=20) is not None


@pytest.mark.learning
@pytest.mark.long
def test_minatar_breakout_is_learned(preset):
    config = preset("minatar")
    assert config.frames == 250_000
    assert frames_to_reach(config, 8, episodes=100) is not None


@pytest.mark.learning
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "flags", "mean_return", "episodes"),
    [
        ("cartpole", ["--frames=25000"], 100, 20),
        ("cartpole", [], 450, 20),
        ("minatar", [], 8, 100),
    ],
)
def test_three_actors_reach_what_one_process_does(preset, name, flags, mean_return, episodes):
    config = preset(name, "--actors=3", *flags)
    assert frames_to_reach(config, mean_return, episodes=episodes) is not None


@pytest.mark.learning
@pytest.mark.slow
def test_a3c_soon_gets_better_at_cartpole(preset):
    config = preset(*A3C_CARTPOLE, "--frames=40000")
    assert frames_to_reach(config, 100, episodes=20) is not None


@pytest.mark.learning
@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a3c_learns_cartpole(preset, seed):
    config = preset(*A3C_CARTPOLE, "--frames=150000", f"--seed={seed}")
    assert frames_to_reach(config, 195, episodes=20) is not None


@pytest.mark.learning
@pytest.mark.long
def test_a3c_learns_minatar_breakout(preset):
    config = preset(*A3C_MINATAR)
    assert config.frames == 250_000
    assert frames_to_reach(config, 3, episodes=100) is not None
