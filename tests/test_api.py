"""The agent from Python: the same runs as the commands', environments and networks of one's own."""

import copy
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import rainbow_tf
from rainbow_tf import ConfigError, process

PAGE = Path(__file__).parents[1] / "docs/python.md"
BLOCKS = re.findall(r"(?<!<!-- not executed -->\n)```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
TINY = {
    "min_history_frames": 40,
    "replay_capacity": 500,
    "batch_size": 4,
    "eval_period_frames": 60,
    "eval_frames": 40,
    "log_period_frames": 20,
    "updates_per_step": 0.1,
}
MODULE = '''
import gymnasium
import keras
import numpy as np


class Corridor(gymnasium.Env):
    """Walk right to the end; actions are numbered from 3."""

    observation_space = gymnasium.spaces.Box(0, 1, (5,))
    action_space = gymnasium.spaces.Discrete(2, start=3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self.observation(), {}

    def step(self, action):
        assert action in (3, 4), action
        self.place = max(0, self.place + (1 if action == 4 else -1))
        self.steps += 1
        return self.observation(), -1.0, self.place == 4, self.steps == 30, {}

    def observation(self):
        return np.eye(5, dtype=np.float32)[self.place]

    def render(self):
        return np.full((16, 16, 3), 50 * self.place, np.uint8)


class Pictures(Corridor):
    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)

    def observation(self):
        return np.full((64, 64, 3), 50 * self.place, np.uint8)


def wide(spec):
    inputs = keras.Input(spec.observation_shape, dtype=spec.frame_dtype.name)
    features = keras.layers.Rescaling(1 / 255)(inputs)
    if len(spec.observation_shape) > 1:
        features = keras.layers.Conv2D(4, 8, 8, activation="relu")(features)
        features = keras.layers.Flatten()(features)
    return keras.Model(inputs, keras.layers.Dense(16, activation="relu")(features))


def unflat(spec):
    return keras.Sequential([keras.Input(spec.observation_shape), keras.layers.Reshape((5, 1))])


def coded(spec):
    return keras.Sequential([keras.layers.Lambda(lambda inputs: inputs)])
'''

KILLED = """
import own_module
import rainbow_tf

rainbow_tf.Agent(
    own_module.{kind},
    network=own_module.wide,
    run_dir="run",
    min_history_frames=300,
    target_period_frames=100,
    replay_capacity=5000,
    learning_rate=1e-3,
    eval_period_frames=1500,
    eval_frames=300,
    checkpoint_period_frames=200,
    v_min=-30,
    v_max=0,
).learn(3000)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A module of the user's, in the working folder."""
    folder = tmp_path_factory.mktemp("working")
    (folder / "own_module.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    import own_module

    yield own_module
    sys.path.remove(str(folder))


def weights(agent):
    return [variable.numpy() for variable in agent.network.variables]


def assert_same_policy(one, other, observation):
    assert one.act(observation) == other.act(observation)
    assert_allclose(one.q_values(observation), other.q_values(observation), rtol=1e-5)


def test_every_block_of_the_page_is_found():
    assert len(BLOCKS) == 5
    assert "import rainbow_tf" in BLOCKS[0]


@pytest.mark.compiles
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_pages_blocks_run_with_fewer_frames(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = {"100_000": "400", "50_000": "400", "5_000": "400", "4_000": "600", "> 100:": "> 10:"}
    code = BLOCKS[number]
    for long, few in short.items():
        code = code.replace(long, few)
    code = code.replace('preset="cartpole"', 'preset="cartpole", min_history_frames=200')
    exec(compile(code, str(PAGE), "exec"), {"__name__": "page"})


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_pages_blocks_run_as_written(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    exec(compile(BLOCKS[number], str(PAGE), "exec"), names)
    if "Corridor" in names:
        assert names["agent"].evaluate(episodes=10).mean == 1


@pytest.mark.compiles
def test_the_command_makes_the_same_run(cartpole, rows_and_weights, tmp_path):
    settings = dict(flag[2:].split("=") for flag in cartpole.settings)
    name = settings.pop("environment")
    numbers = {key: int(value) for key, value in settings.items()}
    agent = rainbow_tf.Agent(name, run_dir=str(tmp_path / "run"), **numbers).learn(500)
    assert rows_and_weights(tmp_path / "run") == rows_and_weights(cartpole.folder)
    assert agent.frames == rainbow_tf.load(cartpole.folder, snapshot="latest").frames


@pytest.mark.compiles
def test_learning_resumes_and_a_left_loop_is_saved(tmp_path, uncompiled):
    agent = rainbow_tf.Agent("CartPole-v1", run_dir=str(tmp_path / "run"), **TINY)
    with pytest.raises(ConfigError, match=r"learn\(\)"):
        agent.save(tmp_path / "copy")
    for tick in agent.training(200):
        if tick.frames >= 100:
            break
    again = rainbow_tf.Agent("CartPole-v1", run_dir=str(tmp_path / "run"), **TINY)
    assert again.restore() is None
    assert again.frames == tick.frames
    for one, other in zip(weights(agent), weights(again), strict=True):
        assert_array_equal(one, other)
    assert again.learn(120).frames >= 120
    again.save(tmp_path / "copy")
    with pytest.raises(ConfigError, match="exists already"):
        again.save(tmp_path / "copy")
    assert rainbow_tf.load(tmp_path / "copy", snapshot="latest").frames == again.frames


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly`")
@pytest.mark.parametrize("kind", ["Corridor", "Pictures"])
def test_an_environment_and_a_network_of_ones_own(own, kind, run_command, tmp_path, uncompiled):
    make, folder = getattr(own, kind), tmp_path / "run"
    agent = rainbow_tf.Agent(make, network=own.wide, run_dir=str(folder), **TINY)
    agent.learn(80)
    assert agent.config.environment == f"own_module:{kind}"
    observation, _ = make().reset()
    agent.learn(100)
    assert agent.act(observation) in (3, 4)
    assert agent.q_values(observation).shape == (2,)
    assert agent.act(np.stack([observation] * 3)).shape == (3,)
    assert agent.return_distribution(observation).mean().shape == (2,)
    loaded = rainbow_tf.load(folder, snapshot="latest")
    assert loaded.frames == agent.frames
    assert_same_policy(agent, loaded, observation)
    version = loaded.export(tmp_path / "model")
    assert (version / "saved_model.pb").exists()

    flag = f"--run_dir={folder}"
    result = run_command("evaluate", flag, "--episodes=2", "--snapshot=latest")
    assert "mean" in result.stdout, result.stderr
    video = f"--out={tmp_path}/own.gif"
    result = run_command("watch", flag, video, "--max_seconds=1", "--snapshot=latest")
    assert result.status == 0, result.stderr
    result = run_command(
        "train",
        flag,
        f"--environment=own_module:{kind}",
        "--network=own_module:wide",
        "--frames=120",
        *(f"--{name}={value}" for name, value in TINY.items()),
    )
    # Lanes step together: a run may end a few frames late.
    assert "Done after 12" in result.stdout, result.stderr


def test_quantiles_are_a_distribution_too():
    agent = rainbow_tf.Agent("CartPole-v1", returns="quantile", v_min=-50, v_max=50)
    observation = np.float32([0.1, 0, 0, 0])
    means = agent.return_distribution(observation).mean().numpy()
    np.testing.assert_allclose(means, agent.q_values(observation), atol=1e-4)


@pytest.mark.compiles
def test_a_stored_torso_needs_its_function_no_more(own, tmp_path, uncompiled, monkeypatch):
    agent = rainbow_tf.Agent(own.Corridor, network=own.wide, run_dir=str(tmp_path), **TINY)
    agent.learn(60)
    monkeypatch.delitem(process.given, "own_module:wide")
    monkeypatch.delattr(own, "wide")
    assert_same_policy(agent, rainbow_tf.load(tmp_path, snapshot="latest"), np.zeros(5))


@pytest.mark.compiles
def test_a_run_of_a3c_is_loaded_without_an_environment(tmp_path, uncompiled, monkeypatch):
    agent = rainbow_tf.Agent(
        "CartPole-v1", algorithm="a3c", num_envs=1, run_dir=str(tmp_path), **TINY
    ).learn(60)
    monkeypatch.setattr(gymnasium, "make_vec", None)
    loaded = rainbow_tf.load(tmp_path, snapshot="latest")
    assert loaded.act(np.zeros(4)) in (0, 1)
    for one, other in zip(weights(agent), weights(loaded), strict=True):
        assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Corridor", "Pictures"])
def test_an_own_environment_learns_after_a_kill(own, kind, tmp_path):
    """Killed once, resumed by the same script: the shortest way through the corridor is found."""
    script = tmp_path / "train.py"
    script.write_text(KILLED.format(kind=kind))
    folder = Path(own.__file__).parent
    environ = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, script]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(tmp_path.glob("run/checkpoints/*/manifest.json")):
            time.sleep(0.05)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    second = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert "Resuming from checkpoint" in second.stdout, second.stderr
    loaded = rainbow_tf.load(tmp_path / "run", environment=getattr(own, kind))
    assert loaded.evaluate(episodes=10).mean == -4


@pytest.mark.compiles
def test_an_instance_is_copied(own, tmp_path, uncompiled):
    instance = own.Corridor()
    instance.place = 77
    agent = rainbow_tf.Agent(instance, run_dir=str(tmp_path), **TINY)
    assert agent.config.num_envs == 1
    agent.learn(60)
    agent.evaluate(episodes=2)
    assert instance.place == 77
    with pytest.raises(ConfigError, match="num_envs=4"):
        rainbow_tf.Agent(instance, num_envs=4)
    instance.lock = open(__file__)  # noqa: SIM115
    with instance.lock, pytest.raises(ConfigError, match="cannot be copied"):
        rainbow_tf.Agent(instance).evaluate(episodes=1)
    with pytest.raises(TypeError):
        copy.deepcopy(instance)


def test_frames_are_stacked_until_a_reset(own, tmp_path, uncompiled):
    agent = rainbow_tf.Agent(own.Corridor, frame_stack=3, run_dir=str(tmp_path), **TINY)
    seen = []
    agent.restore()
    decide = agent.policy.decide
    agent.policy.decide = lambda stacks: seen.append(stacks) or decide(stacks)
    one, two, three = np.eye(5)[:3]
    agent.act(one)
    agent.q_values(three)  # does not become part of the episode
    agent.act(two)
    assert_array_equal(seen[-1][0], [np.zeros(5), one, two])
    agent.reset()
    agent.act(np.stack([three, one]))
    assert_array_equal(seen[-1][0], [np.zeros(5), np.zeros(5), three])
    with pytest.raises(ConfigError, match=r"reset\(\)"):
        agent.act(one)
    stacks = np.random.default_rng(1).random((4, 3, 5)).astype(np.float32)
    agent.act(stacks)
    assert_array_equal(seen[-1], stacks)


BAD = [
    (lambda own: rainbow_tf.Agent("Pendulum-v1").act(np.zeros(3)), "Box actions"),
    (lambda own: rainbow_tf.Agent(own.Corridor, learning_rat=1), "did you mean learning_rate"),
    (lambda own: rainbow_tf.Agent(own.Corridor, learning_rate="x"), "--learning_rate=x .* float"),
    (lambda own: rainbow_tf.Agent(own.Corridor, num_envs=None), "--num_envs=None .* int"),
    (lambda own: rainbow_tf.Agent(own.Corridor, preset="cartpol"), "did you mean .*cartpole"),
    (lambda own: rainbow_tf.Agent(own.Corridor, network="naturr"), "--network=naturr is unknown"),
    (lambda own: rainbow_tf.Agent(own.Corridor, network="nowhere:f").act(np.zeros(5)), "nowhere"),
    (lambda own: rainbow_tf.Agent(own.Corridor, network="own_module:f").act(np.zeros(5)), "no fun"),
    (lambda own: rainbow_tf.Agent(own.Corridor, network=own.unflat).network, r"\(2, 5, 1\)"),
    (lambda own: rainbow_tf.Agent(own.Corridor, network=own.coded).network, "Lambda"),
    (lambda own: rainbow_tf.Agent(own.Corridor).act(np.zeros(4)), r"shape \(4,\)"),
    (lambda own: rainbow_tf.Agent(own.Pictures).act(np.zeros((64, 64, 3))), "float64"),
    (lambda own: rainbow_tf.Agent("nowhere:Env-v0").spec, "--environment=nowhere:Env-v0"),
    (
        lambda own: rainbow_tf.Agent(own.Corridor, distributional=False).return_distribution(
            np.zeros(5)
        ),
        "distributional is off",
    ),
    (lambda own: rainbow_tf.Agent(own.Corridor, algorithm="a3c").q_values(np.zeros(5)), "A3C"),
    (lambda own: rainbow_tf.Agent(own.Corridor).learner, r"learn\(\)"),
    (lambda own: rainbow_tf.load("nowhere"), "not a run folder"),
    (lambda own: rainbow_tf.load(".", snapshot="first"), "first"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_one_sentence(own, call, message, tmp_path, monkeypatch, uncompiled):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(rainbow_tf.Config(environment="CartPole-v1").to_json())
    with pytest.raises(ConfigError, match=message) as error:
        call(own)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ValueError)


def test_an_observation_outside_its_space_is_one_sentence(own, tmp_path):
    class Wrong(own.Corridor):
        def observation(self):
            return np.zeros(7, np.float32)

    agent = rainbow_tf.Agent(Wrong, run_dir=str(tmp_path / "run"), **TINY)
    with pytest.raises(ConfigError, match="observation_space"):
        agent.learn(50)
    assert not (tmp_path / "run").exists()


def test_the_import_is_light_and_quiet():
    code = (
        "import sys, time; started = time.perf_counter(); import rainbow_tf;"
        "print(time.perf_counter() - started, 'tensorflow' in sys.modules, 'numpy' in sys.modules);"
        "rainbow_tf.NoisyDense"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    seconds, has_tensorflow, has_numpy = result.stdout.split()
    assert float(seconds) < 0.1
    assert (has_tensorflow, has_numpy) == ("False", "False")
    assert result.stderr == ""


def test_public_names():
    for name in rainbow_tf.__all__:
        assert getattr(rainbow_tf, name).__doc__
        assert name in dir(rainbow_tf)
    with pytest.raises(AttributeError, match="agnet"):
        rainbow_tf.agnet  # noqa: B018
    assert issubclass(rainbow_tf.ConfigError, ValueError)
    assert rainbow_tf.ReturnHead(2, 5)(np.zeros((1, 3), np.float32)).shape == (1, 2, 5)
