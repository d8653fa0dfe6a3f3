"""How commands begin and end: flags that cannot be used, and Ctrl-C at any moment."""

import importlib
import json
import os
import subprocess
import sys

import pytest
from absl import flags

from rainbow_tf import api, cli
from rainbow_tf.command import SMALL, parse_settings, wanted_snapshot
from rainbow_tf.config import Config
from rainbow_tf.runs.store import Best

# Every command that loads TensorFlow, and flags with which it gets that far.
COMMANDS = {
    "train": ["--environment=CartPole-v1", "--run_dir={folder}/new"],
    "evaluate": ["--run_dir={folder}/run"],
    "watch": ["--run_dir={folder}/run", "--out={folder}/x.gif"],
    "export": ["--run_dir={folder}/run", "--out={folder}/model"],
    "play": ["--model_dir={folder}/served"],
    "benchmark": ["--only=learner"],
    "record_starts": [
        "--run_dir={folder}/qbert",
        "--player=policy",
        "--out={folder}/starts.json",
    ],
}


def run_python(*arguments, modules=None, **environment):
    """Runs Python in a process of its own, with these modules before all others."""
    path = os.pathsep.join(filter(None, [modules and str(modules), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the commands above read, and a Keras at whose import a Ctrl-C comes."""
    folder = tmp_path_factory.mktemp("commands")
    for name, config in {
        "run": Config(environment="CartPole-v1"),
        "qbert": Config(game="qbert"),
    }.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(config.to_json())
    (folder / "served" / "1").mkdir(parents=True)
    (folder / "served" / "1" / "saved_model.pb").write_text("")
    (folder / "modules").mkdir()
    (folder / "modules" / "keras.py").write_text(
        "import os, signal\n"
        "os.write(2, b'a note of TensorFlow')\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    for name in ("tensorflow", "tensorflow_probability"):
        (folder / "modules" / f"{name}.py").write_text(
            "import sys, unittest.mock\nsys.modules[__name__] = unittest.mock.MagicMock()\n"
        )
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_while_tensorflow_loads_is_one_sentence(
    run_command, folder, monkeypatch, name
):
    def interrupted(threads=None):
        raise KeyboardInterrupt

    module = api if name == "train" else importlib.import_module(cli.COMMANDS[name][0])
    monkeypatch.setattr(module, "load_tensorflow", interrupted)
    result = run_command(name, *(argument.format(folder=folder) for argument in COMMANDS[name]))
    assert result.status == 130
    lines = [line for line in result.stderr.splitlines() if line and "0%|" not in line]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("rainbow_tf: interrupted")


def test_an_interrupt_of_tensorflows_import_is_one_sentence(folder):
    command = ("-m", "rainbow_tf.evaluate", f"--run_dir={folder}/run")
    result = run_python(*command, modules=folder / "modules")
    assert result.returncode == 130
    assert result.stderr == "rainbow_tf: interrupted; nothing was written.\n"


def test_defaults_outside_atari_are_small_unless_they_are_given():
    assert parse_settings(["--game=pong"]).replay_capacity == 1_000_000
    own = parse_settings(["--environment=CartPole-v1", "--eval_frames=7"], log_period_frames=9)
    assert {name: getattr(own, name) for name in SMALL} == SMALL | {
        "eval_frames": 7,
        "log_period_frames": 9,
    }
    preset = parse_settings(["--preset=minatar"])
    assert (preset.replay_capacity, preset.min_history_frames) == (100_000, 2_000)


def test_help_begins_with_the_flags_met_first(run_command):
    result = run_command("train", "--help")
    assert result.status == 0
    lines = result.stdout.splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings[:3] == ["Start here:", "This command:", "The environment:"]
    assert lines[3].startswith("  --game: ")
    assert sum(line.startswith("  --seed:") for line in lines) == 1
    assert "(default: 80000; 1000 outside Atari)" in " ".join(result.stdout.split())


def test_a_sweep_names_its_flag_for_environments(run_command):
    result = run_command("sweep", "--environments=CartPole-v1")
    assert (result.status, result.stdout) == (1, "")
    assert "give --games" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "has_best", "snapshot"),
    [
        ([], True, "best"),
        ([], False, "latest"),
        (["--snapshot=best"], False, "best"),  # refused later, with a sentence
        (["--snapshot=latest"], True, "latest"),
        (["--checkpoint=3"], True, 3),
    ],
)
def test_without_best_weights_the_latest_are_taken(tmp_path, capsys, arguments, has_best, snapshot):
    if has_best:
        (tmp_path / "best").mkdir()
        score = Best(7, 1.0, 1, "gymnasium")._asdict()
        (tmp_path / "best/score.json").write_text(json.dumps(score))
    values = flags.FlagValues()
    importlib.import_module(cli.COMMANDS["watch"][0]).COMMAND.define_flags(values)
    values(["x", *arguments])
    config = Config(environment="CartPole-v1", run_dir=str(tmp_path))
    assert wanted_snapshot(values, config) == snapshot
    assert ("using the latest" in capsys.readouterr().out) == (not arguments and not has_best)


FLAGS = [
    ("--gaem=qbert", "--gaem is not a flag; did you mean --game?"),
    ("--zzzzz=1", "--zzzzz is not a flag; --help lists them."),
    ("--seed=abc", "--seed=abc cannot be used; it must be an integer."),
    ("--discount=x:y", "--discount=x:y cannot be used; it must be a number."),
    ("--protocol=old", "--protocol=old cannot be used; it must be paper or sticky."),
    ("--double=maybe", "--double=maybe cannot be used; it must be true or false."),
    ("--nodouble=3", "--nodouble=3 does not take an argument; --help lists the flags."),
    ("--seed", "Missing value for flag --seed; --help lists the flags."),
]


@pytest.mark.parametrize(("flag", "sentence"), FLAGS)
def test_a_flag_that_cannot_be_used_is_one_sentence(run_command, flag, sentence):
    assert run_command("train", flag) == (1, "", f"rainbow_tf: {sentence}\n")


TYPO_AND_HELP = """
import importlib, sys
from rainbow_tf import cli
for name, (module, _) in cli.COMMANDS.items():
    command = importlib.import_module(module).COMMAND
    command.main([name, "--helpfull"])
    try:
        command.main([name, "--no_such_thing=1"])
    except SystemExit as end:
        print(end, file=sys.stderr)
assert "tensorflow" not in sys.modules
"""


def test_a_typo_and_help_are_answered_without_tensorflow():
    result = run_python("-c", TYPO_AND_HELP)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == len(cli.COMMANDS)
    assert all(line.startswith("rainbow_tf: --no_such_thing is not a flag") for line in lines)
    assert result.stdout.count("python -m rainbow_tf") >= len(cli.COMMANDS)
