"""Real processes: killed, stopped, started twice, on a full disk, with damaged files."""

import csv
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rainbow_tf.runs.store import CheckpointStore

FRAMES = 2_500
TINY = [
    "--environment=CartPole-v1",
    f"--frames={FRAMES}",
    "--min_history_frames=200",
    "--replay_capacity=2000",
    "--log_period_frames=50",
    "--eval_period_frames=500",
    "--eval_frames=100",
    "--checkpoint_period_frames=100",
]


def start(folder, *arguments, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-m", "rainbow_tf.main", *TINY, f"--run_dir={folder}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def finish(process):
    stdout, stderr = process.communicate(timeout=300)
    assert "Traceback" not in stderr, stderr
    return process.returncode, stdout, stderr


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stopped_in_an_evaluation(process):
    seen = ""
    while not seen.endswith("playing"):
        seen += process.stderr.read(1)
    process.send_signal(signal.SIGTERM)
    return process


def frames_of(path):
    with path.open() as file:
        return [int(row["frames"]) for row in csv.DictReader(file)]


def checkpoints(folder):
    return CheckpointStore(folder / "checkpoints")


def has_checkpoint(folder):
    return lambda: len(checkpoints(folder).numbers()) > 0


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kill_and_resume(folder, kills, frames):
    """Kills a run again and again, each time after another while, and lets it end."""
    rng = random.Random(1)
    reached = []
    for _ in range(kills):
        process = start(folder, f"--frames={frames}")
        # Between the first moments of the program and some checkpoints later.
        if rng.random() < 0.8:
            before = checkpoints(folder).numbers()
            wait_for(
                lambda before=before: (
                    checkpoints(folder).numbers() != before or (folder / "done").exists()
                ),
                process,
            )
            time.sleep(rng.uniform(0, 0.3))
        else:
            time.sleep(rng.uniform(0, 6))
        process.kill()
        stderr = process.communicate()[1]
        assert "Traceback" not in stderr, stderr
        checkpoint, problems = checkpoints(folder).newest_whole()
        assert problems == []
        reached.append(0 if checkpoint is None else checkpoint.state["frames"])
    assert reached == sorted(reached), "a checkpoint was lost"
    code, stdout, _ = finish(start(folder, f"--frames={frames}"))
    assert code == 0
    assert "Going on from checkpoint" in stdout
    return reached


def assert_whole_run(folder, frames):
    for name, period in (("train.csv", 50), ("eval.csv", 500)):
        rows = frames_of(folder / name)
        assert rows == sorted(set(rows)), f"{name} has a row twice or out of order"
        # A row per period, each at the first step of four lanes after it or after a resume.
        assert [row // period for row in rows] == list(range(1, frames // period + 1)), name
    checkpoint, problems = checkpoints(folder).newest_whole()
    assert problems == []
    assert frames <= checkpoint.state["frames"] < frames + 4
    assert len(checkpoints(folder).numbers()) == 2
    score = json.loads((folder / "best" / "score.json").read_text())
    with (folder / "eval.csv").open() as file:
        scores = {int(row["frames"]): float(row["score_mean"]) for row in csv.DictReader(file)}
    assert score["score_mean"] == pytest.approx(max(scores.values()), rel=1e-5)
    assert scores[score["frames"]] == pytest.approx(score["score_mean"], rel=1e-5)
    updates = checkpoint.state["counters"][1]
    assert updates == int((checkpoint.state["frames"] - 200) * 0.25)


def test_killed_at_twenty_moments(tmp_path):
    folder = tmp_path / "run"
    reached = kill_and_resume(folder, 20, frames=8_000)
    assert len(set(reached)) > 8
    assert_whole_run(folder, 8_000)


@pytest.mark.stress
def test_killed_at_many_moments(tmp_path):
    folder = tmp_path / "run"
    kill_and_resume(folder, 100, frames=40_000)
    assert_whole_run(folder, 40_000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_saves_and_says_how_to_go_on(tmp_path, number):
    folder = tmp_path / "run"
    process = start(folder, "--frames=10_000_000", "--restart")
    wait_for(has_checkpoint(folder), process)
    process.send_signal(number)
    code, stdout, _ = finish(process)
    assert code == 0
    stopped, command = stdout.strip().splitlines()[-2:]
    frames = int(stopped.split(" frames")[0].split()[-1].replace(",", ""))
    assert checkpoints(folder).newest_whole()[0].state["frames"] == frames
    assert command.strip().startswith("python -m rainbow_tf.main --environment=CartPole-v1")
    assert "--restart" not in command, "it would begin anew"
    arguments = command.split()[3:]
    assert f"--run_dir={folder}" in arguments
    result = subprocess.run(
        [sys.executable, "-m", "rainbow_tf.main", *arguments, f"--frames={frames + 40}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert f"at {frames:,} frames" in result.stdout


def test_a_stop_does_not_wait_for_an_evaluation(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--eval_frames=100_000_000")
    code, stdout, _ = finish(stopped_in_an_evaluation(process))
    assert code == 0
    assert "Stopped after 5" in stdout
    assert frames_of(folder / "eval.csv") == []
    # The evaluation is made up for.
    code, _, _ = finish(start(folder))
    assert code == 0
    assert_whole_run(folder, FRAMES)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    code, _, stderr = finish(start(folder, "--frames=500"))
    assert code == 0, stderr
    return folder


def copy_of(folder, target):
    subprocess.run(["cp", "-r", folder, target], check=True)
    return target


def test_a_finished_run_says_so(finished):
    before = snapshot(finished)
    code, stdout, _ = finish(start(finished, "--frames=500"))
    assert code == 0
    assert "larger --frames" in stdout
    assert snapshot(finished) == before


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "run")
    older, newest = checkpoints(folder).numbers()
    path = folder / "checkpoints" / f"{newest:06d}" / "agent.lz4"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    code, stdout, _ = finish(start(folder, "--frames=500"))
    assert code == 0
    assert f"Checkpoint {newest} is damaged: {path}" in stdout
    assert f"Going on from checkpoint {older} at 4" in stdout
    for number in checkpoints(folder).numbers():
        checkpoints(folder).open(number)
    assert [row // 50 for row in frames_of(folder / "train.csv")] == list(range(1, 11))


def test_where_nothing_is_whole_nothing_is_touched(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "run")
    for path in folder.glob("checkpoints/*/agent.lz4"):
        path.write_bytes(b"")
    before = snapshot(folder)
    code, stdout, stderr = finish(start(folder, "--frames=900"))
    assert code == 1
    assert stdout.count("is damaged") == 2
    assert len(stderr.strip().splitlines()) == 1
    assert "--restart" in stderr
    assert snapshot(folder) == before


def test_two_processes_in_one_folder(tmp_path):
    folder = tmp_path / "run"
    first = start(folder, "--frames=10_000_000")
    wait_for(has_checkpoint(folder), first)
    code, _, stderr = finish(start(folder, "--frames=10_000_000"))
    assert code == 1
    assert "Another process" in stderr
    first.kill()
    first.communicate()
    # A dead process does not keep the folder.
    frames = checkpoints(folder).newest_whole()[0].state["frames"] + 20
    code, _, stderr = finish(start(folder, f"--frames={frames}"))
    assert code == 0, stderr


def test_a_full_disk_does_not_end_the_run(tmp_path):
    folder = tmp_path / "run"

    def small_files_only():
        # The agent's file is larger than this, a row and a manifest are smaller.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    code, stdout, stderr = finish(start(folder, "--frames=500", preexec_fn=small_files_only))
    assert code == 0
    assert "Done after" in stdout
    assert "could not be written" in stderr
    assert "The checkpoints before it stay" in stderr
    assert [row // 50 for row in frames_of(folder / "train.csv")] == list(range(1, 11))
    assert checkpoints(folder).numbers() == []
    assert not any((folder / "checkpoints").iterdir())


def test_divergence_leaves_a_diagnosis_and_the_checkpoint_before(tmp_path):
    folder = tmp_path / "run"
    code, _, stderr = finish(
        start(folder, "--learning_rate=1e30", "--nodistributional", "--noclip_rewards")
    )
    assert code == 1
    message = stderr.strip().splitlines()[-1]
    path = next(folder.glob("diverged_at_*.json"))
    assert str(path) in message
    assert "--learning_rate" in message
    content = json.loads(path.read_text())
    batch = content["batch"]
    assert len(batch["ids"]) == len(batch["priorities"]) == len(batch["errors"]) == 32
    assert content["config"]["learning_rate"] == 1e30
    assert any("kernel" in name for name in content["norms"])
    assert not content["loss"] < float("inf")
    checkpoint, problems = checkpoints(folder).newest_whole()
    assert problems == []
    assert checkpoint.state["frames"] <= content["frames"]


KILLED_BEFORE_BEST = """
import os
from absl import app
from rainbow_tf import main
from rainbow_tf.evaluation import evaluator as evaluation

evaluation.write_best = lambda *_: os._exit(9)
main.define_flags()
app.run(main.main)
"""


def test_a_kill_between_the_checkpoint_and_the_best(tmp_path):
    folder = tmp_path / "run"
    arguments = [*TINY, f"--run_dir={folder}", "--frames=500", "--checkpoint_period_frames=400"]
    result = subprocess.run([sys.executable, "-c", KILLED_BEFORE_BEST, *arguments], timeout=300)
    assert result.returncode == 9
    # The checkpoint came first: its network is the one that was evaluated.
    frames = frames_of(folder / "eval.csv")[-1]
    assert checkpoints(folder).newest_whole()[0].state["frames"] == frames
    assert not (folder / "best").exists()
    # Although the run has its frames, it is not done.
    code, _, _ = finish(start(folder, "--frames=500"))
    assert code == 0
    assert json.loads((folder / "best" / "score.json").read_text())["frames"] == frames
    assert frames_of(folder / "eval.csv") == [frames]


def test_a_stop_in_the_last_evaluation_does_not_lose_it(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--frames=500", "--eval_frames=100_000_000")
    code, stdout, _ = finish(stopped_in_an_evaluation(process))
    assert code == 0
    assert "To go on" in stdout
    code, stdout, _ = finish(start(folder, "--frames=500"))
    assert code == 0
    assert len(frames_of(folder / "eval.csv")) == 1
    assert (folder / "best" / "online.npz").exists()
    code, stdout, _ = finish(start(folder, "--frames=500"))
    assert "larger --frames" in stdout


def test_a_run_without_a_checkpoint_begins_anew(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--checkpoint_period_frames=1_000_000", "--eval_period_frames=0")
    rows = folder / "train.csv"
    wait_for(lambda: rows.exists() and len(frames_of(rows)) > 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    code, stdout, _ = finish(start(folder, "--frames=300", "--eval_period_frames=0"))
    assert code == 0
    assert "no checkpoint yet" in stdout
    assert [row // 50 for row in frames_of(rows)] == list(range(1, 7))


def test_paths_in_a_checkpoint_are_relative(finished, tmp_path):
    """So that a run's folder may be moved to another machine."""
    manifest = next(finished.glob("checkpoints/*/manifest.json")).read_text()
    assert all(
        not Path(file[0]).is_absolute() for file in json.loads(manifest)["body"]["files"].values()
    )
    moved = copy_of(finished, tmp_path / "moved")
    code, stdout, stderr = finish(start(moved, "--frames=540"))
    assert code == 0, stderr
    assert "Going on" in stdout
