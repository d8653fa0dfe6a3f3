"""Python code that a run folder names is not imported unless the user names it too."""

import dataclasses
import importlib
import json
import os
import stat
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from absl import flags
from made_up_runs import write_evaluation, write_run

import rainbow_tf
from rainbow_tf import cli, evaluate, process
from rainbow_tf.agent.networks import make_network
from rainbow_tf.command import run_settings
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.distributed import cluster
from rainbow_tf.report import write_report
from rainbow_tf.runs.folder import MODULES, RunFolder, read_config
from rainbow_tf.runs.store import Best
from rainbow_tf.runs.weights import write_best
from rainbow_tf.types import EnvironmentSpec

SPEC = EnvironmentSpec((4,), np.dtype(np.float32), 1, 2, ("left", "right"))
EVIL = "raise SystemExit('imported')"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A run folder that names a module beside it."""
    process.untrusted.clear()
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = write_run(tmp_path / "run", [1.0], environment="CartPole-v1", protocol="gymnasium")
    write_evaluation(folder, 1.0, protocol="gymnasium")
    return folder


def change(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize("setting", ["environment=evil:CartPole-v1", "network=evil:make"])
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("evaluate", ["--episodes=1"]),
        ("watch", ["--out=film.gif"]),
        ("export", ["--out=model"]),
        ("record_starts", ["--player=policy", "--out=starts.json"]),
    ],
)
def test_commands_refuse_what_a_folder_names(evil, run_command, setting, command, arguments):
    name, _, value = setting.partition("=")
    change(evil, **{name: value})
    ended = run_command(command, f"--run_dir={evil}", *arguments)
    assert ended.status == 1
    assert len(ended.stderr.splitlines()) == 1
    assert f"if you trust it, give --{setting}, or {name}= from Python" in ended.stderr
    ended = run_command(command, f"--run_dir={evil}", f"--{name}=other:make", *arguments)
    assert f"--{name}=other:make is not the run's {value}" in ended.stderr
    assert "evil" not in sys.modules
    assert not [path for path in evil.parent.iterdir() if path.name not in ("evil.py", "run")]


def test_evaluate_takes_what_the_user_names_too(evil, run_command):
    change(evil, environment="evil:CartPole-v1")
    with pytest.raises(SystemExit, match="imported"):
        read_spec(evil)
    ended = run_command("evaluate", f"--runs={evil}", "--parallel=1")
    assert "give --environment=evil:CartPole-v1" in ended.stdout


def read_spec(folder):
    from rainbow_tf.runs.folder import environment_spec

    return environment_spec(read_config(folder, again=["environment"]))


@pytest.mark.parametrize("setting", ["environment=evil:CartPole-v1", "network=evil:make"])
def test_load_refuses_what_a_folder_names(evil, setting):
    name, _, value = setting.partition("=")
    change(evil, **{name: value})
    with pytest.raises(ConfigError, match=f"{name}= from Python"):
        rainbow_tf.load(evil)
    assert "evil" not in sys.modules


@pytest.mark.compiles
def test_a_loaded_agent_acts_without_its_environment_and_asks_for_it_to_evaluate(evil):
    config = dataclasses.replace(read_config(evil), environment="evil:CartPole-v1")
    with RunFolder(config) as folder:
        folder.begin(SPEC)
    network = make_network(config, SPEC, seed=1, name="online")
    write_best(evil, network, Best(1, 1.0, 1, "gymnasium"))
    agent = rainbow_tf.load(evil)
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(ConfigError, match="give --environment=evil:CartPole-v1"):
        agent.evaluate(episodes=1)
    assert "evil" not in sys.modules
    with pytest.raises(SystemExit, match="imported"):
        rainbow_tf.load(evil, environment="evil:CartPole-v1").evaluate(episodes=1)


def test_a_report_imports_nothing(evil, tmp_path, capsys):
    change(evil, environment="evil:CartPole-v1", network="evil:make")
    assert write_report(runs=evil, out=tmp_path / "report").exists()
    assert "evil" not in sys.modules


def test_objects_given_in_this_process_and_stored_torsos_are_trusted(evil, monkeypatch):
    change(evil, environment="evil:Mine", network="evil:make")
    monkeypatch.setitem(process.given, "evil:Mine", lambda: None)
    values = flags.FlagValues()
    evaluate.COMMAND.define_flags(values)
    values(["evaluate"])
    with pytest.raises(ConfigError, match="--network=evil:make"):
        run_settings(values, evil)
    (evil / "torso.keras").touch()
    assert run_settings(values, evil).environment == "evil:Mine"


def test_training_takes_its_modules_from_the_command_line(evil):
    change(evil, environment="evil:CartPole-v1")
    config = read_config(evil, again=MODULES)
    with RunFolder(config) as folder:
        folder.begin(SPEC)
    assert "evil" not in sys.modules


# Ray's token.


@pytest.fixture
def connect(tmp_path, monkeypatch):
    """A function that connects to a stand-in for Ray; returns the token's mode and content."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv(cluster._LOOPBACK, "")
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / ".ray/auth_token"

    def use(address=None):
        seen = []

        def init(**options):
            seen.append((stat.S_IMODE(path.stat().st_mode), path.read_text()))

        ray = SimpleNamespace(is_initialized=lambda: False, init=init)
        monkeypatch.setattr(cluster, "import_ray", lambda wanted_by: ray)
        cluster.connect(address, wanted_by="A sweep", object_bytes=0)
        return seen[0]

    return use


