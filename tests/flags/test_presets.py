"""Presets: found by name, as their papers say, each ablation without its part and no other."""

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf.agent import networks
from rainbow_tf.agent.networks import make_network
from rainbow_tf.command import define_settings
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.replay import replay as replay_module
from rainbow_tf.runs import weights
from rainbow_tf.training import build as parts_module
from rainbow_tf.training.loop import exploration
from rainbow_tf.types import EnvironmentSpec

ATARI = EnvironmentSpec((84, 84), np.dtype(np.uint8), 4, 3, ("NOOP", "LEFT", "RIGHT"))
NO_PARTS = {
    "double": False,
    "prioritized": False,
    "dueling": False,
    "distributional": False,
    "noisy": False,
    "n_step": 1,
}
DQN_OPTIMIZER = {
    "optimizer": "rmsprop",
    "learning_rate": 0.00025,
    "rmsprop_decay": 0.95,
    "rmsprop_epsilon": 0.01 / 32**2,  # of a mean, where DQN has 0.01 of a sum
    "rmsprop_centered": True,
}
# Typed from the papers. What is not named here must be as in full Rainbow.
DQN = {
    **NO_PARTS,
    **DQN_OPTIMIZER,
    "min_history_frames": 200_000,
    "target_period_frames": 40_000,
    "epsilon_start": 1.0,
    "epsilon_end": 0.1,
    "epsilon_decay_frames": 4_000_000,
    "eval_epsilon": 0.05,
}
DDQN = {
    **DQN,
    "double": True,
    "target_period_frames": 120_000,
    "epsilon_end": 0.01,
    "eval_epsilon": 0.01,
}
EXPECTED = {
    "rainbow": {},
    "apex": {
        "actors": 4,
        "batch_size": 512,
        "priority_exponent": 0.6,
        "min_history_frames": 200_000,
        "replay_capacity": 2_000_000,
        "max_grad_norm": 40.0,
        "updates_per_step": 0.00152,
        "target_period_frames": 6_600_000,
        "epsilon_ladder": 0.4,
    },
    "ablations/no_double": {"double": False},
    "ablations/no_priority": {"prioritized": False},
    "ablations/no_dueling": {"dueling": False},
    "ablations/no_multi_step": {"n_step": 1},
    "ablations/no_distributional": {"distributional": False},
    "ablations/no_noisy": {
        "noisy": False,
        "epsilon_start": 1.0,
        "epsilon_end": 0.01,
        "epsilon_decay_frames": 250_000,
    },
    "baselines/dqn": DQN,
    "baselines/ddqn": DDQN,
    "baselines/prioritized_ddqn": {
        **DDQN,
        "prioritized": True,
        "priority_exponent": 0.6,
        "importance_exponent": 0.4,
        "learning_rate": 0.00025 / 4,
    },
    "baselines/dueling_ddqn": {
        **DDQN,
        "dueling": True,
        "max_grad_norm": 10.0,
        "learning_rate": 0.00025 / 4,
    },
    "baselines/distributional_dqn": {
        **DQN,
        "distributional": True,
        "optimizer": "adam",
        "learning_rate": 0.00025,
        "adam_epsilon": 0.01 / 32,
        "num_atoms": 51,
        "v_min": -10.0,
        "v_max": 10.0,
        "epsilon_end": 0.01,
        "eval_epsilon": 0.001,
    },
    "baselines/noisy_dqn": {
        **NO_PARTS,
        **DQN_OPTIMIZER,
        "noisy": True,
        "noisy_sigma": 0.5,
        "min_history_frames": 200_000,
        "target_period_frames": 40_000,
    },
    "baselines/a3c": {
        "algorithm": "a3c",
        "num_envs": 16,
        "n_step": 5,
        "entropy_cost": 0.01,
        "discount": 0.99,
        "optimizer": "rmsprop",
        "learning_rate": 0.0007,
        "rmsprop_decay": 0.99,
        "rmsprop_epsilon": 0.1,
        "rmsprop_centered": False,
        "max_grad_norm": 40.0,
    },
    "atari100k": {
        "frames": 400_000,
        "n_step": 20,
        "updates_per_step": 1.0,
        "network": "data_efficient",
        "noisy_sigma": 0.5,
        "learning_rate": 0.0001,
        "adam_epsilon": 0.00015,
        "discount": 0.99,
        "min_history_frames": 6_400,
        "target_period_frames": 8_000,
        "max_grad_norm": 10.0,
        "replay_capacity": 110_000,
        "num_envs": 1,
        "eval_period_frames": 100_000,
        "eval_frames": 50_000,
        "log_period_frames": 4_000,
        "checkpoint_period_frames": 100_000,
    },
    "sticky": {"protocol": "sticky"},
    "iqn": {
        **DQN,
        "distributional": True,
        "returns": "quantile",
        "optimizer": "adam",
        "learning_rate": 0.00005,
        "adam_epsilon": 0.01 / 32,
        "epsilon_end": 0.01,
        "eval_epsilon": 0.001,
    },
    "beyond": {
        "protocol": "sticky",
        "double": False,
        "returns": "quantile",
        "munchausen": True,
        "network": "impala",
        "network_width": 2,
        "spectral_norm": True,
        "discount": 0.997,
        "n_step": 3,
        "batch_size": 256,
        "learning_rate": 0.0001,
        "adam_epsilon": 0.005 / 256,
        "max_grad_norm": 10.0,
        "num_envs": 64,
        "updates_per_step": 1 / 64,
        "target_period_frames": 500 * 64 * 4,
        "min_history_frames": 200_000 * 4,
        "replay_capacity": 2**20,
        "priority_exponent": 0.2,
        "epsilon_start": 1.0,
        "epsilon_end": 0.01,
        "epsilon_decay_frames": 2_000_000 * 4,
        "noisy_epsilon_frames": 100_000_000,
    },
    "drq_eps": {
        "frames": 400_000,
        "prioritized": False,
        "distributional": False,
        "noisy": False,
        "n_step": 10,
        "augmentation": "shift",
        "updates_per_step": 1.0,
        "learning_rate": 0.0001,
        "adam_epsilon": 0.00015,
        "min_history_frames": 1_600 * 4,
        "target_period_frames": 4,
        "epsilon_end": 0.01,
        "epsilon_decay_frames": 5_000 * 4,
        "eval_epsilon": 0.001,
        "replay_capacity": 110_000,
        "num_envs": 1,
        "eval_period_frames": 100_000,
        "eval_frames": 50_000,
        "log_period_frames": 4_000,
        "checkpoint_period_frames": 100_000,
    },
}
ABLATIONS = [name for name in EXPECTED if name.startswith("ablations/")]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_field_of_a_preset(preset, name):
    expected = dataclasses.asdict(Config(game="qbert", **EXPECTED[name]))
    assert dataclasses.asdict(preset(name, "--game=qbert")) == expected


