"""Gymnasium environments: endings, stacks, seeds, and what is refused."""

import itertools
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import make_environment
from rainbow_tf.environments.gym import GymEnvironment
from rainbow_tf.types import StepOutput


class Counter(gymnasium.Env):
    """Shows the steps of its episode; ends after `length` of them, pays the action it got."""

    def __init__(self, shape=(2,), dtype=np.float64, low=0, length=5, actions=None):
        self.observation_space = spaces.Box(low, 200, shape, dtype)
        self.action_space = spaces.Discrete(3) if actions is None else actions
        self.length = length
        # One buffer for ever: a env that keeps it would see its old observations change.
        self.frame = np.zeros(shape, dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.frame[:] = 100
        return self.frame, {}

    def step(self, action):
        self.frame += np.ones_like(self.frame)
        is_over = bool(self.frame.flat[0] == 100 + self.length)
        return self.frame, float(action), is_over, False, {}


class Named(Counter):
    def get_action_meanings(self):
        return ["LEFT", "STAY", "RIGHT"]


class Broken(gymnasium.Env):
    def __init__(self):
        raise OSError("no\n  joystick.")


def register(name: str, kind: type[gymnasium.Env], *, limit: int | None = None, **kwargs: Any):
    def create(**given: Any) -> gymnasium.Env:
        return kind(**given)

    gymnasium.register(name, create, max_episode_steps=limit, kwargs=kwargs)


@pytest.fixture(autouse=True)
def registered():
    before = dict(gymnasium.registry)
    register("Counter-v0", Counter)
    register("Named-v0", Named)
    register("Broken-v0", Broken)
    register("Endless-v0", Counter, length=10**6)
    register("Limited-v0", Counter, length=10**6, limit=4)
    register("Late-v0", Counter, actions=spaces.Discrete(3, start=5))
    register("Multi-v0", Counter, actions=spaces.MultiDiscrete([2, 2]))
    register("Cube-v0", Counter, shape=(2, 2, 2, 2))
    register("High-v0", Counter, low=50)
    register("ByteVector-v0", Counter, dtype=np.uint8)
    for name, dtype in {"Byte": np.uint8, "Short": np.int16, "Double": np.float64}.items():
        register(f"{name}Image-v0", Counter, shape=(3, 3), dtype=dtype)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def make(environment: str, *, num_envs: int = 2, seed: int = 3, **settings) -> GymEnvironment:
    config = Config(environment=environment, **settings)
    return GymEnvironment(config=config, num_envs=num_envs, seed=seed)


def play(env: GymEnvironment, num_steps: int, *, num_envs: int = 2) -> list[StepOutput]:
    """The reset and `num_steps` steps; all lanes get the same random actions."""
    rng = np.random.default_rng(0)
    actions = rng.integers(env.spec.num_actions, size=num_steps)
    return [env.reset(), *(env.step(np.full(num_envs, a_tm1)) for a_tm1 in actions)]


def digest(outputs: list[StepOutput]) -> list[bytes]:
    """One string of bytes per lane: all that it gave."""
    return [
        b"".join(field[lane].tobytes() for output in outputs for field in output)
        for lane in range(len(outputs[0].reward))
    ]


def flags(output: StepOutput) -> tuple[bool, ...]:
    """terminal, episode_over, is_first of the first lane; the others are alike."""
    assert all((flag == flag[0]).all() for flag in output[2:])
    return tuple(bool(flag[0]) for flag in output[2:])


FIRST = (False, False, True)
BETWEEN = (False, False, False)
ENDED = (True, True, False)
CUT = (False, True, False)


@pytest.mark.parametrize(
    ("environment", "cap", "episode"),
    [
        ("Counter-v0", 108_000, [FIRST, *[BETWEEN] * 4, ENDED]),
        ("Counter-v0", 5, [FIRST, *[BETWEEN] * 4, ENDED]),  # Both at once: it ended.
        ("Counter-v0", 3, [FIRST, *[BETWEEN] * 2, CUT]),
        ("Endless-v0", 6, [FIRST, *[BETWEEN] * 5, CUT]),
        ("Limited-v0", 6, [FIRST, *[BETWEEN] * 3, CUT]),  # Its own limit is the shorter one.
        ("Limited-v0", 2, [FIRST, BETWEEN, CUT]),
        ("Endless-v0", 1, [FIRST, CUT]),
    ],
)
def test_endings(environment, cap, episode):
    env = make(environment, max_episode_frames=cap)
    got = [env.reset(), *(env.step(np.full(2, 2)) for _ in range(2 * len(episode) - 1))]
    assert [flags(output) for output in got] == episode * 2
    rewards = [0.0 if flag == FIRST else 2.0 for flag in episode * 2]
    assert [output.reward.tolist() for output in got] == [[reward] * 2 for reward in rewards]


def test_a_cartpole_that_balances_is_cut_after_its_500_steps():
    env = make("CartPole-v1", num_envs=1)
    observation = env.reset().observation
    for t in range(1, 501):
        _, _, angle, angle_rate = observation[0, 0]
        position, speed = observation[0, 0, :2]
        push_right = angle + 0.5 * angle_rate + 0.05 * position + 0.1 * speed > 0
        output = env.step(np.array([int(push_right)]))
        observation = output.observation
        assert output.episode_over[0] == (t == 500)
    assert flags(output) == CUT


@pytest.mark.parametrize("environment", ["Counter-v0", "High-v0", "ByteImage-v0"])
def test_stacks_are_newest_last_and_zero_before_the_episode(environment):
    env = make(environment, frame_stack=3)
    outputs = play(env, 7)
    assert outputs[0].observation.shape == (2, 3, *env.spec.frame_shape)
    frames = [output.observation.reshape(2, 3, -1)[1, :, 0].tolist() for output in outputs]
    assert frames == [
        [0, 0, 100],
        [0, 100, 101],
        [100, 101, 102],
        [101, 102, 103],
        [102, 103, 104],
        [103, 104, 105],
        [0, 0, 100],
        [0, 100, 101],
    ]


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("environment", ["CartPole-v1", "Counter-v0", "ByteImage-v0"])
def test_outputs_can_be_kept(environment, stack):
    env = make(environment, frame_stack=stack)
    outputs = [env.reset()]
    seen = [digest(outputs)]
    for t in range(30):
        outputs.append(env.step(np.full(2, t % 2)))
        seen.append(digest(outputs[-1:]))
    assert [digest([output]) for output in outputs] == seen


@pytest.mark.parametrize(
    ("environment", "shape", "dtype"),
    [
        ("Counter-v0", (2,), np.float32),
        ("CartPole-v1", (4,), np.float32),
        ("ByteVector-v0", (2,), np.float32),
        ("ByteImage-v0", (3, 3), np.uint8),
        ("ShortImage-v0", (3, 3), np.float32),
        ("DoubleImage-v0", (3, 3), np.float32),
    ],
)
@pytest.mark.parametrize("stack", [1, 2])
def test_spec(environment, shape, dtype, stack):
    env = make(environment, frame_stack=stack)
    assert env.spec[:3] == (shape, np.dtype(dtype), stack)
    for output in play(env, 1):
        assert output.observation.shape == (2, stack, *shape)
        assert [field.dtype for field in output] == [dtype, np.float32, *[np.dtype(bool)] * 3]


def test_actions_are_counted_from_the_space_s_start():
    env = make("Late-v0")
    env.reset()
    assert env.spec.num_actions == 3
    assert env.step(np.array([0, 2])).reward.tolist() == [5, 7]


def test_action_meanings():
    assert make("Named-v0").spec.action_meanings == ("LEFT", "STAY", "RIGHT")
    assert make("Counter-v0").spec.action_meanings == ("0", "1", "2")
    assert make("MinAtar/Breakout-v1").spec.action_meanings == ("NOOP", "LEFT", "RIGHT")


@pytest.mark.parametrize("environment", ["CartPole-v1", "MinAtar/Breakout-v1"])
def test_seeds_decide_the_stream(environment):
    if environment.startswith("MinAtar/"):
        pytest.importorskip("minatar")
    env = make(environment, seed=1)
    first = digest(play(env, 200))
    assert digest(play(env, 200)) == first  # A reset starts the same way again.
    assert digest(play(make(environment, seed=1), 200)) == first
    streams = [digest(play(make(environment, seed=seed), 200)) for seed in (0, 1, 2)]
    assert len(set(itertools.chain(*streams))) == 6


def test_minatar_s_sticky_action_does_not_outlive_a_reset():
    pytest.importorskip("minatar")
    environments = [make("MinAtar/Breakout-v1", num_envs=1, seed=seed) for seed in range(40)]
    for env in environments:
        first = digest([env.reset(), env.step(np.array([0]))])
        env.step(np.array([2]))
        assert digest([env.reset(), env.step(np.array([0]))]) == first


def test_minatar_frames_stay_bools():
    pytest.importorskip("minatar")
    env = make("MinAtar/Breakout-v1")
    assert env.spec[:4] == ((10, 10, 4), np.dtype(bool), 1, 3)
    observation = env.reset().observation
    assert observation.dtype == bool
    # Paddle, ball, trail and the three rows of bricks.
    assert observation.sum(axis=(1, 2, 3)).tolist() == [[1, 1, 1, 30]] * 2


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("CartPol-v1", "did you mean --environment=CartPole-v1?"),
        ("CartPole-v7", "did you mean --environment=CartPole-v1?"),
        ("zzz", "is not known to Gymnasium; give the id of a registered one"),
        ("a b!", "is not known to Gymnasium"),
        ("no_such_module:Foo-v0", "must be installed or in the working folder"),
        ("ALE/Pong-v5", "give --game=pong --protocol=sticky instead"),
        ("MsPacmanNoFrameskip-v4", "give --game=ms_pacman instead"),
        ("UpNDown-v0", "give --game=up_n_down --protocol=sticky instead"),
        ("ALE/Adventure-v5", "give --game with one of the 57 games instead"),
        ("Pendulum-v1", "has Box actions"),
        ("Multi-v0", "has MultiDiscrete actions"),
        ("FrozenLake-v1", "has Discrete observations"),
        ("Blackjack-v1", "has Tuple observations"),
        ("Cube-v0", "has observations of shape (2, 2, 2, 2)"),
        ("Broken-v0", "cannot be created (no joystick); repair it"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_sentence(environment, message):
    with pytest.raises(ConfigError) as error:
        make(environment)
    text = str(error.value)
    assert text.startswith(f"--environment={environment} ")
    assert message in text
    assert "\n" not in text
    assert text[-1] in ".?"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for module in ("gymnasium.envs.box2d", "gymnasium.envs.box2d.lunar_lander"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ConfigError, match="Box2D is not installed"):
        make("LunarLander-v3")


def test_minatar_that_is_missing(monkeypatch):
    for name in [name for name in gymnasium.registry if name.startswith("MinAtar/")]:
        monkeypatch.delitem(gymnasium.registry, name)
    monkeypatch.setitem(sys.modules, "minatar", None)
    monkeypatch.setitem(sys.modules, "minatar.gym", None)
    with pytest.raises(ConfigError, match=r"pip install 'rainbow_tf\[minatar\]'"):
        make("MinAtar/Breakout-v1")


@pytest.mark.parametrize("environment", ["CartPole-v0", "CartPole", "MinAtar/Freeway-v1"])
def test_no_warning_leaks(environment, capfd):
    if environment.startswith("MinAtar/"):
        pytest.importorskip("minatar")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(make(environment), 30)
        make(environment)
    assert capfd.readouterr() == ("", "")


def test_make_environment_picks_by_the_settings():
    env = make_environment(Config(environment="CartPole-v1"), num_envs=3, seed=0)
    assert env.spec.frame_shape == (4,)
    assert env.reset().reward.shape == (3,)
    env = make_environment(Config(game="pong"), num_envs=3, seed=0)
    assert env.spec.frame_shape == (84, 84)
    assert env.reset().reward.shape == (3,)


def test_screens_are_drawn_for_a_person():
    config = Config(environment="MinAtar/Breakout-v1")
    env = make_environment(config, num_envs=2, seed=1, screens=True)
    observation = env.reset().observation
    screen = env.screen()
    assert screen.shape == (10, 10, 3)
    assert screen.dtype == np.uint8
    assert screen.max() > 100
    # Black where no plane of the first lane has anything.
    np.testing.assert_array_equal(screen.any(axis=-1), observation[0, 0].any(axis=-1))
    env.close()


def test_a_screen_that_needs_a_missing_package_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    config = Config(environment="CartPole-v1")
    env = make_environment(config, num_envs=1, seed=1, screens=True)
    env.reset()
    with pytest.raises(ConfigError, match=r"CartPole-v1 cannot be drawn \(pygame"):
        env.screen()
    env.close()
