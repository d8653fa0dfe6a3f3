import numpy as np
import pytest
import tensorflow as tf
from ale_py import ALEInterface, LoggerMode, roms
from small_agents import make_agent, to_client

from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment
from rainbow_tf.environments.screens import area_taps
from rainbow_tf.export.signatures import describe, make_signatures, to_frames
from rainbow_tf.games import GAMES


def play(game, num_steps, config):
    """Stacks from the training environment, and the screens of an emulator that plays the same."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    environment = make_environment(config, num_envs=1, seed=5)
    emulator = ALEInterface()
    emulator.setInt("random_seed", int(np.random.SeedSequence(5).generate_state(1)[0]) >> 1)
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(roms.get_rom_path(game))
    emulator.reset_game()
    actions = emulator.getMinimalActionSet()
    rng = np.random.default_rng(0)

    pair = np.stack([emulator.getScreenRGB()] * 2)
    recent = [np.zeros_like(pair)] * (config.stack - 1) + [pair]
    stacks, frames = [environment.reset().observation[0]], [np.stack(recent)]
    for _ in range(num_steps):
        action = rng.integers(len(actions), size=1)
        output = environment.step(action)
        played = []
        for _ in range(config.action_repeat):
            emulator.act(actions[action[0]])
            played.append(emulator.getScreenRGB())
        if output.episode_over[0]:
            break
        recent = [*recent[1:], np.stack((played * 2)[-2:])]
        stacks.append(output.observation[0])
        frames.append(np.stack(recent))
    environment.close()
    return np.stack(stacks), np.stack(frames)


def compare(game, num_steps, **settings):
    """The largest difference of a pixel, and the share of equal actions from screens and stacks."""
    config = Config(game=game, noop_max=0, **settings)
    stacks, frames = play(game, num_steps, config)
    assert np.ptp(stacks) > 0
    network, spec, _ = make_agent(config)
    facts = describe(config, spec, -1, None, noisy=False)
    signatures = make_signatures(network, config=config, spec=spec, facts=facts, noisy=False)
    preprocess = tf.function(to_frames, reduce_retracing=True)
    difference, equal = 0, []
    for i in range(0, len(stacks), 8):
        shrunk = preprocess(tf.constant(frames[i : i + 8])).numpy()
        difference = max(difference, np.abs(shrunk.astype(int) - stacks[i : i + 8]).max())
        raw = signatures["from_frames"](frames=tf.constant(frames[i : i + 8]))
        client = tf.constant(to_client(stacks[i : i + 8], spec))
        ready = signatures["serving_default"](observations=client)
        equal += (raw["actions"] == ready["actions"]).numpy().tolist()
    return difference, np.mean(equal)


@pytest.mark.parametrize("game", ["ms_pacman", "space_invaders", "seaquest"])
def test_raw_screens_become_the_frames_of_training(game):
    assert compare(game, 40, network="data_efficient") == (0, 1)


def test_raw_screens_without_action_repeat_and_with_another_stack():
    settings = {"network": "data_efficient", "action_repeat": 1, "frame_stack": 2}
    assert compare("pong", 20, **settings) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_raw_screens_of_every_game(game):
    assert compare(game, 150) == (0, 1)


def test_area_taps_by_hand():
    pixels, weights = area_taps(5, 2)
    np.testing.assert_array_equal(pixels, [[0, 2], [1, 3], [2, 4]])
    np.testing.assert_allclose(weights, [[0.4, 0.2], [0.4, 0.4], [0.2, 0.4]], rtol=1e-6)