def test_the_table_and_the_environments_are_all_presets():
    assert set(presets.names()) == {*EXPECTED, "cartpole", "minatar"}


@pytest.mark.parametrize("name", presets.names())
def test_presets_hold_only_what_differs_and_begin_with_a_sentence(name):
    values = flags.FlagValues()
    define_settings(values)
    defaults = {flag: values[flag].value for flag in values}
    lines = presets.path(name).read_text().splitlines()
    settings = [line for line in lines if line.startswith("--")]
    values(["train", *settings])
    given = {re.match(r"--(\w+)", line)[1] for line in settings}
    changed = [flag for flag in values if values[flag].value != defaults[flag]]
    assert len(given) == len(settings) == len(changed)
    assert re.fullmatch(r"# [A-Z].*\.", lines[0])
    assert presets.sentence(name) == lines[0][2:]


def test_presets_are_named_as_their_agents(preset):
    for name in ("rainbow", *ABLATIONS, *presets.names("baselines/*")):
        assert preset(name, "--game=qbert").agent == Path(name).name
    assert preset("atari100k", "--game=qbert").agent == "n20_data_efficient"
    assert preset("iqn", "--game=qbert").agent == "iqn"
    assert preset("beyond", "--game=qbert").agent == "beyond_impala"
    assert preset("drq_eps", "--game=qbert").agent == "drq_eps_n10"


def test_an_ablation_changes_the_network_of_its_part_only(preset):
    def shapes(config):
        network = make_network(config, ATARI, seed=1, name="online")
        # Keras numbers the layers of all networks through.
        return sorted(
            (re.sub(r"_\d+", "", v.path), tuple(v.shape)) for v in network.trainable_variables
        )

    rainbow = preset("rainbow", "--game=qbert")
    same = shapes(rainbow)
    assert len(same) == 3 * 2 + 4 * 4  # convolutions; mu and sigma of four dense layers
    for name in ABLATIONS:
        config = preset(name, "--game=qbert")
        has_same_network = shapes(config) == same
        other_network = ("no_dueling", "no_distributional", "no_noisy")
        assert has_same_network == (config.agent not in other_network), name
    no_noisy = [path for path, _ in shapes(preset("ablations/no_noisy", "--game=qbert"))]
    assert [path for path, _ in same if "sigma" not in path] == no_noisy
    no_dueling = shapes(preset("ablations/no_dueling", "--game=qbert"))
    assert no_dueling == [variable for variable in same if "value" not in variable[0]]
    no_distributional = shapes(preset("ablations/no_distributional", "--game=qbert"))
    assert [(path, shape) for path, shape in same if "hidden" in path or "conv" in path] == [
        (path, shape) for path, shape in no_distributional if "hidden" in path or "conv" in path
    ]
    assert {shape[-1] for path, shape in no_distributional if "advantage/" in path} == {3}


