"""A3C on a real game for a few thousand frames, through every command that takes a run."""

import csv
import json

import pytest

TINY_QBERT = [
    "--preset=baselines/a3c",
    "--game=qbert",
    "--num_envs=4",
    "--frames=3200",
    "--log_period_frames=800",
    "--eval_period_frames=1600",
    "--eval_frames=400",
    "--checkpoint_period_frames=800",
]


@pytest.fixture(scope="module")
def run(run_command):
    def succeed(name, *arguments):
        result = run_command(name, *arguments)
        assert result.status == 0, result.stderr
        return result.stdout

    return succeed


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def resumed(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "qbert" / "a3c" / "seed_1"
    first = run("train", *TINY_QBERT, f"--run_dir={folder}", "--frames=1600")
    assert "Done after 1,6" in first
    assert "replay" not in first
    again = run("train", *TINY_QBERT, f"--run_dir={folder}")
    assert "Resuming from checkpoint" in again
    assert "Done after 3,2" in again
    return folder


def test_a3c_trains_evaluates_and_resumes(resumed):
    train = rows(resumed / "train.csv")
    # 4 threads of 5 steps of 4 frames: a row may come up to 16 frames late.
    assert [int(row["frames"]) // 800 for row in train] == [1, 2, 3, 4]
    assert all(int(row["frames"]) % 800 <= 16 for row in train)
    # At least one update for 5 steps.
    assert all(int(row["updates"]) >= int(row["frames"]) / 20 for row in train)
    assert [int(row["frames"]) // 1600 for row in rows(resumed / "eval.csv")] == [1, 2]
    assert json.loads((resumed / "config.json").read_text())["algorithm"] == "a3c"


def test_a3c_is_evaluated_exported_and_reported(run, resumed, tmp_path):
    run("evaluate", f"--run_dir={resumed}", "--episodes=2", "--snapshot=latest")
    summary = json.loads((resumed / "evaluations/paper_noop/summary.json").read_text())
    assert (summary["agent"], summary["episodes"], summary["support"]) == ("a3c", 2, None)
    models = tmp_path / "models"
    written = run("export", f"--run_dir={resumed}", f"--out={models}")
    assert "serving_default, from_frames, metadata" in written
    run("check", models)
    played = run("play", f"--model_dir={models}", "--episodes=1")
    assert "mean score" in played
    starts = tmp_path / "starts.json"
    run(
        "record_starts",
        "--player=policy",
        f"--run_dir={resumed}",
        f"--out={starts}",
        "--trajectories=1",
        "--max_frames=400",
    )
    report = tmp_path / "report"
    run("report", f"--runs={resumed.parents[2]}", f"--out={report}")
    assert any("A3C" in path.read_text() for path in report.rglob("*.md"))
