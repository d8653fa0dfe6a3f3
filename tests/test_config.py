import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

import rainbow_tf
from rainbow_tf.command import define_settings, settings
from rainbow_tf.config import Config, ConfigError

PACKAGE = Path(rainbow_tf.__file__).parent

# Typed from the paper: its table of hyper-parameters, the text around it, and for what it takes
# over from DQN, Mnih et al. 2015.
PAPER = {
    "min_history_frames": 80_000,
    "learning_rate": 0.0000625,
    "algorithm": "rainbow",
    "optimizer": "adam",
    "adam_epsilon": 1.5e-4,
    "max_grad_norm": None,
    "priority_measure": "kl",
    "noisy_sigma": 0.5,
    "target_period_frames": 32_000,
    "priority_exponent": 0.5,
    "importance_exponent": 0.4,
    "n_step": 3,
    "num_atoms": 51,
    "v_min": -10.0,
    "v_max": 10.0,
    "discount": 0.99,
    "replay_capacity": 1_000_000,
    "updates_per_step": 1 / 4,
    "batch_size": 32,
    "frames": 200_000_000,
    "frame_stack": 4,
    "action_repeat": 4,
    "clip_rewards": True,
    "max_episode_frames": 108_000,
    "noop_max": 30,
    "epsilon_start": 1.0,
    "epsilon_end": 0.01,
    "epsilon_decay_frames": 250_000,
    "eval_period_frames": 1_000_000,
    "eval_frames": 500_000,
    "double": True,
    "prioritized": True,
    "dueling": True,
    "distributional": True,
    "noisy": True,
}


def test_defaults_are_the_papers():
    config = Config(game="qbert")
    assert {name: getattr(config, name) for name in PAPER} == PAPER
    assert config.terminal_on_life_loss
    assert config.sticky_action_probability == 0


def test_frames_are_not_agent_steps():
    config = Config(game="qbert")
    assert config.steps(config.min_history_frames) == 20_000
    assert config.steps(config.target_period_frames) == 8_000
    assert config.steps(config.max_episode_frames) == 27_000
    assert config.steps(5) == 2
    assert Config(environment="CartPole-v1").steps(80_000) == 80_000


def test_sticky_protocol_sets_both_rules():
    config = Config(game="qbert", protocol="sticky")
    assert config.sticky_action_probability == 0.25
    assert not config.terminal_on_life_loss


def test_small_networks_take_one_thread():
    assert Config(game="qbert").tensorflow_threads is None
    assert Config(environment="CartPole-v1").tensorflow_threads == 1
    assert Config(environment="CartPole-v1", threads=2).tensorflow_threads == 2
    assert Config(game="qbert", threads=2).tensorflow_threads == 2


def test_zero_is_a_value():
    assert Config(game="qbert", v_min=0.0).v_min == 0
    assert Config(game="qbert", seed=0).folder == Path("runs/qbert/rainbow/seed_0")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "rainbow"),
        ({"double": False}, "no_double"),
        ({"n_step": 1}, "no_multi_step"),
        ({"n_step": 5}, "n5"),
        ({"n_step": 20, "network": "data_efficient"}, "n20_data_efficient"),
        ({"algorithm": "a3c", "n_step": 5}, "a3c"),
        ({"noisy": False, "dueling": False}, "no_dueling_no_noisy"),
        (
            {
                "double": False,
                "prioritized": False,
                "dueling": False,
                "distributional": False,
                "noisy": False,
                "n_step": 1,
            },
            "dqn",
        ),
        ({"returns": "quantile"}, "quantile"),
        ({"munchausen": True, "double": False}, "no_double_munchausen"),
        ({"augmentation": "shift", "network": "impala"}, "shift_impala"),
    ],
)
def test_agent_names(settings, name):
    assert Config(game="qbert", **settings).agent == name


def test_environment_names_fit_folders():
    assert Config(environment="MinAtar/Breakout-v1").environment_name == "minatar_breakout_v1"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"game": "qbertt"}, ["--game=qbertt", "--game=qbert?"]),
        ({"game": "zzzzzz"}, ["--game=zzzzzz", "zaxxon"]),
        ({"game": "qbert", "environment": "CartPole-v1"}, ["--game", "--environment"]),
        ({}, ["--game", "--environment"]),
        ({"game": "qbert", "n_step": 0}, ["--n_step=0", "at least 1"]),
        ({"game": "qbert", "v_min": 10.0, "v_max": -10.0}, ["--v_min=10", "--v_max=-10"]),
        ({"game": "qbert", "v_min": 1.0, "v_max": 1.0}, ["--v_min=1", "--v_max=1"]),
        ({"game": "qbert", "discount": 1.5}, ["--discount=1.5", "at most 1"]),
        ({"game": "qbert", "discount": float("nan")}, ["--discount=nan"]),
        ({"game": "qbert", "learning_rate": 0.0}, ["--learning_rate=0.0", "above 0"]),
        ({"game": "qbert", "protocol": "mine"}, ["--protocol=mine", "paper, sticky"]),
        (
            {"game": "qbert", "distributional": False, "priority": "kl"},
            ["--priority=kl", "--priority=td"],
        ),
        (
            {"game": "qbert", "returns": "quantile", "priority": "ce"},
            ["--priority=ce", "--returns=quantile", "--priority=td"],
        ),
        (
            {"game": "qbert", "returns": "quantile", "distributional": False},
            ["--returns=quantile", "--nodistributional"],
        ),
        ({"game": "qbert", "algorithm": "a3c", "munchausen": True}, ["--munchausen", "a3c"]),
        ({"game": "qbert", "max_grad_norm": 0.0}, ["--max_grad_norm=0.0", "above 0"]),
        ({"game": "qbert", "replay_capacity": 10}, ["--replay_capacity=10", "28"]),
    ],
)
def test_bad_settings_are_refused_by_name(settings, named):
    with pytest.raises(ConfigError) as refusal:
        Config(**settings)
    for part in named:
        assert part in str(refusal.value)


def test_json_round_trip():
    config = Config(game="qbert", seed=7, double=False)
    assert Config.from_dict(json.loads(config.to_json())) == config


def settings_read(folder: Path) -> set[str]:
    """Names x that some code reads as config.x, self.config.x or, in the Config, self.x."""
    names = set()
    for path in folder.rglob("*.py"):
        owners = {"config", "self.config", "self._config"}
        owners |= {"self"} if path.name == "config.py" else set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners:
                names.add(node.attr)
    return names


def test_every_setting_is_read_and_explained():
    read = settings_read(PACKAGE)
    for field in dataclasses.fields(Config):
        assert field.name in read, f"nothing reads {field.name}"
        help_text = field.metadata["help"]
        assert len(help_text) > 15, field.name
        assert help_text.endswith("."), field.name


def test_one_flag_per_setting_parses_to_the_same_config():
    values = flags.FlagValues()
    define_settings(values)
    values(["x", "--game=pong", "--nodouble", "--frames=1_000_000", "--v_min=0"])
    expected = Config(game="pong", double=False, frames=1_000_000, v_min=0.0)
    assert settings(values) == expected


def test_settings_that_were_removed_are_ignored_in_old_folders():
    old = {**dataclasses.asdict(Config(game="pong")), "pipeline": False, "replay_ratio": None}
    assert Config.from_dict(json.loads(json.dumps(old))) == Config(game="pong")


def test_settings_do_not_load_tensorflow():
    code = "import sys, rainbow_tf.main; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
