import dataclasses
import json

import numpy as np
import pytest

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.runs.folder import RunFolder, check_folder, check_settings, resumes
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.types import EnvironmentSpec

SPEC = EnvironmentSpec((84, 84), np.dtype(np.uint8), 4, 6, ("NOOP",) * 6)


def settings(folder, **changes):
    return Config(game="qbert", run_dir=str(folder), **changes)


def test_a_new_folder(tmp_path):
    config = settings(tmp_path / "run")
    check_folder(config)
    assert not resumes(config)
    assert not list(tmp_path.iterdir()), "a check touches nothing"
    RunFolder(config).begin(SPEC)
    assert resumes(config)
    assert Config.from_dict(json.loads((tmp_path / "run" / "config.json").read_text())) == config


def test_settings_that_may_change_are_taken(tmp_path, capsys):
    RunFolder(settings(tmp_path)).begin(SPEC)
    changed = settings(tmp_path, frames=5_000, eval_frames=9, log_period_frames=7, threads=1)
    check_folder(changed)
    RunFolder(changed).begin(SPEC)
    said = capsys.readouterr().out
    assert "Changed on resume: --frames=5000 (was 200000000)." in said
    assert len(said.splitlines()) == 4
    assert Config.from_dict(json.loads((tmp_path / "config.json").read_text())) == changed


def test_settings_that_may_not_change_are_all_named(tmp_path):
    RunFolder(settings(tmp_path)).begin(SPEC)
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(ConfigError) as caught:
        check_folder(settings(tmp_path, n_step=1, num_envs=8, frames=10))
    message = str(caught.value)
    for part in ("--n_step=3", "--n_step=1", "--num_envs=4", "--num_envs=8", "--restart"):
        assert part in message
    assert "--frames" not in message
    assert (tmp_path / "config.json").read_text() == before


def test_only_these_settings_may_change():
    assert {field.name for field in dataclasses.fields(Config) if field.metadata["may_change"]} == {
        "frames",
        "replay_compression",
        "address",
        "replay_shards",
        "eval_period_frames",
        "eval_frames",
        "eval_noise",
        "eval_epsilon",
        "run_dir",
        "restart",
        "export_dir",
        "wandb",
        "threads",
        "checkpoint_period_frames",
        "max_checkpoints",
        "log_period_frames",
        "record_period_frames",
    }


def test_the_settings_of_the_checkpoint_count_too(tmp_path):
    config = settings(tmp_path)
    RunFolder(config).begin(SPEC)
    other = dataclasses.asdict(dataclasses.replace(config, n_step=5))
    store = CheckpointStore(tmp_path / CHECKPOINTS)
    store.write(state={"config": other}, new={}, old={})
    with pytest.raises(ConfigError, match="--n_step=5"):
        RunFolder(config).find_checkpoint()


def test_a_folder_without_a_name_cannot_be_moved_aside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--run_dir"):
        check_folder(settings(".", restart=True))


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(Config) if not f.metadata["may_change"]]
)
def test_what_shapes_the_agent_or_the_environment_may_not_change(name):
    old = Config(game="qbert")
    value = getattr(old, name)
    other = {
        "game": "pong",
        "environment": None,
        "protocol": "sticky",
        "algorithm": "a3c",
        "network": "data_efficient",
        "optimizer": "rmsprop",
        "max_grad_norm": 10.0,
        "priority": "ce",
        "returns": "quantile",
        "augmentation": "shift",
        "replay_capacity": 500_000,
        "epsilon_ladder": 0.4,
    }
    if name == "environment":
        new = Config(environment="CartPole-v1")
    elif isinstance(value, bool):
        new = dataclasses.replace(old, **{name: not value})
    elif name in other:
        new = dataclasses.replace(old, **{name: other[name]})
    else:
        new = dataclasses.replace(
            old, **{name: value / 2 if isinstance(value, float) else value + 1}
        )
    if name == "epsilon_end":
        assert new.epsilon_end == 0.005
    with pytest.raises(ConfigError, match=f"--{name}="):
        check_settings(old, new)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"game": "qbertt"}', '{"unknown": 1}'])
def test_settings_that_cannot_be_read(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"no settings that this version reads .*--restart"):
        check_folder(settings(tmp_path))
    assert (tmp_path / "config.json").read_text() == text


def test_two_in_one_folder(tmp_path):
    first, second = RunFolder(settings(tmp_path)), RunFolder(settings(tmp_path))
    first.lock()
    with pytest.raises(ConfigError, match=f"Another process trains in {tmp_path}"):
        second.lock()
    with pytest.raises(ConfigError, match="Another process"):
        RunFolder(settings(tmp_path, restart=True)).begin(SPEC)


def test_a_run_that_another_process_began_meanwhile_is_not_touched(tmp_path):
    late = RunFolder(settings(tmp_path))
    other = RunFolder(settings(tmp_path, frames=7))
    other.begin(SPEC)
    other._lock.release()  # as at its end
    with pytest.raises(ConfigError, match="Another process started a run"):
        late.begin(SPEC)
    assert Config.from_dict(json.loads((tmp_path / "config.json").read_text())).frames == 7


def test_restart_moves_the_run_aside_and_locks_the_new_folder(tmp_path, capsys):
    path = tmp_path / "run"
    RunFolder(settings(path)).begin(SPEC)
    (path / "train.csv").write_text("old")
    folder = RunFolder(settings(path, restart=True))
    folder.begin(SPEC)
    aside = next(other for other in tmp_path.iterdir() if other != path)
    assert (aside / "train.csv").read_text() == "old"
    assert not (path / "train.csv").exists()
    assert str(aside) in capsys.readouterr().out
    with pytest.raises(ConfigError, match="Another process"):
        RunFolder(settings(path)).lock()
