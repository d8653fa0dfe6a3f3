"""Every agent of the presets trains: it plays, learns and stays finite."""

import numpy as np
import pytest

import rainbow_tf.flags as presets
from rainbow_tf.training.build import build_parts
from rainbow_tf.training.loop import train

PONG = ("--game=pong", "--frames=2400", "--min_history_frames=1200", "--replay_capacity=2000")
CARTPOLE = (
    *("--environment=CartPole-v1", "--network=auto"),
    *("--frames=124", "--min_history_frames=100", "--replay_capacity=200"),
)
# What they need besides: images to shift, few lanes for few steps.
SMALL = {
    "beyond": ("--num_envs=4", "--updates_per_step=0.25", "--batch_size=8"),
    "drq_eps": ("--environment=MinAtar/Breakout-v1",),
}
# Environments, and agents that have tests of their own.
OTHERS = ("cartpole", "minatar", "baselines/a3c", "apex")
AGENTS = [name for name in presets.names() if name not in OTHERS]


COMPILED = ("rainbow", "baselines/dqn")
UNCOMPILED = [name for name in AGENTS if name not in COMPILED]


@pytest.mark.parametrize(
    "name", [*COMPILED, *(pytest.param(name, marks=pytest.mark.slow) for name in UNCOMPILED)]
)
def test_a_preset_trains_on_pong(preset, name):
    check_training(preset(name, *PONG, *(SMALL[name] if name == "beyond" else ())))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", UNCOMPILED)
def test_a_preset_trains_on_a_small_environment(preset, name):
    check_training(preset(name, *CARTPOLE, *SMALL.get(name, ())))


def check_training(config):
    parts = build_parts(config)
    before = [variable.numpy() for variable in parts.learner.online.trainable_variables]
    ticks = list(train(config, parts))
    parts.environment.close()
    assert ticks[-1].frames >= config.frames
    losses = [result.loss for tick in ticks for result in tick.results]
    learning_steps = config.steps(config.frames - config.min_history_frames)
    assert len(losses) == pytest.approx(learning_steps * config.updates_per_step, abs=2)
    assert np.all(np.isfinite(losses))
    after = [variable.numpy() for variable in parts.learner.online.trainable_variables]
    assert all(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))
