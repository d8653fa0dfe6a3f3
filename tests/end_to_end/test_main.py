import csv
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from rainbow_tf import config, main

TINY_CARTPOLE = [
    "--environment=CartPole-v1",
    "--frames=400",
    "--min_history_frames=100",
    "--replay_capacity=1000",
    "--log_period_frames=100",
    "--eval_period_frames=200",
    "--eval_frames=100",
]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--game=qbertt"], ["--game=qbertt", "qbert?"]),
        (["--game=qbert", "--n_step=0"], ["--n_step=0"]),
        (["--game=qbert", "--v_min=10", "--v_max=-10"], ["--v_min=10", "--v_max=-10"]),
        (["--game=qbert", "--environment=CartPole-v1"], ["--game", "--environment"]),
        (["--environment=Pendulum-v1"], ["--environment=Pendulum-v1", "Discrete"]),
        (["--environment=CartPole-v9"], ["--environment=CartPole-v9"]),
        (["--game=qbert", "--replay_capacity=100_000_000"], ["GB", "--replay_capacity"]),
        (["--environment=CartPole-v1", "--network=nature"], ["--network=nature"]),
        (["qbert"], ["'qbert' is not a flag"]),
        ([], ["--game", "--environment"]),
    ],
)
def test_bad_input_is_one_sentence(run_command, monkeypatch, tmp_path, arguments, named):
    monkeypatch.chdir(tmp_path)
    result = run_command("train", *arguments)
    assert result.status == 1
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in named:
        assert part in result.stderr
    assert not list(tmp_path.iterdir()), "a refused run leaves nothing behind"


def test_unknown_flag_is_named(run_command):
    result = run_command("train", "--gaem=qbert")
    assert (result.status, result.stderr) == (
        1,
        "rainbow_tf: --gaem is not a flag; did you mean --game?\n",
    )


def test_folder_that_cannot_be_written(run_command, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    result = run_command("train", "--game=qbert", f"--run_dir={blocker}/run")
    assert result.status == 1
    assert "--run_dir" in result.stderr


def read_rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    result = run_main(*TINY_CARTPOLE, f"--run_dir={folder}")
    assert result.returncode == 0, result.stderr
    return folder, result


def test_a_run_leaves_its_folder(finished_run):
    folder, result = finished_run
    names = {path.name for path in folder.iterdir()}
    assert names == {
        ".lock",
        "config.json",
        "train.csv",
        "eval.csv",
        "tensorboard",
        "checkpoints",
        "best",
    }
    assert json.loads((folder / "config.json").read_text())["frames"] == 400
    rows = read_rows(folder / "train.csv")
    # Four lanes at a time: a row may come up to three frames late.
    assert [int(row["frames"]) // 100 for row in rows] == [1, 2, 3, 4]
    assert rows[0]["loss"] == ""
    assert all(float(row["loss"]) > 0 for row in rows[1:])
    # One update every 4 steps after the first 100.
    assert int(rows[-1]["updates"]) == (int(rows[-1]["frames"]) - 100) // 4
    evaluations = read_rows(folder / "eval.csv")
    assert [int(row["frames"]) // 200 for row in evaluations] == [1, 2]
    assert {path.name for path in (folder / "best").iterdir()} == {"online.npz", "score.json"}
    assert "expected time" in result.stdout
    assert "400 frames" in result.stdout


def test_a_run_writes_no_noise(finished_run):
    _, result = finished_run
    for line in result.stderr.replace("\r", "\n").splitlines():
        assert "frame/s" in line or "evaluation at" in line or not line.strip(), line


def test_restart_moves_the_old_run_aside(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("old")
    result = run_main(*TINY_CARTPOLE, "--frames=8", f"--run_dir={folder}", "--restart")
    assert result.returncode == 0, result.stderr
    aside = [path for path in tmp_path.iterdir() if path != folder]
    assert [(path / "config.json").read_text() for path in aside] == ["old"]


def test_same_seed_same_run_to_the_last_bit(finished_run, tmp_path, rows_and_weights):
    folder, _ = finished_run
    for seed in (1, 2):
        run_main(*TINY_CARTPOLE, f"--seed={seed}", f"--run_dir={tmp_path / str(seed)}")
    assert rows_and_weights(tmp_path / "1") == rows_and_weights(folder)
    assert rows_and_weights(tmp_path / "2")[0] != rows_and_weights(folder)[0]


def test_interrupt_ends_cleanly(tmp_path):
    folder = tmp_path / "run"
    arguments = [*TINY_CARTPOLE, "--frames=10_000_000", f"--run_dir={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rainbow_tf.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    train = folder / "train.csv"
    while time.monotonic() < deadline and not (train.exists() and len(read_rows(train)) > 2):
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in stderr
    assert "Stopped after" in stdout


def test_interrupt_before_training_is_one_sentence(monkeypatch, tmp_path):
    def interrupted(config):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(main, "run", interrupted)
    monkeypatch.setattr(main, "FLAGS", SimpleNamespace(list_presets=False, preset=[]))
    monkeypatch.setattr(config, "from_flags", lambda: config.Config(game="qbert"))
    with pytest.raises(SystemExit, match="interrupted before training"):
        main.main(["train"])
    assert not list(tmp_path.iterdir())


def test_help_shows_every_setting():
    result = run_main("--help")
    for flag in ("--game", "--[no]double", "--n_step", "--target_period_frames"):
        assert flag in result.stdout
