"""How commands begin and end: flags that cannot be used, and Ctrl-C at any moment."""

import os
import subprocess
import sys

import pytest

from rainbow_tf.config import Config

# Every command, and flags with which it comes as far as TensorFlow's import.
COMMANDS = {
    "rainbow_tf.main": ["--environment=CartPole-v1", "--run_dir={folder}/new"],
    "rainbow_tf.evaluate": ["--run_dir={folder}/run"],
    "rainbow_tf.watch": ["--run_dir={folder}/run", "--out={folder}/x.gif"],
    "rainbow_tf.export": ["--run_dir={folder}/run", "--output_dir={folder}/model"],
    "rainbow_tf.export.play": ["--model_dir={folder}/served"],
    "rainbow_tf.benchmark": ["--only=learner"],
    "rainbow_tf.record_starts": [
        "--run_dir={folder}/qbert",
        "--player=policy",
        "--output={folder}/starts.json",
    ],
}


def run(module, *arguments, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        **kwargs,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the commands above read, and a TensorFlow at whose import a Ctrl-C comes."""
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
    (folder / "modules" / "tensorflow.py").write_text(
        "import os, signal, time\n"
        "os.write(2, b'a note of TensorFlow')\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "try:\n"
        "    time.sleep(20)\n"
        "except KeyboardInterrupt:\n"
        "    if os.environ.get('NATIVE'):\n"
        "        raise ImportError('initialization failed') from None\n"
        "    raise\n"
    )
    return folder


@pytest.mark.parametrize("module", COMMANDS)
def test_an_interrupt_of_tensorflows_import_is_one_sentence(folder, module):
    arguments = [argument.format(folder=folder) for argument in COMMANDS[module]]
    environment = {**os.environ, "PYTHONPATH": str(folder / "modules")}
    result = run(module, *arguments, env=environment)
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if line and "0%|" not in line]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("rainbow_tf: interrupted")


def test_an_interrupt_that_native_code_calls_an_import_error(folder):
    environment = {**os.environ, "PYTHONPATH": str(folder / "modules"), "NATIVE": "1"}
    result = run("rainbow_tf.evaluate", f"--run_dir={folder}/run", env=environment)
    assert result.stderr == "rainbow_tf: interrupted; nothing was written.\n"


def interrupted(argv0, error):
    code = f"import sys; sys.argv = [{argv0!r}]; import rainbow_tf; raise {error}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_an_interrupt_of_a_commands_imports_is_one_sentence():
    # Python calls the command -m until it has found it.
    assert interrupted("-m", "KeyboardInterrupt").stderr == "rainbow_tf: interrupted.\n"
    assert interrupted("-m", "KeyboardInterrupt").returncode != 0
    assert "Traceback" in interrupted("-m", "ValueError").stderr
    # Somebody else's program is left alone.
    assert "Traceback" in interrupted("program.py", "KeyboardInterrupt").stderr


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
def test_a_flag_that_cannot_be_used_is_one_sentence(flag, sentence):
    result = run("rainbow_tf.main", flag)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"rainbow_tf: {sentence}\n"


@pytest.mark.parametrize("module", [*COMMANDS, "rainbow_tf.report", "rainbow_tf.export.check"])
def test_a_typo_and_help_are_answered_without_tensorflow(module, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = run(module, "--no_such_thing=1", env=environment)
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert "--no_such_thing is not a flag" in result.stderr
    result = run(module, "--helpfull", env=environment)
    assert result.stderr == ""
    assert "python -m rainbow_tf" in result.stdout
