"""The command rainbow-tf: a thin and quick way to the modules."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

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
    ran = []
    monkeypatch.setattr(sys, "argv", ["rainbow-tf", name, "--seed=3", "train"])
    monkeypatch.setattr(
        runpy, "run_module", lambda *args, **kwargs: ran.append((args, kwargs, sys.argv[1:]))
    )
    cli.main()
    how = {"run_name": "__main__", "alter_sys": True}
    assert ran == [((COMMANDS[name],), how, ["--seed=3", "train"])]


def test_an_interrupt_is_one_sentence(monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["rainbow-tf", "report"])
    monkeypatch.setattr(runpy, "run_module", interrupted)
    with pytest.raises(SystemExit, match=r"rainbow_tf: interrupted\."):
        cli.main()


def test_the_installed_command_is_quick_and_honest():
    result = run("evaluat")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "rainbow_tf: 'evaluat' is not a command; did you mean evaluate?\n"
    result = run("evaluate", "--run_dir=nowhere")
    assert result.returncode == 1
    assert "--run_dir=nowhere is not the folder of a run" in result.stderr
    assert "--starts" in run("evaluate", "--help").stdout


def test_it_imports_nothing_before_it_must():
    code = (
        "import sys; before = set(sys.modules); import rainbow_tf.cli; "
        "print({name.split('.')[0] for name in set(sys.modules) - before})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not {"numpy", "absl", "tensorflow", "gymnasium"} & set(eval(result.stdout))
