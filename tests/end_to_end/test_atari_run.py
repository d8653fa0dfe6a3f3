"""The paper's agent on a real game, for a few hundred frames."""

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


@pytest.fixture(scope="module")
def train(run_command):
    def run(folder, *arguments):
        result = run_command("train", *TINY_QBERT, f"--run_dir={folder}", *arguments)
        assert result.status == 0, result.stderr
        return folder

    return run


@pytest.fixture(scope="module")
def first_run(train, tmp_path_factory, rows_and_weights):
    return rows_and_weights(train(tmp_path_factory.mktemp("first") / "run"))


def test_rainbow_trains_on_qbert(first_run):
    rows, weights = first_run
    assert [int(row["frames"]) for row in rows] == [320, 640, 960, 1280, 1600]
    # One update for 16 frames after the first 640.
    assert [int(row["updates"]) for row in rows] == [0, 0, 20, 40, 60]
    assert all(0 < float(row["loss"]) < 10 for row in rows[2:])
    assert len(weights) > 20


def test_same_seed_same_run_to_the_last_bit_with_compressed_frames_too(
    first_run, train, tmp_path, rows_and_weights
):
    again = train(tmp_path / "lz4", "--replay_compression=lz4")
    assert rows_and_weights(again) == first_run
