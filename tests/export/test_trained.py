"""Training, export and play: the export scores what the agent scored."""

import csv
import json
import re
import subprocess
import sys

import pytest


def run(*arguments):
    result = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=900
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.learning
def test_a_trained_policy_is_exported_and_scores_what_the_agent_scored(tmp_path):
    models = tmp_path / "models"
    run(
        "rainbow_tf.main",
        "--preset=cartpole",
        "--frames=8000",
        "--eval_period_frames=4000",
        "--eval_frames=4000",
        f"--run_dir={tmp_path / 'run'}",
        f"--export_dir={models}",
    )
    best = json.loads((tmp_path / "run" / "best" / "score.json").read_text())
    with (tmp_path / "run" / "eval.csv").open() as file:
        assert best["score_mean"] == pytest.approx(
            max(float(row["score_mean"]) for row in csv.DictReader(file)), rel=1e-5
        )
    assert best["score_mean"] > 60, "random play scores 22: nothing was learnt"
    assert "would be served" in run("rainbow_tf.export.check", str(models))
    played = run("rainbow_tf.export.play", f"--model_dir={models}", "--episodes=30")
    score = float(re.search(r"mean score ([\d.]+)", played)[1])
    # The same deterministic policy from other starts: the means differ only by chance.
    assert score == pytest.approx(best["score_mean"], rel=0.25)
