"""Atari environments against raw emulators, preprocessed here a second time."""

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from ale_py import ALEInterface, LoggerMode, roms
from gymnasium.vector import AutoresetMode

from rainbow_tf.config import Config
from rainbow_tf.environments import atari
from rainbow_tf.environments.atari import AtariEnvironment
from rainbow_tf.games import GAMES
from rainbow_tf.types import StepOutput


def make(game: str, *, num_envs: int = 2, seed: int = 3, **settings):
    config = Config(game=game, **settings)
    return AtariEnvironment(config=config, num_envs=num_envs, seed=seed)


def play(environment: AtariEnvironment, num_steps: int, *, seed: int = 0, num_envs: int = 2):
    """The reset and `num_steps` random steps."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(environment.spec.num_actions, size=(num_steps, num_envs))
    return [environment.reset(), *(environment.step(a_tm1) for a_tm1 in actions)]


def digest(outputs: list[StepOutput]) -> list[bytes]:
    """One string of bytes per lane: all that it gave."""
    return [
        b"".join(field[lane].tobytes() for output in outputs for field in output)
        for lane in range(len(outputs[0].reward))
    ]


def lane_seeds(seed: int, num_envs: int) -> list[int]:
    return [int(word) >> 1 for word in np.random.SeedSequence(seed).generate_state(num_envs)]


class Emulator:
    """One lane, played and preprocessed without the vector environment."""

    def __init__(self, config: Config, seed: int) -> None:
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.config = config
        self.ale = ALEInterface()
        self.ale.setInt("random_seed", seed)
        self.ale.setFloat("repeat_action_probability", config.sticky_action_probability)
        rom = roms.get_rom_path(str(config.game))
        assert rom is not None
        self.ale.loadROM(rom)
        self.actions = self.ale.getMinimalActionSet()

    @staticmethod
    def shrink(screen: np.ndarray) -> np.ndarray:
        cv2 = pytest.importorskip("cv2")
        return cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)

    def reset(self) -> None:
        self.ale.reset_game()
        self.stack = np.zeros((self.config.stack, 84, 84), np.uint8)
        self.stack[-1] = self.shrink(self.ale.getScreenGrayscale())
        self.reward, self.is_life_lost = 0, False

    def step(self, action: int) -> None:
        lives, screens = self.ale.lives(), []
        self.reward = 0
        for _ in range(self.config.action_repeat):
            self.reward += self.ale.act(self.actions[action])
            screens.append(self.ale.getScreenGrayscale())
            if self.ale.game_over():
                break
        self.is_life_lost = self.ale.lives() < lives
        frame = self.shrink(np.max(screens[-2:], axis=0))
        self.stack = np.concatenate([self.stack[1:], frame[None]])


@pytest.mark.parametrize(
    ("game", "num_steps", "settings"),
    [
        ("breakout", 400, {}),
        ("qbert", 450, {}),
        ("bank_heist", 800, {}),  # Shows 0 lives while the last one is played.
        ("asterix", 500, {"protocol": "sticky"}),
        ("road_runner", 300, {"action_repeat": 3, "frame_stack": 2}),
        ("breakout", 900, {"action_repeat": 1, "frame_stack": 1}),
    ],
)
def test_agrees_with_raw_emulators(game, num_steps, settings):
    config = Config(game=game, noop_max=0, **settings)
    environment = AtariEnvironment(config=config, num_envs=2, seed=3)
    lanes = [Emulator(config, seed) for seed in lane_seeds(3, 2)]
    rng = np.random.default_rng(0)
    lives_lost = games_over = 0
    largest_reward = 0
    is_over = [True, True]

    output, action = environment.reset(), np.zeros(2, int)
    for _ in range(num_steps):
        for e, lane in enumerate(lanes):
            is_first, is_over[e] = is_over[e], False
            if is_first:
                lane.reset()
            else:
                lane.step(action[e])
                is_over[e] = lane.ale.game_over()
            # At game over the newest frame is stale; nothing is ever bootstrapped from it.
            newest = -1 if is_over[e] else None
            np.testing.assert_array_equal(
                output.observation[e][:newest], lane.stack[:newest], strict=True
            )
            assert output.reward[e] == lane.reward
            assert output.is_first[e] == is_first
            assert output.episode_over[e] == is_over[e]
            is_loss = lane.is_life_lost and config.protocol == "paper"
            assert output.terminal[e] == (is_over[e] or is_loss)
            assert output.observation[e][-1].any()
            lives_lost += lane.is_life_lost and not is_over[e]
            games_over += is_over[e]
            largest_reward = max(largest_reward, lane.reward)
        action = rng.integers(environment.spec.num_actions, size=2)
        output = environment.step(action)

    assert lives_lost >= 2
    assert games_over >= 1
    assert largest_reward > 1 or game in ("breakout", "road_runner")


def test_screens_are_those_of_the_games_that_are_played():
    config = Config(game="breakout", noop_max=0, protocol="sticky")
    kwargs: dict[str, Any] = {"config": config, "num_envs": 2, "seed": 3}
    environment, plain = AtariEnvironment(**kwargs, screens=True), AtariEnvironment(**kwargs)
    ale = Emulator(config, lane_seeds(3, 2)[0]).ale
    ale.reset_game()
    outputs = play(plain, 300)
    np.testing.assert_array_equal(environment.reset().observation, outputs[0].observation)
    np.testing.assert_array_equal(environment.screen(), ale.getScreenRGB(), strict=True)
    actions = np.random.default_rng(0).integers(environment.spec.num_actions, size=(300, 2))
    meanings = ale.getMinimalActionSet()
    compared = 0
    for action, expected in zip(actions, outputs[1:], strict=True):
        output = environment.step(action)
        np.testing.assert_array_equal(output.observation, expected.observation)
        if expected.episode_over[0]:
            break
        screens = []
        for _ in range(config.action_repeat):
            ale.act(meanings[action[0]])
            screens.append(ale.getScreenRGB())
        np.testing.assert_array_equal(
            environment.screen(), np.max(screens[-2:], axis=0), strict=True
        )
        compared += 1
    assert compared > 100
    environment.close()


def test_a_lost_life_is_terminal_and_the_game_continues():
    lost = 0
    for before, output in itertools.pairwise(play(make("breakout"), 300)):
        assert output.terminal[output.episode_over].all()
        for e in np.flatnonzero(output.terminal & ~output.episode_over):
            lost += 1
            np.testing.assert_array_equal(output.observation[e, :-1], before.observation[e, 1:])
    assert lost >= 8  # Two lanes of 5 lives.
    for output in play(make("breakout", protocol="sticky"), 300):
        np.testing.assert_array_equal(output.terminal, output.episode_over)


def test_after_a_lost_life_comes_no_first_observation():
    outputs = play(make("breakout"), 300)
    for output, after in itertools.pairwise(outputs):
        np.testing.assert_array_equal(after.is_first, output.episode_over)
        for e in np.flatnonzero(after.is_first):
            assert not after.observation[e, :-1].any()
            assert after.observation[e, -1].any()
            assert after.reward[e] == 0
            assert not after.terminal[e]
            assert not after.episode_over[e]


@pytest.mark.parametrize(("frames", "steps"), [(40, 10), (41, 11), (44, 11)])
def test_the_frame_cap_cuts_and_does_not_end(frames, steps):
    outputs = play(make("pong", max_episode_frames=frames, noop_max=30), 3 * steps + 2)
    for t, output in enumerate(outputs):
        is_cut = t % (steps + 1) == steps  # The restart takes a step of its own.
        assert not output.terminal.any()
        assert output.episode_over.tolist() == [is_cut] * 2
        assert output.is_first.tolist() == [t % (steps + 1) == 0] * 2
        assert not output.terminal.any()


class ScriptedLanes:
    """A vector environment of one lane whose endings are written down."""

    script: tuple[tuple[int, bool, bool], ...] = ()  # lives, terminated, truncated

    def __init__(self, game, num_envs, **kwargs):
        self.ale = self
        self.settings = kwargs

    def get_action_set(self):
        return []

    def reset(self, *, seed):
        self.rows = iter(self.script[1:])
        return np.zeros((1, 4, 84, 84), np.uint8), {"lives": np.array([self.script[0][0]])}

    def step(self, actions):
        lives, terminated, truncated = next(self.rows)
        return (
            np.zeros((1, 4, 84, 84), np.uint8),
            np.array([7], np.int32),
            np.array([terminated]),
            np.array([truncated]),
            {"lives": np.array([lives])},
        )


def test_endings_that_meet(monkeypatch):
    rows = (
        # lives, terminated, truncated -> terminal, episode_over, is_first
        ((3, False, False), (False, False, True)),
        ((3, False, False), (False, False, False)),
        ((2, False, False), (True, False, False)),  # a life lost
        ((4, False, False), (False, False, False)),  # lives won
        ((4, False, True), (False, True, False)),  # cut with more lives than at the start
        ((3, False, False), (False, False, True)),
        ((2, False, True), (True, True, False)),  # a life lost as the cap comes
        ((3, False, False), (False, False, True)),
        ((0, True, True), (True, True, False)),  # game over as the cap comes
        ((3, False, False), (False, False, True)),
        ((0, False, False), (True, False, False)),  # no lives shown, the game continues
        ((0, True, False), (True, True, False)),
        ((3, False, False), (False, False, True)),
        ((2, True, False), (True, True, False)),  # game over with lives left
    )
    monkeypatch.setattr(ScriptedLanes, "script", tuple(given for given, _ in rows))
    monkeypatch.setattr(atari, "AtariVectorEnv", ScriptedLanes)
    environment = make("pong", num_envs=1)
    outputs = [environment.reset(), *(environment.step(np.zeros(1, int)) for _ in rows[1:])]
    got = [tuple(bool(flag[0]) for flag in output[2:]) for output in outputs]
    assert got == [expected for _, expected in rows]


def endings(game: str, monkeypatch, *, num_envs: int, num_steps: int, **settings):
    """By step and lane: where the emulator restarts, where we say it will, and where it did."""
    infos = []

    class Watched(atari.AtariVectorEnv):
        def step(self, actions):
            result = super().step(actions)
            infos.append(result[-1])
            return result

        def reset(self, **kwargs):
            result = super().reset(**kwargs)
            infos.append(result[-1])
            return result

    monkeypatch.setattr(atari, "AtariVectorEnv", Watched)
    outputs = play(make(game, num_envs=num_envs, **settings), num_steps, num_envs=num_envs)
    frames = np.stack([info["episode_frame_number"] for info in infos])
    is_restart = frames[1:] < frames[:-1]
    is_over = [output.episode_over for output in outputs[:-1]]
    is_first = [output.is_first for output in outputs[1:]]
    return is_restart, is_over, is_first


@pytest.mark.parametrize("game", GAMES)
def test_every_game_restarts_where_its_episode_is_over(game, monkeypatch):
    is_restart, is_over, is_first = endings(
        game, monkeypatch, num_envs=1, num_steps=54, max_episode_frames=100, noop_max=5
    )
    np.testing.assert_array_equal(is_over, is_restart)
    np.testing.assert_array_equal(is_first, is_restart)
    assert is_restart.sum() >= 2


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_every_game_restarts_where_its_game_is_over(game, monkeypatch):
    is_restart, is_over, is_first = endings(game, monkeypatch, num_envs=4, num_steps=1500)
    np.testing.assert_array_equal(is_over, is_restart)
    np.testing.assert_array_equal(is_first, is_restart)


def test_no_ops_are_drawn_from_none_to_the_most():
    num_envs, most = 16, 3
    output = make("seaquest", num_envs=num_envs, noop_max=most).reset()
    counts = set()
    for e, seed in enumerate(lane_seeds(3, num_envs)):
        lane = Emulator(Config(game="seaquest"), seed)
        lane.ale.reset_game()
        screens = [lane.shrink(lane.ale.getScreenGrayscale())]
        for _ in range(most):
            lane.ale.act(lane.actions[0])
            screens.append(lane.shrink(lane.ale.getScreenGrayscale()))
        matches = [n for n, s in enumerate(screens) if (s == output.observation[e, -1]).all()]
        assert len(matches) == 1
        counts.update(matches)
    assert counts == {0, 1, 2, 3}


def test_the_paper_s_settings_reach_the_emulator(monkeypatch):
    monkeypatch.setattr(ScriptedLanes, "script", ((0, False, False),))
    monkeypatch.setattr(atari, "AtariVectorEnv", ScriptedLanes)
    paper = make("pong")._env.settings
    expected = {
        "repeat_action_probability": 0.0,
        "max_num_frames_per_episode": 108_000,
        "noop_max": 31,
        "frameskip": 4,
        "stack_num": 4,
        "use_fire_reset": False,
        "episodic_life": False,
        "reward_clipping": False,
        "full_action_space": False,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
        "num_threads": 0,
    }
    assert {name: paper[name] for name in expected} == expected
    assert make("pong", protocol="sticky")._env.settings["repeat_action_probability"] == 0.25


def test_seeds_decide_the_stream():
    settings: dict[str, Any] = {"protocol": "sticky", "num_envs": 3}
    environment = make("pong", seed=1, **settings)
    first = digest(play(environment, 60, num_envs=3))
    assert digest(play(environment, 60, num_envs=3)) == first  # A reset starts the same way again.
    assert digest(play(make("pong", seed=1, **settings), 60, num_envs=3)) == first

    # All lanes play lane 0's actions, so that only their seeds tell them apart.
    streams = []
    for seed in (0, 1, 2):
        environment = make("pong", seed=seed, **settings)
        outputs = [environment.reset(), *(environment.step(np.full(3, t % 6)) for t in range(60))]
        streams += digest(outputs)
    assert len(set(streams)) == 9


def test_threads_do_not_change_the_stream(monkeypatch):
    vector_env = atari.AtariVectorEnv

    def stream(count):
        monkeypatch.setattr(
            atari,
            "AtariVectorEnv",
            lambda *given, **settings: vector_env(*given, **settings | {"num_threads": count}),
        )
        return digest(play(make("breakout", num_envs=3, seed=1), 80, num_envs=3))

    assert stream(1) == stream(2)


def test_outputs_can_be_kept():
    environment = make("breakout")
    outputs = [environment.reset()]
    seen = [digest(outputs)]
    for t in range(60):
        outputs.append(environment.step(np.full(2, t % 4)))
        seen.append(digest(outputs[-1:]))
    assert [digest([output]) for output in outputs] == seen


@pytest.mark.parametrize("game", ["breakout", "qbert", "seaquest"])
def test_spec(game):
    environment = make(game, frame_stack=3)
    spec, output = environment.spec, environment.reset()
    names = tuple(action.name for action in Emulator(Config(game=game), 0).actions)
    assert spec == ((84, 84), np.dtype(np.uint8), 3, len(names), names, 0)
    if game == "breakout":
        assert names == ("NOOP", "FIRE", "RIGHT", "LEFT")
    assert output.observation.shape == (2, 3, 84, 84)
    assert [field.dtype for field in output] == [np.uint8, np.float32, *[np.dtype(bool)] * 3]
    stepped = environment.step(np.zeros(2, np.int32))
    assert [field.dtype for field in stepped] == [np.uint8, np.float32, *[np.dtype(bool)] * 3]
    assert output.is_first.all()
    assert not output.reward.any()


def test_a_environment_is_quiet_and_needs_no_tensorflow():
    code = (
        "import sys\n"
        "from rainbow_tf.config import Config\n"
        "from rainbow_tf.environments.base import make_environment\n"
        "make_environment(Config(game='pong'), num_envs=1, seed=0).reset()\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