def test_the_token_of_ray_is_private_before_ray_starts(connect, tmp_path):
    umask = os.umask(0)
    try:
        mode, token = connect()
    finally:
        os.umask(umask)
    assert (mode, len(token)) == (0o600, 64)
    assert stat.S_IMODE((tmp_path / ".ray").stat().st_mode) == 0o700
    assert connect() == (mode, token)


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_token_that_all_can_read_is_mended(connect, tmp_path, address):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("mine")
    (tmp_path / ".ray/auth_token").chmod(0o644)
    assert connect(address) == (0o600, "mine")


# Bounds.


@pytest.mark.parametrize("name", [name for name in cli.COMMANDS if name not in ("play", "check")])
def test_numbers_on_the_command_line_have_a_largest_value(name):
    command = importlib.import_module(cli.COMMANDS[name][0]).COMMAND
    for option, flag in command.options.items():
        kind = flag.kind if flag.default is None else type(flag.default)
        is_free = option == "checkpoint"  # a number that is not there is refused by the store
        assert kind not in (int, float) or flag.maximum is not None or is_free, option


def test_what_a_file_says_cannot_drive_the_terminal(evil, run_command):
    change(evil, environment="a\x1b[2J")
    ended = run_command("evaluate", f"--run_dir={evil}")
    assert "\x1b" not in ended.stderr
    change(evil, environment="CartPole-v1", **{"\x1b]0;": 1})
    ended = run_command("evaluate", f"--run_dir={evil}")
    assert "?]0; is not a setting" in ended.stderr


def test_evaluations_are_not_written_through_a_link(evil, run_command, tmp_path):
    (tmp_path / "outside").mkdir()
    (evil / "evaluations").rename(tmp_path / "aside")
    (evil / "evaluations").symlink_to(tmp_path / "outside")
    ended = run_command("evaluate", f"--run_dir={evil}")
    assert "leads out of" in ended.stderr
    assert not list((tmp_path / "outside").iterdir())


def test_settings_have_a_largest_value():
    for name, field in Config.__dataclass_fields__.items():
        if any(kind in str(field.type) for kind in ("int", "float")):
            assert field.metadata["maximum"] is not None, name
            for value in (2**63, 1e308, float("inf"), float("nan")):
                with pytest.raises(ConfigError, match=f"--{name}="):
                    Config(**{"game": "pong", name: value})
