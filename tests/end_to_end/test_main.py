"""The training command: refused input, the folder of a run, and the same run from the same seed."""

import csv
import json

import pytest


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


def test_a_run_leaves_its_folder(cartpole):
    folder = cartpole.folder
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        "config.json",
        "environment.json",
        "train.csv",
        "eval.csv",
        "tensorboard",
        "checkpoints",
        "best",
    }
    assert json.loads((folder / "config.json").read_text())["frames"] == 500
    rows = read_rows(folder / "train.csv")
    # Four lanes at a time: a row may come up to three frames late.
    assert [int(row["frames"]) // 50 for row in rows] == list(range(1, 11))
    assert rows[0]["loss"] == ""
    assert all(float(row["loss"]) > 0 for row in rows[2:])
    # One update every 4 steps after the first 100.
    assert int(rows[-1]["updates"]) == (int(rows[-1]["frames"]) - 100) // 4
    evaluations = read_rows(folder / "eval.csv")
    assert [int(row["frames"]) // 250 for row in evaluations] == [1, 2]
    assert {path.name for path in (folder / "best").iterdir()} == {"online.npz", "score.json"}
    assert "expected time" in cartpole.output.stdout
    assert "Done after 50" in cartpole.output.stdout


def test_a_run_prints_progress_only(cartpole):
    for line in cartpole.output.stderr.replace("\r", "\n").splitlines():
        assert "frame/s" in line or "evaluation at" in line or not line.strip(), line


@pytest.mark.usefixtures("uncompiled")
def test_restart_moves_the_old_run_aside(run_command, cartpole, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("old")
    result = run_command(
        "train", *cartpole.settings, "--frames=104", f"--run_dir={folder}", "--restart"
    )
    assert result.status == 0, result.stderr
    aside = [path for path in tmp_path.iterdir() if path != folder]
    assert [(path / "config.json").read_text() for path in aside] == ["old"]


def test_same_seed_same_run_to_the_last_bit(run_command, cartpole, tmp_path, rows_and_weights):
    run_command("train", *cartpole.settings, f"--run_dir={tmp_path}")
    assert rows_and_weights(tmp_path) == rows_and_weights(cartpole.folder)


@pytest.mark.usefixtures("uncompiled")
def test_another_seed_plays_other_episodes(run_command, cartpole, tmp_path):
    # No update is made in 100 frames: the rows differ by the episodes alone.
    run_command("train", *cartpole.settings, "--frames=104", "--seed=2", f"--run_dir={tmp_path}")
    columns = ("episodes", "return_mean_20", "length_mean_100")
    other, first = (
        [[row[name] for name in columns] for row in read_rows(folder / "train.csv")[:2]]
        for folder in (tmp_path, cartpole.folder)
    )
    assert len(other) == len(first) == 2
    assert other != first


def test_interrupt_while_building_leaves_nothing(run_command, cartpole, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rainbow_tf.training.run.build_parts", interrupted)
    result = run_command("train", *cartpole.settings, f"--run_dir={tmp_path / 'run'}")
    assert result == (
        130,
        "",
        "rainbow_tf: interrupted before training began; nothing was changed.\n",
    )
    assert not list(tmp_path.iterdir())


def test_help_shows_every_setting(run_command):
    result = run_command("train", "--help")
    assert result.status == 0
    for flag in ("--game", "--[no]double", "--n_step", "--target_period_frames"):
        assert flag in result.stdout
