"""The command rainbow-tf: a thin and quick way to the modules."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import rainbow_tf
from rainbow_tf import cli

COMMANDS = {
    "train": "rainbow_tf.main",
    "sweep": "rainbow_tf.sweep",
    "evaluate": "rainbow_tf.evaluate",
    "watch": "rainbow_tf.watch",
    "report": "rainbow_tf.report",
    "record_starts": "rainbow_tf.record_starts",
    "export": "rainbow_tf.export",
    "check": "rainbow_tf.export.check",
    "serve": "rainbow_tf.export.serve",
    "load": "rainbow_tf.export.load",
    "play": "rainbow_tf.export.play",
    "benchmark": "rainbow_tf.benchmark",
}


def run(*arguments, **kwargs):
    return subprocess.run(
        [Path(sys.executable).with_name("rainbow-tf"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        **kwargs,
    )


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rainbow-tf", *arguments])
    cli.main()
    printed = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in printed


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trian", "did you mean train?"),
        ("whatch", "did you mean watch?"),
        ("x", "there are train,"),
    ],
)
def test_a_typo_is_one_sentence(name, hint, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rainbow-tf", name])
    with pytest.raises(SystemExit, match=rf"rainbow_tf: '{name}' is not a command; {hint}"):
        cli.main()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_its_module_with_its_flags(name, monkeypatch):
    # `python -m package` runs `package.__main__`.
    module = COMMANDS[name] + (".__main__" if name == "export" else "")
    command = importlib.import_module(module).COMMAND
    given = []
    monkeypatch.setattr(type(command), "main", lambda self, found: given.append((self, found)))
    monkeypatch.setattr(sys, "argv", ["rainbow-tf", name, "--seed=3", "train"])
    cli.main()
    assert given == [(command, [name, "--seed=3", "train"])]


def test_an_interrupt_is_one_sentence(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["rainbow-tf", "report"])
    monkeypatch.setattr(cli.importlib, "import_module", interrupted)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "rainbow_tf: interrupted.\n"


def test_the_version_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rainbow-tf", "--version"])
    cli.main()
    assert capsys.readouterr().out == f"rainbow_tf {rainbow_tf.__version__}\n"


def test_the_installed_command_names_the_mistake():
    result = run("evaluat")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "rainbow_tf: 'evaluat' is not a command; did you mean evaluate?\n"
    result = run("evaluate", "--run_dir=nowhere")
    assert result.returncode == 1
    assert "--run_dir=nowhere is not a run folder" in result.stderr


def test_no_large_package_is_imported_before_a_command_is_chosen():
    code = (
        "import sys; before = set(sys.modules); import rainbow_tf.cli; "
        "print({name.split('.')[0] for name in set(sys.modules) - before})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not {"numpy", "absl", "tensorflow", "gymnasium"} & set(eval(result.stdout))
