"""Real processes: killed, stopped, started twice, on a full disk.

`tests/training/test_kills.py` kills a run at every change of a file, and `test_run.py` beside it
damages and stops runs; both have a stub agent and need no process.
"""

import csv
import json
import random
import signal
import subprocess
import sys
import time

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


def start(folder, *arguments, prefix=()):
    command = (sys.executable, "-m", "rainbow_tf.main", *TINY, f"--run_dir={folder}", *arguments)
    return subprocess.Popen(
        [*prefix, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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


def frames_of(path):
    with path.open() as file:
        return [int(row["frames"]) for row in csv.DictReader(file)]


def checkpoints(folder):
    return CheckpointStore(folder / "checkpoints")


def has_checkpoint(folder):
    return lambda: len(checkpoints(folder).numbers()) > 0


def kill_and_resume(run_command, folder, kills, frames):
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
        reached.append(0 if checkpoint is None else checkpoint.frames)
    assert reached == sorted(reached), "a checkpoint was lost"
    result = run_command("train", *TINY, f"--run_dir={folder}", f"--frames={frames}")
    assert result.status == 0
    assert "Resuming from checkpoint" in result.stdout
    return reached


def assert_whole_run(folder, frames):
    for name, period in (("train.csv", 50), ("eval.csv", 500)):
        rows = frames_of(folder / name)
        assert rows == sorted(set(rows)), f"{name} has a row twice or out of order"
        # A row per period, each at the first step of four lanes after it or after a resume.
        assert [row // period for row in rows] == list(range(1, frames // period + 1)), name
    checkpoint, problems = checkpoints(folder).newest_whole()
    assert problems == []
    assert frames <= checkpoint.frames < frames + 4
    assert len(checkpoints(folder).numbers()) == 2
    score = json.loads((folder / "best" / "score.json").read_text())
    with (folder / "eval.csv").open() as file:
        scores = {int(row["frames"]): float(row["score_mean"]) for row in csv.DictReader(file)}
    assert score["score_mean"] == pytest.approx(max(scores.values()), rel=1e-5)
    assert scores[score["frames"]] == pytest.approx(score["score_mean"], rel=1e-5)
    updates = checkpoint.counters.updates
    assert updates == int((checkpoint.frames - 200) * 0.25)


def test_killed_three_times(run_command, tmp_path):
    folder = tmp_path / "run"
    kill_and_resume(run_command, folder, 3, frames=FRAMES)
    assert_whole_run(folder, FRAMES)


@pytest.mark.slow
def test_killed_twenty_times(run_command, tmp_path):
    folder = tmp_path / "run"
    reached = kill_and_resume(run_command, folder, 20, frames=8_000)
    assert len(set(reached)) > 8
    assert_whole_run(folder, 8_000)


@pytest.mark.stress
def test_killed_a_hundred_times(run_command, tmp_path):
    folder = tmp_path / "run"
    kill_and_resume(run_command, folder, 100, frames=40_000)
    assert_whole_run(folder, 40_000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_saves_and_says_how_to_resume(run_command, tmp_path, number):
    folder = tmp_path / "run"
    process = start(folder, "--frames=10_000_000", "--eval_period_frames=0", "--restart")
    wait_for(has_checkpoint(folder), process)
    process.send_signal(number)
    code, stdout, _ = finish(process)
    assert code == 128 + number, "`train && evaluate` must not evaluate half a run"
    stopped, command = stdout.strip().splitlines()[-2:]
    assert "Stopped after" in stopped
    frames = int(stopped.split(" frames")[0].split()[-1].replace(",", ""))
    assert checkpoints(folder).newest_whole()[0].frames == frames
    assert command.strip().startswith("python -m rainbow_tf.main --environment=CartPole-v1")
    assert "--restart" not in command, "it would start from the beginning"
    arguments = command.split()[3:]
    assert f"--run_dir={folder}" in arguments
    # The command finds the run and its checkpoint; with these frames nothing is left to do.
    result = run_command("train", *arguments, f"--frames={frames}")
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Training in {folder} is complete ({frames:,} frames).")


HOLDS_THE_FOLDER = """
import sys, time
from rainbow_tf.config import Config
from rainbow_tf.runs.folder import RunFolder
folder = RunFolder(Config(environment="CartPole-v1", run_dir=sys.argv[1]))
folder.lock()
print("locked", flush=True)
time.sleep(300)
"""


def test_two_processes_in_one_folder(run_command, cartpole, tmp_path):
    folder = cartpole.copy(tmp_path / "run")
    command = ["train", *cartpole.settings, f"--run_dir={folder}"]
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_FOLDER, folder], stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout.readline() == "locked\n"
        result = run_command(*command)
    finally:
        first.kill()
        first.communicate()
    assert result.status == 1
    assert f"Another process trains in {folder}" in result.stderr
    # A dead process does not keep the folder locked.
    result = run_command(*command)
    assert result.status == 0, result.stderr
    assert "is complete" in result.stdout


def test_a_full_disk_does_not_end_the_run(tmp_path):
    folder = tmp_path / "run"
    # No file above 200 blocks of 512 bytes: the agent's is larger, rows and manifests are smaller.
    # Set by a shell: a preexec_fn would fork this process, whose gRPC threads may abort the child.
    limit = ("sh", "-c", 'ulimit -f 200 && exec "$@"', "sh")
    code, stdout, stderr = finish(start(folder, "--frames=500", prefix=limit))
    assert code == 0, stdout + stderr
    assert "Done after" in stdout
    assert "could not be written" in stderr
    assert "Earlier checkpoints are kept" in stderr
    assert [row // 50 for row in frames_of(folder / "train.csv")] == list(range(1, 11))
    assert checkpoints(folder).numbers() == []
    assert not any((folder / "checkpoints").iterdir())


@pytest.mark.usefixtures("uncompiled")
def test_divergence_leaves_a_diagnosis_and_the_checkpoint_before(run_command, tmp_path):
    folder = tmp_path / "run"
    # Plain gradient descent: a decay of 1 keeps RMSProp's averages at 0.
    diverging = ("--optimizer=rmsprop", "--rmsprop_decay=1", "--learning_rate=1000")
    diverging += ("--nodistributional", "--noclip_rewards")
    result = run_command("train", *TINY, f"--run_dir={folder}", *diverging)
    assert result.status == 1
    message = result.stderr.strip().splitlines()[-1]
    path = next(folder.glob("diverged_at_*.json"))
    assert str(path) in message
    assert "--learning_rate" in message
    content = json.loads(path.read_text())
    batch = content["batch"]
    assert len(batch["ids"]) == len(batch["priorities"]) == len(batch["errors"]) == 32
    assert content["config"]["learning_rate"] == 1000
    assert any("kernel" in name for name in content["norms"])
    assert not content["loss"] < float("inf")
    checkpoint, problems = checkpoints(folder).newest_whole()
    assert problems == []
    assert checkpoint.frames <= content["frames"]
