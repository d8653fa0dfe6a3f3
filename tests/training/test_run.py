"""A run in its folder: finished, damaged, moved, stopped while it evaluates."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import stub_run
from stub_run import end_state, rows, train_stub

from rainbow_tf.config import ConfigError
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore

pytestmark = pytest.mark.usefixtures("stub_runs")


@pytest.fixture
def finished(tmp_path):
    """A finished run's folder."""
    assert "Done after 240 frames" in train_stub(tmp_path / "finished")
    return tmp_path / "finished"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_says_so_and_is_not_touched(finished):
    before = contents(finished)
    printed = train_stub(finished)
    assert printed == (
        f"Training in {finished} is complete (240 frames). Raise --frames to continue, or give "
        "--restart to start again.\n"
    )
    assert contents(finished) == before


def test_training_ends_with_an_evaluation_and_says_what_to_do_next(tmp_path):
    folder = tmp_path / "run"
    printed = train_stub(folder, frames=200)
    assert [row["frames"] for row in rows(folder / "eval.csv")] == ["80", "160", "200"]
    assert "Done after 200 frames." in printed
    assert "best score  3.0 after 160 frames" in printed
    assert "last score  0.5" in printed
    for command in ("watch", "evaluate", "report", "export"):
        assert f"  python -m rainbow_tf.{command} --run" in printed
    assert "is complete" in train_stub(folder, frames=200)
    without = train_stub(tmp_path / "other", frames=200, eval_period_frames=0)
    assert "score" not in without
    assert rows(tmp_path / "other" / "eval.csv") == []


def test_a_run_that_would_end_before_its_first_update_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--frames=40 .*--min_history_frames=40"):
        train_stub(tmp_path / "run", frames=40)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_continues_with_more_frames(finished):
    printed = train_stub(finished, frames=320)
    assert "Resuming from checkpoint 6 at 240 frames." in printed
    assert "Changed on resume: --frames=320 (was 240)." in printed
    assert [row["frames"] for row in rows(finished / "eval.csv")] == ["80", "160", "240", "320"]


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(finished):
    expected = end_state(finished)
    store = CheckpointStore(finished / CHECKPOINTS)
    older, newest = store.numbers()
    path = store.folder / f"{newest:06d}" / "agent.lz4"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    printed = train_stub(finished)
    assert f"Checkpoint {newest} is damaged: {path}" in printed
    assert f"Resuming from checkpoint {older} at 200 frames." in printed
    assert end_state(finished) == expected
    for number in store.numbers():
        store.open(number)


def test_where_no_checkpoint_is_intact_nothing_is_touched(finished):
    for path in finished.glob("checkpoints/*/agent.lz4"):
        path.write_bytes(b"")
    before = contents(finished)
    with pytest.raises(ConfigError, match=r"is intact.*--restart"):
        train_stub(finished, frames=900)
    assert contents(finished) == before


def test_a_moved_run_resumes(finished, tmp_path):
    manifest = next(finished.glob("checkpoints/*/manifest.json")).read_text()
    files = json.loads(manifest)["body"]["files"].values()
    assert all(not Path(path).is_absolute() for path, *_ in files)
    moved = shutil.move(finished, tmp_path / "moved")
    assert "Resuming from checkpoint 6" in train_stub(moved, frames=300)


@pytest.mark.parametrize("frames", [80, 240], ids=["first", "last"])
def test_a_stop_does_not_wait_for_an_evaluation_nor_lose_it(tmp_path, monkeypatch, frames):
    train_stub(tmp_path / "whole")
    folder = tmp_path / "run"
    make = stub_run.evaluation_environment

    def stopped(config, *, seed, **kwargs):
        environment = make(config, seed=seed, **kwargs)
        if seed == 1_000_003 * config.seed + frames:
            signal.raise_signal(signal.SIGTERM)
            monkeypatch.setattr(environment, "step", lambda actions: environment.reset())  # no end
        return environment

    with monkeypatch.context() as patch:
        patch.setattr("rainbow_tf.evaluation.evaluator.make_environment", stopped)
        printed = train_stub(folder)
    assert f"Stopped after {frames} frames. To resume:" in printed
    assert [int(row["frames"]) for row in rows(folder / "eval.csv")] == list(range(80, frames, 80))
    printed = train_stub(folder)
    assert "Done after 240 frames" in printed
    assert end_state(folder) == end_state(tmp_path / "whole")
    assert "is complete" in train_stub(folder)
