"""The paper's agent on a real game, for a few hundred frames."""

import subprocess
import sys

import pytest

TINY_QBERT = [
    "--game=qbert",
    "--n_step=3",
    "--frames=1600",
    "--min_history_frames=640",
    "--target_period_frames=800",
    "--replay_capacity=2000",
    "--log_period_frames=320",
    "--eval_period_frames=1600",
    "--eval_frames=400",
]


def train(folder, *arguments):
    command = [sys.executable, "-m", "rainbow_tf.main", *TINY_QBERT, f"--run_dir={folder}"]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def first_run(tmp_path_factory, rows_and_weights):
    return rows_and_weights(train(tmp_path_factory.mktemp("first") / "run"))


def test_rainbow_trains_on_qbert(first_run):
    rows, weights = first_run
    assert [int(row["frames"]) for row in rows] == [320, 640, 960, 1280, 1600]
    # One update for 16 frames after the first 640.
    assert [int(row["updates"]) for row in rows] == [0, 0, 20, 40, 60]
    assert all(0 < float(row["loss"]) < 10 for row in rows[2:])
    assert len(weights) > 20


def test_same_seed_same_atari_run_to_the_last_bit(first_run, tmp_path, rows_and_weights):
    assert rows_and_weights(train(tmp_path / "again")) == first_run


def test_compression_changes_nothing(first_run, tmp_path, rows_and_weights):
    folder = train(tmp_path / "lz4", "--replay_compression=lz4")
    assert rows_and_weights(folder) == first_run


def test_a_pipeline_trains_too_and_repeats_itself(tmp_path, rows_and_weights):
    runs = [train(tmp_path / name, "--pipeline") for name in ("one", "two")]
    one, two = map(rows_and_weights, runs)
    assert one == two
    # An update behind: the one that the last step made due is never made.
    assert [int(row["updates"]) for row in one[0]] == [0, 0, 19, 39, 59]