@pytest.fixture
def built(monkeypatch):
    """A function that gives the plain values which the parts of a run are built with."""
    given = {}

    def note(module, name):
        original = getattr(module, name)

        def build(*args, **kwargs):
            plain = (bool, int, float, str, type(None))
            arguments = inspect.signature(original).bind(*args, **kwargs).arguments
            for key, value in {**arguments, **arguments.get("kwargs", {})}.items():
                if isinstance(value, plain):
                    given.setdefault(f"{name}.{key}", []).append(value)
                elif isinstance(value, np.ndarray):
                    given.setdefault(f"{name}.{key}", []).append(value.tolist())
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, build)

    note(parts_module, "Learner")
    note(weights, "Actor")
    note(replay_module, "Replay")
    for name in ("dense", "ReturnHead"):
        note(networks, name)

    def build(config):
        given.clear()
        parts_module.build_parts(config).environment.close()
        early, late = exploration(config, 0), exploration(config, 10**9)
        return {**given, "early exploration": early, "late exploration": late}

    return build


@pytest.mark.compiles
def test_an_ablation_changes_its_part_and_nothing_else(preset, built):
    tiny = ("--environment=CartPole-v1", "--replay_capacity=1000")
    rainbow = built(preset("rainbow", *tiny))
    changes = {}
    for name in ABLATIONS:
        ablation = built(preset(name, *tiny))
        assert ablation.keys() == rainbow.keys()
        changes[name] = {key for key in rainbow if ablation[key] != rainbow[key]}
    assert changes == {
        "ablations/no_double": {"Learner.double"},
        "ablations/no_priority": {"Replay.prioritized"},
        "ablations/no_dueling": {"ReturnHead.dueling"},
        "ablations/no_multi_step": {"Replay.n_step"},
        "ablations/no_distributional": {
            "ReturnHead.num_atoms",
            "Learner.support",
            "Learner.priority",
            "Actor.support",
        },
        "ablations/no_noisy": {
            "dense.noisy",
            "ReturnHead.noisy",
            "Actor.noise",
            "early exploration",
            "late exploration",
        },
    }


def test_later_presets_win_and_flags_win_over_all():
    arguments = ["train", "--seed=4", "--preset=baselines/dqn", "--preset", "minatar", "--nonoisy"]
    values = flags.FlagValues()
    define_settings(values)
    values(presets.expand(arguments))
    assert values.target_period_frames == 1_000  # MinAtar's, not DQN's 40,000
    assert values.epsilon_end == 0.1  # DQN's: MinAtar has none
    assert values.seed == 4
    values = flags.FlagValues()
    define_settings(values)
    values(presets.expand(["train", "--target_period_frames=7", *arguments[2:]]))
    assert values.target_period_frames == 7


def test_what_follows_two_dashes_is_not_a_preset():
    assert presets.expand(["train", "--", "--preset=x"]) == ["train", "--", "--preset=x"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("dqn", "--preset=baselines/dqn?"), ("minatr", "--preset=minatar?"), ("", "known: ablations")],
)
def test_an_unknown_preset_is_named_with_the_way_out(name, hint):
    with pytest.raises(ConfigError, match=re.escape(hint)):
        presets.path(name)


def test_presets_are_found_from_any_folder(run_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = run_command("train", "--list_presets")
    assert listed.status == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == presets.names()
    assert all(line.endswith(".") for line in listed.stdout.splitlines())
    refused = run_command("train", "--preset=ablations/no_duble", "--game=qbert")
    assert refused == (
        1,
        "",
        "rainbow_tf: --preset=ablations/no_duble is not a preset; "
        "did you mean --preset=ablations/no_double?\n",
    )
    # The preset is read: --game alone would be accepted.
    refused = run_command("train", "--preset=cartpole", "--game=qbert")
    assert "--game=qbert and --environment=CartPole-v1 exclude each other" in refused.stderr


def test_a_preset_in_a_flagfile_is_refused(run_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.cfg").write_text("--preset=minatar\n")
    refused = run_command("train", "--flagfile=mine.cfg")
    assert refused.status == 1
    assert "--preset is in a flagfile" in refused.stderr


def test_cartpole_support_spans_its_returns(preset):
    config = preset("cartpole")
    # A reward of 1 a step: returns lie between 0 and 1 / (1 - discount).
    assert config.v_min == 0
    assert config.v_max == pytest.approx(1 / (1 - config.discount))


def test_environments_are_settings_that_a_run_can_take(preset):
    config = preset("minatar", "--environment=MinAtar/Asterix-v1", "--seed=4")
    assert config.environment == "MinAtar/Asterix-v1"
    assert config.folder == Path("runs/minatar_asterix_v1/rainbow/seed_4")
